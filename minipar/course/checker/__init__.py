"""The checker: runs a function of a submission on several ranks, each a process without rights.

    runner.py           in the checker's process: start ranks, serve them, collect their results
    service.py          reads and writes the pipes of ranks; watches the limits
    broker.py           carries and counts the messages; finds deadlocks
    compare.py          results and messages against what was expected
    worker.py           in a clean process: forks itself into ranks; imports the submission
    communicator.py     what the function gets as `comm`
    sandbox.py          another user, limits, a short list of system calls
    frames.py           the bytes on the pipe between them
    values.py           arguments and results as frames
    cases.py            public cases as files, without the code that made them
    outcome.py          the outcome of a case in words; the points
    check.py            what students run

It needs only NumPy, and travels in the package for students: they check with what grades them.
"""
