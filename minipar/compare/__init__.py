"""Is it a bug or rounding?  Two layouts side by side: the first wrong array, its ranks, its cause.

All files but the first work on minipar's strategies; a recording may come from anywhere.

    recorder        what a recording is, and its file; NumPy alone
    observe         records the run of a strategy, in global coordinates
    whole           global arrays, put together from what ranks recorded
    run             runs two programs, and compares them
    difference      the first array that differs by more than rounding
    causes          what kind of difference it is, in a sentence
    patterns        a constant factor, a missing reduction, another order, …
"""
