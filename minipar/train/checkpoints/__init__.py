"""The checkpoints of training: of runs, which go on from them, and of models.

    resume.py        what a run writes, and how the next one goes on from it
    rank_states.py   what belongs to one rank alone
    models.py        checkpoints of models: read, checked, written from Python
    schema.py        what a checkpoint's description may say

The files themselves, without models, are in `minipar/checkpoint`.
"""
