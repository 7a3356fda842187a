"""Checkpoints of `minipar train`, read: what a run goes on from."""

import argparse
from pathlib import Path

import numpy as np

from .. import checkpoint as files
from ..compress.sparse_files import KIND as PRUNED
from ..compress.sparse_files import expand
from ..launch import UsageError
from .tasks import Task, check_resume


def remembered(options: argparse.Namespace) -> dict:
    """The options of the run that wrote the checkpoint.  Raises UsageError if it is none."""
    return _load(options.resume)[0].description["options"]


def load_steps(path: Path) -> int:
    """How many steps the run took that wrote the checkpoint.  Raises UsageError if it is none."""
    return _load(path)[0].description["step"]


def load_checkpoint(options: argparse.Namespace, task: Task
                    ) -> tuple[files.Checkpoint, dict[str, np.ndarray]]:
    """The checkpoint that --resume names, and its masks.  Raises UsageError if it does not fit."""
    saved, masks = _load(options.resume)
    check_resume(task, saved, options)
    if masks and options.strategy == "zero3":
        raise UsageError(f"--resume {options.resume}: its weights are masked at their use, and "
                         "zero3 gathers each weight there: choose --strategy fsdp")
    return saved, masks


def _load(path: Path) -> tuple[files.Checkpoint, dict[str, np.ndarray]]:
    try:
        saved, masks = expand(files.load(path))
    except files.CheckpointError as error:
        raise UsageError(f"--resume: {error}") from error
    others = {step.get("kind") for step in saved.description.get("compression", [])} - {PRUNED}
    if others:
        raise UsageError(f"--resume {path}: this model was {', '.join(map(str, others))}, which is "
                         "not trained on: resume from the checkpoint it was made from")
    for name, kind in (("step", int), ("losses", list), ("options", dict), ("optimizer", str)):
        if not isinstance(saved.description.get(name), kind):
            raise UsageError(f"--resume {path}: its description has no {name}: it was not written "
                             "by minipar train")
    return saved, masks
