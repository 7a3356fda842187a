"""The commands that generate text, serve it, convert models, or replay the scheduler alone.

    convert, generate, serve, replay    a command each
    options                             the flags that generate and serve share

What they call is `minipar.inference`, `serve` and `interop`.
"""
