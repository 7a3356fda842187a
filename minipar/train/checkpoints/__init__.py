"""The checkpoints of training: runs resume from them, and commands read their models.

    resume.py        what a run writes, and how the next run continues from it
    rank_states.py   the arrays that differ from rank to rank
    models.py        read and check a checkpoint; write a model from Python
    schema.py        the names and values that a checkpoint's description may have

`minipar/checkpoint_file` reads and writes the files, and knows nothing of models.
"""
