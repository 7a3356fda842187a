"""The checker: runs a function of a submission on several ranks, each a process in a sandbox.

    runner.py           start ranks, serve them, collect their results
    service.py          read and write the pipes of ranks; watch the limits
    broker.py           carry and count the messages; find deadlocks
    compare.py          results and messages against what was expected; a capstone's measure
    outcome.py          the outcome of a case in words; the points
    cases.py            run and judge a case; public cases as files
    check.py            what students run
    ranks/              the other end of the pipe: the ranks themselves

The sandbox needs Linux on x86-64 or ARM; without it ranks are ordinary processes.  The checker
needs only NumPy.  Students get it in their package, so they check with what grades them.
"""
