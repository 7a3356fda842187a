"""The ranks: processes that run untrusted code, and their pipes to the checker.

    worker.py           a clean process that forks itself into ranks; imports the submission
    communicator.py     what the function gets as `comm`
    sandbox.py          another user, limits, a short list of system calls
    frames.py           the bytes on a pipe; values.py: arguments and results as frames

The checker imports only frames, values and the sandbox's `is_supported` from here.
"""
