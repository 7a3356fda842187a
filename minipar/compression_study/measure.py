"""Measure each version: read it back from its file, score it and run it.

All timed forwards run in this process on one thread, interleaved.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .. import checkpoint as files
from ..compress import FLOAT_GRIDS
from ..compress.footprint import ModelVersion, measure
from ..compress.load import load_model
from ..compress.pruning.shrink import without_masks
from ..compress.pruning.sparse import SparseLinear, replace_linear_layers
from ..compress.pruning.two_of_four import TwoOfFourLinear
from ..nn import Module
from ..train.tasks import Task, make_task
from .subjects import Subject
from .versions import ALSO_INT8, AMOUNTS, pruned


class Row(NamedTuple):
    """A row of the table: a version's file, how it runs, and the row it is compared with."""

    name: str
    file: str
    reference: str = "dense"
    kind: type | None = None        # replaces its linear layers, if not None


TUNED = "dense, more steps"
SPARSE = pruned(AMOUNTS[-1])
ROWS = (
    Row("dense", "dense"), Row(TUNED, TUNED),
    *(Row(pruned(a), pruned(a), TUNED) for a in AMOUNTS),
    Row(f"{SPARSE}, run sparse", SPARSE, TUNED, SparseLinear),
    Row("2:4", "2:4", TUNED), Row("2:4, run sparse", "2:4", TUNED, TwoOfFourLinear),
    Row("structured 50 %", "structured 50 %", TUNED),
    *(Row(name, name) for name in ("int8", "int8, inputs too", "int4", "int4, GPTQ",
                                   *FLOAT_GRIDS)),
    Row(f"{pruned(ALSO_INT8)} + int8", f"{pruned(ALSO_INT8)} + int8", TUNED),
    Row("small, from labels", "small, from labels"), Row("small, distilled", "small, distilled"),
)


class Result(NamedTuple):
    """The measurements of one row and one seed."""

    quality: float          # accuracy, or bits per character
    num_bytes: int          # of the model's arrays in the file, as `minipar evaluate` prints them
    flops: float            # of the forward of one sample
    seconds: float          # of the forward of one batch


def load_version(saved: files.Checkpoint, subject: Subject, seed: int, task: Task) -> Module:
    """The model of a file, ready to run; `task` is that of the dense model."""
    sizes = saved.description["sizes"]
    if sizes:
        task = make_task(subject.config(seed, **sizes))
    return load_model(saved, task.build())


def measure_all(subject: Subject, seed: int, folder: Path,
                tick: Callable[[], None]) -> dict[str, Result]:
    """Measure all rows of one seed, by name, from the files in `folder`; tick() after each."""
    task = make_task(subject.config(seed))
    saved = {row.file: files.load(folder / row.file) for row in ROWS}
    models = {file: load_version(found, subject, seed, task) for file, found in saved.items()}
    quality = {}
    for file, model in models.items():
        score = task.score(model)
        quality[file] = score.bits if score.accuracy is None else score.accuracy
        tick()
    inputs = task.batches.batch(0)[0]
    found = measure({row.name: ModelVersion(
        sum(array.nbytes for array in saved[row.file].model.values()),
        models[row.file] if row.kind is None else replace_linear_layers(
            without_masks(models[row.file]), row.kind))
        for row in ROWS}, inputs, subject.repeats)
    return {row.name: Result(quality[row.file], found[row.name].num_bytes,
                             found[row.name].flops / len(inputs), found[row.name].seconds)
            for row in ROWS}
