"""Checkpoints of models: read to run, compress or train on; written from Python.

    save_model("out/mine", model, data="my.txt")            then: minipar evaluate out/mine

A file that cannot be read, or whose parts do not fit together, is refused in one line.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ... import checkpoint_file as files
from ...compress import pack_quantized
from ...compress.load import load_model
from ...compress.pruning.serialization import KIND as PRUNED
from ...compress.pruning.serialization import compact, expand
from ...compress.quantization.layers import QuantizedLayer
from ...data import Vocabulary
from ...launcher import UsageError, errors_as_usage
from ...nn import MLP, Module
from ..config import DataConfig, RecordedData, TrainConfig
from ..setup.mlp_sizes import dropout_of
from ..setup.starting_point import StartingPoint
from ..tasks import Task, make_task
from .schema import (
    check_counts,
    check_description,
    check_run,
    config_of,
    describe_config,
    describe_model,
    sizes_as_options,
    upgrade,
)


def read_description(path: Path, to_train: bool = False) -> dict[str, Any]:
    """The checked description of a checkpoint.  Raises UsageError if the file is not sound."""
    with naming(path):
        return _checked(path, files.load_description(path), to_train)


def read(path: Path, to_train: bool = False) -> files.Checkpoint:
    """A checkpoint with a checked description.  Raises UsageError if the file is not sound."""
    with naming(path):
        saved = files.load(path)
        _checked(path, saved.description, to_train)
        check_counts(saved)
        return saved


def read_to_train(path: Path) -> StartingPoint:
    """A checkpoint from which training can go on, with its masks.  Raises UsageError."""
    saved = read(path, to_train=True)
    check_numbers(path, saved.model | saved.optimizer | saved.others)
    with naming(path):
        start = StartingPoint.of(*expand(saved))
        lost = [key for key in start.checkpoint.optimizer
                if key.partition("/")[2] not in start.checkpoint.model]
        if lost:
            raise files.CheckpointError(f"its optimizer has {lost[0]}, but its model has no such "
                                        "parameter: give a checkpoint of one training")
        return start


def check_numbers(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse a checkpoint with NaN or infinity in its `arrays`.  Raises UsageError."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and array.size \
                and not (np.isfinite(array.min()) and np.isfinite(array.max())):
            raise UsageError(f"{path}: {name} has NaN or infinity: go back to a checkpoint that "
                             "is sound")


def _checked(path: Path, description: dict[str, Any], to_train: bool) -> dict[str, Any]:
    upgrade(description)
    check_description(description)
    if to_train:
        others = {step["kind"] for step in description.get("compression") or []} - {PRUNED}
        if others:
            raise UsageError(f"{path}: this model was {', '.join(sorted(others))}: small steps "
                             "would be lost between its few values, and its float weights are "
                             "gone. Train the checkpoint that it was made from (in Python after "
                             "minipar.compress.prepare_qat, for these values), and quantize again")
        check_run(description)
    return description


def refuse_same_folder(out: Path, source: Path) -> None:
    """Raise UsageError if `out` is the folder of `source`, which the command would overwrite."""
    if out.resolve() == (source if source.is_dir() else source.parent).resolve():
        raise UsageError(f"{out} is where {source} is, which would be replaced: give another "
                         "folder")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Context that turns a CheckpointError into a UsageError that names the checkpoint."""
    try:
        yield
    except files.CheckpointError as error:
        where = "" if str(path) in str(error) else f"{path}: "
        raise UsageError(f"{where}{error}") from error


def read_config_to_resume(path: Path) -> TrainConfig:
    """The configuration of the run that wrote a checkpoint.  Raises UsageError."""
    with errors_as_usage("--resume: ", UsageError), naming(path):
        return config_of(read_description(path, to_train=True))


def load_checkpoint(config: TrainConfig, task: Task) -> StartingPoint:
    """The checkpoint that --resume names.  Raises UsageError if it does not fit."""
    start = read_to_train(config.run.resume)
    check_resume(task, start, config)
    return start


def check_resume(task: Task, start: StartingPoint, config: TrainConfig) -> None:
    """Let the task begin where a checkpoint ended.

    Raises UsageError if the model, the vocabulary or the optimizer differs, or if no step is left.
    """
    ours, theirs = task.describe(), start.checkpoint.description
    for what, mend in (("vocabulary", "give the --data it was trained on"),
                       ("model", "give the sizes it was trained with")):
        one, other = _given(theirs.get(what)), _given(ours.get(what))
        if one != other:
            raise UsageError(f"--resume {config.run.resume}: the {what} of the checkpoint differs, "
                             f"{_difference(one, other)}: {mend}")
    if theirs.get("optimizer") not in (None, config.optimizer.name):
        raise UsageError(f"--resume {config.run.resume}: the checkpoint was trained with "
                         f"--optimizer {theirs['optimizer']}, not {config.optimizer.name}")
    if theirs["step"] >= config.run.steps:
        raise UsageError(f"--resume {config.run.resume}: {theirs['step']} steps are done already: "
                         f"ask for more with --steps {theirs['step'] + config.run.steps}")
    task.go_on(theirs)


