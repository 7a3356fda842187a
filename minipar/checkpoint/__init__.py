"""Checkpoints: what a run needs to go on, or a model to run, in one file."""

from .store import (
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
