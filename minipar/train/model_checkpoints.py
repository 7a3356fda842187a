"""Checkpoints of models: read for what is to be done with them, and written from Python.

    save_model("out/mine", model, data="my.txt")            then: minipar evaluate out/mine

What cannot be read, or does not fit together, is refused in one line.
"""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .. import checkpoint as files
from ..compress import pack_quantized
from ..compress.load import load_model
from ..compress.pruning.serialization import KIND as PRUNED
from ..compress.pruning.serialization import compact, expand
from ..compress.quantization.layers import QuantizedLayer
from ..data import CharacterVocabulary
from ..launcher import UsageError
from ..nn import MLP, Activation, Module
from .checkpoint_schema import (
    check_description,
    check_layers,
    check_run,
    describe_model,
    sizes_as_options,
    training_options,
)
from .flags import REMEMBERED, add_arguments
from .tasks import Task, check_resume, make_task


def read_description(path: Path, to_train: bool = False) -> dict[str, Any]:
    """The description of a checkpoint, sound.  Raises UsageError if it is none."""
    with naming(path):
        return _checked(path, files.load_description(path), to_train)


def read(path: Path, to_train: bool = False) -> files.Checkpoint:
    """A checkpoint whose description is sound.  Raises UsageError if it is none."""
    with naming(path):
        saved = files.load(path)
        _checked(path, saved.description, to_train)
        check_layers(saved)
        return saved


def read_to_train(path: Path) -> tuple[files.Checkpoint, dict[str, np.ndarray]]:
    """A checkpoint that training can go on from, and its masks.  Raises UsageError."""
    saved = read(path, to_train=True)
    with naming(path):
        return expand(saved)


def _checked(path: Path, description: dict[str, Any], to_train: bool) -> dict[str, Any]:
    check_description(description)
    if to_train:
        others = {step["kind"] for step in description.get("compression") or []} - {PRUNED}
        if others:
            raise UsageError(f"{path}: this model was {', '.join(sorted(others))}: small steps "
                             "would be lost between its few values, and its float weights are "
                             "gone. Train the checkpoint that it was made from (in Python inside "
                             "minipar.compress.prepare, for these values), and quantize again")
        check_run(description)
    return description


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Context in which what is wrong with a checkpoint is a UsageError that names it."""
    try:
        yield
    except files.CheckpointError as error:
        where = "" if str(path) in str(error) else f"{path}: "
        raise UsageError(f"{where}{error}") from error


def remembered(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the run that wrote the checkpoint of --resume.  Raises UsageError."""
    try:
        known = vars(training_options(read_description(options.resume, to_train=True)))
    except UsageError as error:
        raise UsageError(f"--resume: {error}") from error
    return {name: known[name] for name in (*REMEMBERED, "vocabulary", "data_paths", "data_seed")}


def load_checkpoint(options: argparse.Namespace, task: Task
                    ) -> tuple[files.Checkpoint, dict[str, np.ndarray]]:
    """The checkpoint that --resume names, and its masks.  Raises UsageError if it does not fit."""
    saved, masks = read_to_train(options.resume)
    check_resume(task, saved, options)
    if masks and options.strategy == "zero3":
        raise UsageError(f"--resume {options.resume}: its weights are masked at their use, and "
                         "zero3 gathers each weight there: choose --strategy fsdp")
    return saved, masks


def open_model(path: Path, **of_task: Any) -> tuple[files.Checkpoint, Task, Module]:
    """A checkpoint of any kind, the task it was trained for and its model, ready to run.

    `of_task` are options of `minipar train`; those of the training stand for None.  Raises
    UsageError.
    """
    saved = read(path)
    try:
        task = task_of(saved, **of_task)
        return saved, task, load_model(saved, task.build())
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


def task_of(saved: files.Checkpoint, **changes: Any) -> Task:
    """The task that a model was trained for, whose data are read when they are needed.

    `changes` are other options of `minipar train`, if not None.  Raises UsageError.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    data = saved.description["data"]
    if (given.get("data", data) == "digits") != (data == "digits"):
        raise UsageError(f"--data {given['data']}: this model was trained on {data}, which is of "
                         "another kind: leave it out")
    return make_task(training_options(saved.description, **given))


def save_model(folder: str | Path, model: Module, data: str | Path,
               vocabulary: CharacterVocabulary | None = None,
               state: Mapping[str, np.ndarray] | None = None,
               masks: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> Path:
    """Write a GPT or an MLP so that every command takes it; return the path of the file.

    `data` is what --data names: "docs", "synthetic", "digits" or the path of a text, which is read
    now unless a `vocabulary` is given.  `state` are the parameters of a model that a strategy has
    sharded, strategy.state_dict(): all ranks call that, rank 0 alone calls this.  A quantized model
    is packed; of a pruned one, `masks` say what stays away when it is trained on.  `minipar train
    --resume` goes on with a new optimizer.  Raises ValueError for what no command could read.
    """
    options = options_for(model, str(data), vocabulary, seed)
    if any(isinstance(module, QuantizedLayer) for _, module in model.named_modules()):
        if state is not None or masks:
            raise ValueError("a quantized model is whole and is not trained on: leave state and "
                             "masks out")
        arrays, step = pack_quantized(model)
        steps = [step]
    else:
        arrays = dict(model.state_dict() if state is None else state)
        steps = [{"kind": PRUNED}] if masks else []
    options.dtype = str(next((a.dtype for a in arrays.values() if a.dtype.kind == "f"), "float32"))
    try:
        task = make_task(options)
        saved = compact(files.Checkpoint(arrays, {}, {
            **task.describe(), "step": 0, "losses": [], "optimizer": None, "dtype": options.dtype,
            "seed": seed, "options": {name: getattr(options, name) for name in REMEMBERED},
            "compression": steps}), masks or {})
        check_description(saved.description)
        load_model(saved, task.build())
    except UsageError as error:
        raise ValueError(str(error)) from error
    return files.save(Path(folder), saved)


def options_for(model: Module, data: str, vocabulary: CharacterVocabulary | None,
                seed: int) -> argparse.Namespace:
    """The options of `minipar train` that make such a model.  Raises ValueError if none do."""
    if isinstance(model, MLP) != (data == "digits"):
        raise ValueError(f"a {type(model).__name__} does not go with data {data!r}: an MLP has "
                         '"digits", a GPT a text')
    if any(isinstance(m, Activation) and m.kind != "relu" for _, m in model.named_modules()):
        raise ValueError("the MLPs of minipar's commands have relu between their layers")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([], argparse.Namespace(
        **sizes_as_options(describe_model(model)), data=data, seed=seed,
        vocabulary=vocabulary and vocabulary.characters))