def _given(described: object, name: str = "") -> object:
    """A description as a flat dict, {"width": 8, "experts.top_k": 2}, without values of None."""
    if not isinstance(described, dict):
        return {name: described} if name else described
    return {key: value for inner, part in described.items() if part is not None
            for key, value in _given(part, f"{name}.{inner}" if name else inner).items()}


def _difference(theirs: object, ours: object) -> str:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        shown = [f"{key} is {theirs.get(key)}, not {ours.get(key)}" for key in keys[:4]]
        return ", ".join([*shown, *(["…"] if keys[4:] else [])])
    if isinstance(theirs, str) and isinstance(ours, str):
        return f"{len(theirs)} characters against {len(ours)} in --data"
    return "it is of another kind"


def open_model(path: Path, **changes: Any) -> tuple[files.Checkpoint, Task, Module]:
    """The checkpoint at `path`, plain or compressed, its task and its model, ready to run.

    `changes` are options of `minipar train`, by their flags; None keeps the value of the training.
    Raises UsageError.
    """
    saved = read(path)
    with errors_as_usage(f"{path}: "):
        task = task_of(saved, **changes)
        return saved, task, load_model(saved, task.build())


def task_of(saved: files.Checkpoint, **changes: Any) -> Task:
    """The task that a model was trained for; it reads its text when it first needs it.

    `changes` are options of `minipar train`, by their flags; None keeps the value of the training.
    Raises UsageError.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    data = saved.description["data"]
    if (given.get("data", data) == "digits") != (data == "digits"):
        raise UsageError(f"--data {given['data']}: this model was trained on {data}, which is of "
                         "another kind: leave it out")
    return make_task(config_of(saved.description, **given))


def save_model(folder: str | Path, model: Module, data: str | Path,
               vocabulary: Vocabulary | None = None,
               state: Mapping[str, np.ndarray] | None = None,
               masks: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> Path:
    """Write a GPT or an MLP as a checkpoint for minipar's commands; return the path of the file.

    `data` is what --data names: "docs", "synthetic", "digits" or the path of a text.  The text is
    read now unless a `vocabulary` is given.  If a strategy has sharded the model, pass its
    parameters as `state`: all ranks call strategy.state_dict(), then rank 0 calls save_model.
    `masks` are those of a pruned model, True where a weight is kept.  A quantized model is packed,
    and cannot be trained any more.  `minipar train --resume` trains other models on, with a new
    optimizer.  Raises ValueError for a model that no command could read.
    """
    config = config_for(model, str(data), vocabulary, seed)
    if any(isinstance(module, QuantizedLayer) for _, module in model.named_modules()):
        if state is not None or masks:
            raise ValueError("a quantized model is whole and is not trained on: leave state and "
                             "masks out")
        arrays, step = pack_quantized(model)
        steps = [step]
    else:
        arrays = dict(model.state_dict() if state is None else state)
        steps = [{"kind": PRUNED}] if masks else []
    dtype = next((array.dtype for array in arrays.values() if array.dtype.kind == "f"), "float32")
    config = config.updated(dtype=str(dtype))
    try:
        task = make_task(config)
        saved = compact(files.Checkpoint(arrays, {}, {
            **task.describe(), **describe_config(config), "step": 0, "losses": [],
            "optimizer": None, "compression": steps}), masks or {})
        check_description(saved.description)
        load_model(saved, task.build())
    except UsageError as error:
        raise ValueError(str(error)) from error
    return files.save(Path(folder), saved)


def config_for(model: Module, data: str, vocabulary: Vocabulary | None,
               seed: int) -> TrainConfig:
    """The configuration with which `minipar train` makes such a model.  ValueError if none does."""
    if isinstance(model, MLP) != (data == "digits"):
        raise ValueError(f"a {type(model).__name__} does not go with data {data!r}: an MLP has "
                         '"digits", a GPT a text')
    recorded = RecordedData(None if vocabulary is None else vocabulary.description())
    options = sizes_as_options(describe_model(model))
    if isinstance(model, MLP):
        options["dropout"] = dropout_of(model)
    return TrainConfig(data=DataConfig(data, recorded=recorded)).updated(
        seed=seed, **options)
