"""The commands that use a trained model, or only the scheduler of its requests.

    convert, generate, serve, replay    a command each
    options                             the flags that they share

What they call is `minipar.inference`, `serve` and `interop`.
"""
