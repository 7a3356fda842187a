"""Is it a bug or rounding?  Two layouts side by side: the first wrong array, its ranks, its cause.

    left, right     ─▶ records of every rank ─▶ global arrays ─▶ gaps ─▶ verdict, place, cause
    in float64           recorder, observe         whole         difference   patterns, causes
    and float32

Both run a step at a time, on the ranks of one communicator (run.py), and rank 0 compares the step.
A record says where its values are in the global array, so the layouts may be any.  In float64 there
is no rounding that matters: what differs is a mistake.  What rounding may do in a lower precision
is measured, not guessed: by the left in both.  The first wrong array in program order counts, since
all that follow are its consequences.

    recorder        what a recording is, and its file; NumPy alone
    observe         records the run of a strategy, in global coordinates
    whole           global arrays, put together from what ranks recorded
    missing         ranks, steps, rows, elements or numbers that are not there
    run             runs two programs, and compares them
    difference      the first array that differs by more than rounding
    causes          what kind of difference it is, in a sentence
    patterns        a constant factor, a missing reduction, another order, …
"""
