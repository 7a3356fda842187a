"""What every task brings: a model, the batches it is trained on, and a score on unseen data."""

import math
from typing import NamedTuple, Protocol

import numpy as np

from ..data import Batches, TextBatches
from ..nn import Module


class Score(NamedTuple):
    """The loss of a model on data it has not seen, and of a classifier also its accuracy."""

    nats: float
    accuracy: float | None = None

    @property
    def bits(self) -> float:
        """The loss in bits."""
        return self.nats / math.log(2)


class Task(Protocol):
    """A model to train and the data to train it on."""

    batches: TextBatches | Batches  # reading them may raise UsageError: the data may be gone
    target: str                     # what one target is: a character, a token, an image
    unseen: str                     # the data of the score, in words
    targets_per_sample: int

    def build(self) -> Module:
        """A new model, without numbers."""

    def trained_part(self, model: Module) -> Module:
        """The part of a model that computes in the precision of the run: by default all."""
        return model

    def describe(self) -> dict:
        """The entries of a checkpoint's description about the model and the data."""

    def progress(self, step: int) -> dict:
        """The entries of a description about the data that are used up before `step`."""
        return {}

    def go_on(self, description: dict) -> None:
        """Begin with the data that a run has not used, whose checkpoint has this description.

        Raises UsageError if that cannot be.
        """

    def example_inputs(self) -> np.ndarray:
        """Inputs of the shape of a batch, made without reading the data."""

    def reference_loss(self) -> tuple[float, str]:
        """A loss in nats to compare with, and its name."""

    def score(self, model: Module) -> Score:
        """The score of the model on data it has not seen."""

    def summary(self, model: Module) -> tuple[Score, str]:
        """A quick score, and one line on it."""
