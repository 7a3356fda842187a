"""Checkpoints: the state of a training run, or a model, in one file.

    file_format.py          save, load: one .npz with its description, replaced in one step
    npz_reader.py           the arrays of an .npz, whose sizes are checked against the file
    description_rules.py    rules for the values of a description

Checkpoints of models, with all that a description may say, are in train/checkpoints/models.py.
"""

from .file_format import (
    FORMAT,
    NEWEST,
    PREVIOUS,
    Checkpoint,
    CheckpointError,
    file_size,
    load,
    load_description,
    save,
)

__all__ = ["FORMAT", "NEWEST", "PREVIOUS", "Checkpoint", "CheckpointError", "file_size",
           "load", "load_description", "save"]
