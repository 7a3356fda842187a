"""Text in, text out: a checkpoint answers prompts, in the terminal or over HTTP.

    text_model.py    a checkpoint and its tokenizer; an engine for it, on one rank or on a mesh
    detokenizer.py   tokens as text while they come; stop strings
    protocol.py      OpenAI's completions: a request checked
    service.py       one engine for many clients, step by step
    over_ranks.py    one server on many ranks: rank 0 leads, the others follow its steps
    writer.py        answers in OpenAI's form
    streaming.py     answers as server-sent events, a chunk for each step
    app.py           the web application (Starlette), for any ASGI server

`minipar generate` and `minipar serve` use these.
"""
