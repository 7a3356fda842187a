"""The start of a run: initial values, or a checkpoint, perhaps of a pruned model.

    seed ───────▶ initialize ─┐
                              ├─▶ masks on ─▶ the model that a strategy takes
    checkpoint ─▶ its arrays ─┘
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...backend import Array
from ...checkpoint_file import Checkpoint
from ...compress.load import check_size, compression_steps
from ...compress.pruning.masks import Masks
from ...compress.pruning.serialization import compact
from ...nn import Module
from ..config import TrainConfig


@dataclass
class Compression:
    """The compression of a model that is trained: its steps, and the masks of pruned weights.

    A mask is True where a weight is kept.  `kept` are the masks of whole parameters, by name;
    `masks` are those on this rank's model.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, np.ndarray] = field(default_factory=dict)
    masks: Masks | None = None

    def attach(self, model: Module) -> None:
        """Put the masks on a model, before a strategy takes it."""
        self.masks = Masks(model, self.kept) if self.kept else None

    def export(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint as a file has it: without pruned values, with the steps described."""
        if self.steps:
            checkpoint = replace(checkpoint, description={
                **checkpoint.description, "compression": self.steps})
        return compact(checkpoint, self.kept)


@dataclass(frozen=True)
class StartingPoint:
    """The source of a run's parameters: a checkpoint, or without one the seed."""

    checkpoint: Checkpoint | None = None
    compression: Compression = field(default_factory=Compression)

    @classmethod
    def of(cls, checkpoint: Checkpoint, kept: dict[str, np.ndarray]) -> "StartingPoint":
        """A checkpoint with whole arrays, and the masks that it has."""
        return cls(checkpoint, Compression(compression_steps(checkpoint), kept))

    @property
    def step(self) -> int:
        """The number of steps that are done."""
        return self.checkpoint.description["step"] if self.checkpoint else 0

    def fill(self, model: Module, config: TrainConfig, array: Array) -> None:
        """Initialize or load the parameters on the device of `array`; attach the masks.

        Raises ValueError if the checkpoint is of a model of a different size.
        """
        dtype = np.dtype(config.precision.dtype)
        if self.checkpoint is None:
            model.initialize(config.run.seed, dtype, array)
        else:
            check_size(model, self.checkpoint.model)
            model.to_empty(dtype, array)
            model.load_state_dict(self.checkpoint.model)
        self.compression.attach(model)
