"""Checkpoints: one .npz of arrays, with its description inside; never half a file, never a pickle.

    out/checkpoint.npz             model/<parameter>, optimizer/<state>/<parameter>, description
    out/checkpoint.previous.npz    the one before
    out/checkpoint.json            the description of the newest, for people to read

A file is written beside its name, flushed to disk, and then takes the name in one step: whatever
happens meanwhile, the name always leads to a whole checkpoint.
"""

import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

FORMAT = "minipar checkpoint 1"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; one line says which, why and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on: host arrays by name, and a JSON-like description."""

    model: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray]
    description: dict[str, Any]


def replace_file(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Let `write(file)` make the content of `path`, which changes in one step or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write `checkpoint` into `folder`; the one that was there becomes the previous one.

    Returns the path of the new file.
    """
    path = folder / "checkpoint.npz"
    description = json.dumps({"format": FORMAT, **checkpoint.description}, indent=1)
    arrays = {f"model/{name}": array for name, array in checkpoint.model.items()}
    arrays |= {f"optimizer/{name}": array for name, array in checkpoint.optimizer.items()}
    arrays["description"] = np.frombuffer(description.encode(), np.uint8)
    if path.exists():
        spare = folder / "checkpoint.previous.npz"
        link = spare.with_suffix(".link")
        link.unlink(missing_ok=True)
        os.link(path, link)             # the old file keeps its name until the new one has it
        os.replace(link, spare)
    replace_file(path, lambda file: np.savez(file, **arrays))
    replace_file(folder / "checkpoint.json", lambda file: file.write(description.encode()))
    return path


def load(path: Path) -> Checkpoint:
    """Read a checkpoint (a file, or the newest of a folder), whole.

    Raises CheckpointError if there is none, it is truncated or damaged, or no checkpoint of ours.
    """
    path = path / "checkpoint.npz" if path.is_dir() else path
    if not path.exists():
        raise CheckpointError(f"no checkpoint at {path}: give the folder that --out named")
    previous = path.with_name("checkpoint.previous.npz")
    rescue = f"; the one before is {previous}" if previous.exists() else ""
    try:
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is no whole .npz file")
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in stored.files}
        description = json.loads(arrays.pop("description").tobytes())
        if not isinstance(description, dict) or description.pop("format", None) != FORMAT:
            raise KeyError("format")
    except (KeyError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} was not written by this version of minipar: give a "
                              "checkpoint that `minipar train --out` made") from error
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        raise CheckpointError(f"{path} is truncated, damaged or no checkpoint ({error}): resume "
                              f"from another one{rescue}") from error
    parts = {kind: {name.removeprefix(f"{kind}/"): array for name, array in arrays.items()
                    if name.startswith(f"{kind}/")} for kind in ("model", "optimizer")}
    return Checkpoint(parts["model"], parts["optimizer"], description)
