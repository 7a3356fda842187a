"""What is studied: two models on real data, each with a budget of training."""

from dataclasses import dataclass
from typing import Any

from ..train import TrainConfig
from ..train.check import checked

Sizes = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model, its data and how long it is trained: `more` steps are those of fine-tuning.

    `sizes` and `student` are options of `minipar train`, those of the student besides.  What is
    worse by less than `margin` may still be called not worse; qualities are multiples of `step`.
    """

    name: str
    quality: str                # what is measured: "accuracy", or "bits per character"
    sizes: Sizes
    student: Sizes
    steps: int
    more: int
    margin: float
    step: float = 0.0
    repeats: int = 15           # forwards that are timed, of which the fastest counts

    @property
    def more_is_better(self) -> bool:
        """Whether larger numbers of quality are better ones."""
        return self.quality == "accuracy"

    def config(self, seed: int, **changes: Any) -> TrainConfig:
        """The configuration that trains this model, or one of other sizes."""
        return checked(TrainConfig().updated(**{**self.sizes, **changes}, steps=self.steps,
                                             seed=seed))


DIGITS, GPT = "digits MLP", "text GPT"
ACCURACY, BITS = "accuracy", "bits per character"
FULL = (
    Subject(DIGITS, ACCURACY, {"data": "digits", "hidden": "128,64", "batch": 64},
            {"hidden": "32,16"}, steps=300, more=150, margin=0.01, step=1 / 360, repeats=60),
    Subject(GPT, BITS, {"data": "docs", "layers": 2, "heads": 4, "width": 64, "context": 64,
                        "batch": 16}, {"layers": 1, "heads": 2, "width": 32}, steps=1200, more=300,
            margin=0.05),
)
QUICK = (
    Subject(DIGITS, ACCURACY, {"data": "digits", "hidden": "64,32", "batch": 32}, {"hidden": "8"},
            steps=40, more=10, margin=0.01, step=1 / 360, repeats=3),
    Subject(GPT, BITS, {"data": "docs", "layers": 1, "heads": 2, "width": 32, "context": 8,
                        "batch": 4}, {"layers": 1, "heads": 2, "width": 8}, steps=10, more=4,
            margin=0.05, repeats=3),
)
