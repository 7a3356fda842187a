"""Make the versions of a trained model: one file each, in the form in which it would be stored.

    train ─▶ dense ─┬▶ more steps                      the reference for fine-tuned versions
                    ├▶ mask ─▶ more steps              pruned 50, 80, 90 %; 2:4 ─┬▶ + int8
                    ├▶ remove units ─▶ more steps      structured                │
                    ├▶ round                           int8 … mxfp4 ◀────────────┘
                    └▶ teach                           distilled; and the same student untaught

All versions but the students start from the same dense model.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import checkpoint as files
from ..comm import Cluster
from ..compress import FLOAT_GRIDS, IntGrid, pack_quantized
from ..compress.distillation.distill import Distillation, LocalTeacher, make_recipe
from ..compress.pruning.masks import Masks, prunable_weights
from ..compress.pruning.prune import prune
from ..compress.pruning.saliency import magnitude
from ..compress.pruning.serialization import KIND as PRUNED
from ..compress.pruning.serialization import pack_masked
from ..compress.pruning.shrink import shrink, without_masks
from ..compress.pruning.structured import unit_masks
from ..compress.pruning.two_of_four import n_of_m
from ..compress.quantization.post_training import quantize
from ..nn import Module
from ..train import TrainConfig, start_run, train_steps
from ..train.checkpoints.schema import describe_model, sizes_as_options
from ..train.tasks import Task, make_task
from .subjects import Sizes, Subject

AMOUNTS = (0.5, 0.8, 0.9)
ALSO_INT8 = 0.8             # the amount of the model that is pruned and quantized
CALIBRATION_BATCHES = 4
TEMPERATURE, ALPHA = 2.0, 0.5
FINE_TUNED = len(AMOUNTS) + 3           # with 2:4, structured and the dense one
FROM_START = 3                          # dense, and two students

Tick = Callable[[], None]


def pruned(amount: float) -> str:
    """The name of the version pruned by `amount`."""
    return f"pruned {amount:.0%}".replace("%", " %")


def num_steps(subject: Subject) -> int:
    """The training steps of all versions together."""
    return FROM_START * subject.steps + FINE_TUNED * subject.more


class TaskWithModel(Task):
    """The batches of `task`, with the model that `build` makes."""

    def __init__(self, task: Task, build: Callable[[], Module]):
        self.batches, self.build = task.batches, build


class VersionBuilder:
    """Makes all versions for one seed in `folder`; calls tick() after each training step."""

    def __init__(self, subject: Subject, seed: int, folder: Path, tick: Tick):
        self.subject, self.seed, self.folder, self.tick = subject, seed, folder, tick

    def task(self, sizes: Sizes) -> tuple[Task, TrainConfig]:
        """The task of a model of these sizes, and its configuration."""
        config = self.subject.config(self.seed, **sizes)
        return make_task(config), config

    def fit(self, task: Task, config: TrainConfig, start: Module | None = None,
            masks: dict[str, np.ndarray] | None = None) -> Module:
        """A new model, trained; or `start`, with `masks`, trained for `more` steps."""
        first = 0 if start is None else self.subject.steps
        config = config.updated(steps=first + self.subject.more if first else self.subject.steps)

        def program(comm):
            state = start_run(comm, config, task)
            model = state.strategy.model
            if start is not None:
                model.load_state_dict(start.state_dict())
            if masks:
                Masks(model, masks)
            state.first_step = first
            train_steps(comm, state, lambda step, loss: self.tick())
            return model
        return Cluster(1).run(program)[0][0]

    def keep(self, name: str, arrays: dict[str, np.ndarray], sizes: Sizes | None = None,
             **step: Any) -> None:
        """Write a version; `step` is its compression step, if it is not a plain model."""
        files.save(self.folder / name, files.Checkpoint(
            arrays, {}, {"sizes": sizes or {}, "compression": [step] if step else []}))

    def make(self) -> None:
        """Make all versions."""
        task, config = self.task({})
        dense = self.fit(task, config)
        self.keep("dense", dense.state_dict())
        self.keep("dense, more steps", self.fit(task, config, dense).state_dict())
        fit = partial(self.fit, task, config, dense)
        for amount in AMOUNTS:
            masks = prune(dense, magnitude(prunable_weights(dense)), amount)
            model = without_masks(fit(masks=masks))
            self.keep(pruned(amount), pack_masked(model.state_dict(), masks), kind=PRUNED)
            if amount == ALSO_INT8:
                self.keep_quantized(f"{pruned(amount)} + int8", model)
        masks = {name: n_of_m(s) for name, s in magnitude(prunable_weights(dense)).items()}
        two_of_four = without_masks(fit(masks=masks))
        self.keep("2:4", pack_masked(two_of_four.state_dict(), masks), kind=PRUNED)
        self.structured(dense)
        calibration = [task.batches.batch(i)[0] for i in range(CALIBRATION_BATCHES)]
        self.rounded(dense, calibration)
        self.students(dense)

    def structured(self, dense: Module) -> None:
        """Remove half of the neurons and heads."""
        masked = without_masks(dense)
        Masks(masked, unit_masks(masked, 0.5))
        small, _ = shrink(masked)
        sizes = sizes_as_options(describe_model(small))
        self.keep("structured 50 %", self.fit(*self.task(sizes), small).state_dict(), sizes)

    def rounded(self, dense: Module, calibration: list[np.ndarray]) -> None:
        """Quantize without training."""
        for name, options in {
                "int8": {}, "int8, inputs too": {"activations": True}, "int4": {"grid": IntGrid(4)},
                "int4, GPTQ": {"grid": IntGrid(4), "method": "gptq"},
                **{name: {"grid": grid} for name, grid in FLOAT_GRIDS.items()}}.items():
            self.keep_quantized(name, without_masks(dense), calibration=calibration, **options)

    def keep_quantized(self, name: str, model: Module, **options: Any) -> None:
        """Write a version of `model`, which changes, as `minipar quantize` does."""
        arrays, step = pack_quantized(quantize(model, **options))
        self.keep(name, arrays, **step)

    def students(self, dense: Module) -> None:
        """Train a small model on labels alone, and with the dense one as its teacher."""
        task, config = self.task(self.subject.student)
        self.keep("small, from labels", self.fit(task, config).state_dict(), self.subject.student)
        recipe = make_recipe(task.build(), dense, TEMPERATURE, ALPHA)
        teacher = LocalTeacher(without_masks(dense), recipe)
        taught = TaskWithModel(task, lambda: Distillation(task.build(), teacher, recipe))
        self.keep("small, distilled", self.fit(taught, config).student.state_dict(),
                  self.subject.student)
