"""Text in, text out: a checkpoint answers prompts, in the terminal or over HTTP.

    text_model.py    a checkpoint, its tokenizer, and an engine on one rank or on a mesh
    text_stream.py   tokens as text while they come; stop strings
    protocol.py      OpenAI's completions: a request checked, answers written
    service.py       one engine for many clients, step by step
    app.py           the web application (Starlette), for any ASGI server

`minipar generate` and `minipar serve` use these.
"""
