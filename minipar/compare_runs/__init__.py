"""Is it a bug or rounding?  Two layouts side by side: the first wrong array, its ranks, its cause.

    left, right     ─▶ records of every rank ─▶ global arrays ─▶ gaps ─▶ verdict, place, cause
    in float64           recorder, observe     global_arrays     difference   patterns, causes
    and float32

Both run one step at a time, on the ranks of one communicator (run.py), and rank 0 compares the
step.  Or two recordings are read from files.  A record says where its values are in the global
array, so layouts of any kind can be compared.  In float64 rounding does not matter: what differs is
a mistake.  In a lower precision, the rounding of the left is measured, since the left runs in both
precisions.  For recordings without the left in float64, a rounding is assumed.  The first wrong
array in program order counts, since those after it may be its consequences.

    recorder        what a recording is, and its file; NumPy alone
    observe         records the run of a strategy, in global coordinates
    global_arrays   global arrays, put together from what ranks recorded
    missing         ranks, steps, rows, elements or numbers that are not there
    run             runs two programs, and compares them
    difference      the first array that differs by more than rounding
    causes          the kind of the difference, in a sentence
    patterns        a constant factor, a missing reduction, another order, …
"""
