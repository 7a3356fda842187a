"""A recording of a training run: named arrays, each with its place in the global array.

This file needs NumPy alone, so that it can be copied into a program of another framework:

    recorder = Recorder(rank)
    recorder.record("h.0", y, step=0, shape=(8, 16, 64), box=[rows, None, None])
    recorder.write("right.trace")           one file for all ranks, or a folder with one for each

A rank records what it has.  The `box` says which indices it has along each axis of the global
array, as runs (start, stop); None means all.  So an array may be anywhere:

    replicated      two ranks record the same box: their values must agree
    sharded         ranks record different boxes
    partial         the values are one `term` of a sum; terms of different names add up

An axis may be cut anyhow: the zig-zag tokens of a rank are two runs, the q, k, v columns of its
heads three.  A flat piece of a parameter has a box of one axis, whose indices count
the elements of the array in a row.

The file is an .npz.  It has arrays "0", "1", … and "index", the JSON text (uint8) of a list with an
entry for each array: name, phase, step, rank, shape, box, term.  The arrays have the dtype of the
run; bfloat16, which .npz does not know, is written as float32.  Two kinds of records of the phase
"layout" help to explain a difference.  "microbatch 0" has the rows of a microbatch of this rank,
and "axis tp" its coordinate on a mesh.  Two others tell what is missing: "ranks", the number of
ranks of the run, and "batch", the numbers of the samples in the global batch.
"""

import io
import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# in the order in which one process computes them
PHASES = ("layout", "initial", "forward", "loss", "backward", "local gradient", "gradient", "norm",
          "state", "parameter")
Runs = tuple[tuple[int, int], ...]          # indices along an axis, in order


class RecordedArray(NamedTuple):
    """One array of one rank: `box` of the global array of `shape`."""

    name: str
    phase: str
    step: int
    rank: int
    shape: tuple[int, ...]
    box: tuple[Runs, ...]
    term: str
    values: np.ndarray

    @property
    def key(self) -> tuple[int, str, str]:
        """Step, phase and name, which all records of one global array have in common."""
        return self.step, self.phase, self.name


def index_runs(indices: Any) -> Runs:
    """Indices as runs: [0, 1, 2, 6, 7] → ((0, 3), (6, 8))."""
    indices = np.asarray(indices, np.int64).ravel()
    jumps = np.flatnonzero(np.diff(indices) != 1)
    if len(indices) and not len(jumps):
        return ((int(indices[0]), int(indices[-1]) + 1),)
    firsts, lasts = (indices[at].tolist() for at in (
        np.r_[0, jumps + 1][:len(indices)], np.r_[jumps, len(indices) - 1][:len(indices)]))
    return tuple((first, last + 1) for first, last in zip(firsts, lasts))


def indices_of(runs: Runs) -> np.ndarray:
    """The indices in the runs, one after the other."""
    return np.concatenate([np.empty(0, np.int64), *(np.arange(*run) for run in runs)])


class Recorder:
    """The records of one rank."""

    def __init__(self, rank: int = 0):
        self.rank = rank
        self.records: list[RecordedArray] = []

    def record(self, name: str, values: Any, phase: str = "forward", step: int = 0,
               shape: Sequence[int] | None = None, box: Sequence[Any] | None = None,
               term: str = "") -> np.ndarray:
        """Keep a copy of `values`, the `box` of a global array of this `shape`; default: whole.

        The box has runs for each axis, None for a whole axis.  Returns the copy.  Raises ValueError
        if the box does not fit the values.
        """
        values = np.array(values)
        shape = tuple(values.shape if shape is None else shape)
        flat = box is not None and len(box) == 1 != len(shape)
        axes = (int(np.prod(shape)),) if flat else shape
        runs = tuple(((0, length),) if one is None else tuple((int(a), int(b)) for a, b in one)
                     for length, one in zip(axes, box or [None] * len(axes)))
        self.records.append(fitting(RecordedArray(name, phase, int(step), self.rank, shape, runs,
                                                  term, values)))
        return self.records[-1].values

    def write(self, path: str | Path) -> Path:
        """Write a file, whole or not at all; return its path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}.part")
        draft.write_bytes(to_bytes(self.records))
        os.replace(draft, path)
        return path


def fitting(record: RecordedArray) -> RecordedArray:
    """The record, with values in the shape of its box.  ValueError if they do not fill the box."""
    name, phase, _, _, shape, box, _, values = record
    axes = shape if len(box) == len(shape) else (int(np.prod(shape)),)
    size = [sum(b - a for a, b in runs) for runs in box]
    if values.size != np.prod(size) or len(size) != len(axes) or not all(
            0 <= a <= b <= length for runs, length in zip(box, axes) for a, b in runs):
        raise ValueError(f"{name}: values of shape {values.shape} do not fill the box {box} "
                         f"of {shape}: give the indices that they have")
    if phase not in PHASES:
        raise ValueError(f"unknown phase {phase!r}: choose from {', '.join(PHASES)}")
    return record._replace(values=values.reshape(size))


def to_bytes(records: Sequence[RecordedArray]) -> bytes:
    """Records in the format that the head of this file describes."""
    index = json.dumps([record[:-1] for record in records]).encode()
    arrays: dict[str, Any] = {str(i): record.values if record.values.dtype.kind in "fiu"
                              else record.values.astype(np.float32)
                              for i, record in enumerate(records)}
    file = io.BytesIO()
    np.savez(file, index=np.frombuffer(index, np.uint8), **arrays)
    return file.getvalue()


def from_file(file: Any) -> list[RecordedArray]:
    """The records of one file, or of an open one.  Raises ValueError if it is no recording."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            index = json.loads(arrays["index"].tobytes())
            records = [RecordedArray(name, phase, step, rank, tuple(shape), tuple(
                tuple((a, b) for a, b in runs) for runs in box), term, arrays[str(i)])
                for i, (name, phase, step, rank, shape, box, term) in enumerate(index)]
    except (KeyError, TypeError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile,
            zlib.error) as error:
        raise ValueError(f"{file} is no whole recording: write it with Recorder, or copy it again"
                         ) from error
    return [fitting(record) for record in records]


def read(path: str | Path) -> list[RecordedArray]:
    """All records of a file, or of the files in a folder: one for each rank.

    Raises OSError or ValueError for what cannot be read.
    """
    path = Path(path)
    files = sorted(file for file in path.iterdir() if not file.name.startswith(".")) \
        if path.is_dir() else [path]
    return [record for file in files for record in from_file(file)]
