"""Milestones: a GPT trains on four ranks with the learner's own functions in place of minipar's.

    milestones.toml     the exercises that each milestone needs, and the options of its runs
    goal.py             read them; the learner's functions; which are reached
    version.py          in a process of its own: train once, with some functions replaced
    attempt.py          the learner's run beside the reference's: where they first differ, and why

The functions come from the exercises of the same work tree.
"""
