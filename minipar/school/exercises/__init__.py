"""Exercises: write a function of minipar yourself, in the source, and have it checked in seconds.

    python -m minipar exercise list            show all exercises
                               start NAME      replace the function's body with a stub
                               check NAME      test what you wrote
                               check           test everything you wrote, and count the points
                               hint NAME       show the next hint; `hint NAME 1` the first again
                               restore NAME    put the reference back; your version is kept

`catalog/TOPIC.toml` names, for each exercise, a function, its tests and *mutants*: wrong bodies
that people really write.  `prove` shows that the tests tell right from wrong: the reference passes,
and the stub and every mutant fail (DeMillo, Lipton & Sayward 1978).

    entries.py    reads catalog/*.toml              judge.py    runs tests on variants of the source
    source.py     finds and replaces functions      runner.py   the judge's process, with pytest
    workspace.py  start, restore, states, hints     check.py    `exercise check`
                                                    proof.py    `exercise prove`

The command line is minipar/commands/course/exercise.py.  This package imports none of the code that
learners change, so it works however broken that code is.
"""
