"""Is it a bug or rounding?  Two layouts side by side: the first wrong array, its ranks, its cause.

    recorder        what a recording is, and its file; NumPy alone
    observe         records the run of a strategy, in global coordinates
    run             runs two programs, and compares them
    difference      the first array that differs by more than rounding
    causes          what kind of difference it is
"""
