"""The file format of checkpoints: one .npz of arrays with its description inside, always whole.

    out/checkpoint.npz             model/<parameter>, optimizer/<state>/<parameter>, description,
                                   and other arrays by <kind>/<name>
    out/checkpoint.previous.npz    the checkpoint before
    out/checkpoint.json            the description of the newest, for people to read

A file is written under a draft's name, flushed to disk, and renamed in one step.  So
checkpoint.npz is a whole checkpoint at any time, even if a process is killed while it writes.
"""

import json
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic_files import draft_name, replace_files
from .npz_reader import read_arrays

FORMAT = "minipar checkpoint 1"
NEWEST, PREVIOUS, READABLE = "checkpoint.npz", "checkpoint.previous.npz", "checkpoint.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; one line says which, why and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run: host arrays by name, and a JSON-like description.

    `others` are arrays that are neither the model's nor the optimizer's, by "kind/name".
    """

    model: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray]
    description: dict[str, Any]
    others: dict[str, np.ndarray] = field(default_factory=dict)


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write `checkpoint` into `folder`, and return the path of the new file.

    A checkpoint that is there becomes the previous one.  If writing fails, raises OSError, and
    checkpoint.npz is still the old one.
    """
    path = folder / NEWEST
    description = json.dumps({"format": FORMAT, **checkpoint.description}, indent=1).encode()
    arrays = checkpoint.others | {f"model/{name}": a for name, a in checkpoint.model.items()}
    arrays |= {f"optimizer/{name}": array for name, array in checkpoint.optimizer.items()}
    arrays["description"] = np.frombuffer(description, np.uint8)
    replace_files({path: lambda file: np.savez(file, **arrays),
                   folder / READABLE: lambda file: file.write(description)},
                  before=lambda: keep_previous(path))
    return path


def keep_previous(path: Path) -> None:
    """Name the checkpoint at `path`, if there is one, checkpoint.previous.npz as well."""
    if path.exists():
        link = draft_name(path)
        os.link(path, link)             # a second name: `path` stays until the new file takes it
        os.replace(link, path.with_name(PREVIOUS))


def load(path: str | Path) -> Checkpoint:
    """Read a whole checkpoint: a file, or the newest of a folder.

    Raises CheckpointError for a file that is missing, truncated, damaged or no checkpoint.
    """
    arrays, description = _read(path)
    parts = {kind: {name.removeprefix(f"{kind}/"): arrays.pop(name) for name in list(arrays)
                    if name.startswith(f"{kind}/")} for kind in ("model", "optimizer")}
    return Checkpoint(parts["model"], parts["optimizer"], description, arrays)


def load_description(path: str | Path) -> dict[str, Any]:
    """The description alone, without reading the arrays.  Raises CheckpointError as `load` does."""
    return _read(path, ["description"])[1]


def file_size(path: Path) -> int:
    """The bytes of a checkpoint's file; `path` is the file or its folder."""
    return (path / NEWEST if path.is_dir() else path).stat().st_size


def _read(path: str | Path, names: Collection[str] | None = None
          ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(the arrays of these names, or all, and the description)."""
    path = Path(path)
    path = path / NEWEST if path.is_dir() else path
    if not path.exists():
        raise CheckpointError(f"no checkpoint at {path}: give the folder that --out named")
    previous = path.with_name(PREVIOUS)
    rescue = f"; the one before is {previous}" if previous.exists() and previous != path else ""
    try:
        arrays = read_arrays(path, names)
        description = json.loads(arrays["description"].tobytes()) if "description" in arrays else {}
    except Exception as error:          # whatever zipfile, NumPy and json make of foreign bytes
        what = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{path} is truncated, damaged or no checkpoint ({what}): resume "
                              f"from another one{rescue}") from error
    arrays.pop("description", None)
    if not isinstance(description, dict) or description.pop("format", None) != FORMAT:
        raise CheckpointError(f"{path} was not written by this version of minipar: give a "
                              "checkpoint that `minipar train --out` made")
    return arrays, description
