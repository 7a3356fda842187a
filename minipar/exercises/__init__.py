"""Exercises: write a function of minipar yourself, in the source, and have it checked in seconds.

    python -m minipar exercise list            what there is
                               start NAME      the function's body becomes a stub
                               check NAME      is what you wrote right?
                               check           all that you wrote, anew: the points it is worth
                               hint NAME       a nudge; `hint NAME 2` a stronger one
                               restore NAME    the reference comes back, yours is kept

`catalog/*.toml` names, for each exercise, a function, its tests and *mutants*: wrong bodies that
people really write.
`prove` shows that the tests tell right from wrong: the reference passes, the stub fails, and so
does every mutant (DeMillo, Lipton & Sayward 1978).

    manifest.py  what the catalog says            judge.py   run tests on a variant of the source
    surgery.py   cut a function, with `ast`       runner.py  … in a process of its own
    workbench.py start, restore, states           check.py   check
    command.py   the command line                 proof.py   prove

Nothing here imports the code that learners change: it works however broken that code is.
"""
