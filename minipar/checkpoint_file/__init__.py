"""The file of a checkpoint: the state of a training run, or a model, in one .npz.

    file_format.py          save, load: arrays and their description in one .npz, written atomically
    npz_reader.py           read the arrays of an .npz, after checking their sizes against the file
    description_rules.py    rules for the values of a description

`train/checkpoints/models.py` has checkpoints of models, and all that their description may say.
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
