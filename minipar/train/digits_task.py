"""An MLP on handwritten digits, each sample once an epoch: also in a run that is resumed."""

import math

import numpy as np

from ..autograd import no_grad
from ..data import Batches, digits
from ..launcher import UsageError
from ..nn import MLP
from .config import DataConfig, TrainConfig
from .setup.mlp_sizes import sizes_of_mlp
from .task import Score, Task


class DigitsTask(Task):
    """Recognize handwritten digits with an MLP."""

    target, targets_per_sample, unseen = "image", 1, "handwritten digits it has not seen"

    def __init__(self, config: TrainConfig):
        self.config, self.data = config, digits()
        self.sizes = [self.data.train_x.shape[1], *hidden_sizes(config), 10]
        self.batches = self._batches(config.data.batch)

    def _batches(self, batch_size: int) -> Batches:
        x = self.data.train_x.astype(self.config.precision.dtype)
        return Batches(x, self.data.train_y, batch_size, self.config.run.seed)

    def build(self) -> MLP:
        return MLP(self.sizes, self.config.model.activation, self.config.model.dropout)

    def describe(self) -> dict:
        return {"data": "digits",
                "model": sizes_of_mlp(self.sizes, self.config.model.activation)}

    def progress(self, step: int) -> dict:
        return {"samples": self.batches.first_sample(step)}

    def go_on(self, description: dict) -> None:
        step, samples = description["step"], description.get("samples")
        if samples is None:         # older checkpoints: all steps had the batch of the last one
            batch_size = description["config"].get("data", {}).get("batch", DataConfig().batch)
            samples = self._batches(batch_size).first_sample(step)
        if samples % len(self.data.train_x) and description["seed"] != self.config.run.seed:
            raise UsageError(f"--seed {self.config.run.seed} would begin another order of samples "
                             f"within an epoch, which began with seed {description['seed']}: leave "
                             "--seed out")
        self.batches = self.batches.continued(step, samples)

    def example_inputs(self) -> np.ndarray:
        return self.batches.batch(0)[0]

    def reference_loss(self) -> tuple[float, str]:
        return math.log(10), "guessing evenly"

    def score(self, model: MLP) -> Score:
        with no_grad():
            logits = model.logits(self.data.test_x.astype(self.config.precision.dtype))
            nats = float(model.criterion(logits, self.data.test_y).data)
        correct = np.argmax(logits.data, axis=1) == self.data.test_y
        return Score(nats, float(np.mean(correct)))

    def summary(self, model: MLP) -> tuple[Score, str]:
        score = self.score(model)
        return score, (f"{score.accuracy:.1%} of {len(self.data.test_y)} digits it has not seen "
                       "are recognized")


def hidden_sizes(config: TrainConfig) -> list[int]:
    """--hidden as numbers.  Raises UsageError for another text."""
    text = config.model.hidden
    sizes = text.split(",") if text else []
    if any(not size.isdecimal() or int(size) < 1 for size in sizes):
        raise UsageError("--hidden takes sizes separated by commas, for example 128,64, not "
                         f"{text!r}")
    return [int(size) for size in sizes]
