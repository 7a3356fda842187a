"""The subjects of the study: two models on real data, each with a training budget."""

from dataclasses import dataclass
from typing import Any

from ..train import TrainConfig
from ..train.check import checked

Sizes = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model, its data, its training `steps`, and the `more` steps of fine-tuning.

    `sizes` are options of `minipar train`; those of the `student` replace some of them.  A version
    that is worse by less than `margin` counts as not worse.  Qualities are multiples of `step`.
    """

    name: str
    quality: str                # "accuracy" or "bits per character"
    sizes: Sizes
    student: Sizes
    steps: int
    more: int
    margin: float
    step: float = 0.0
    repeats: int = 15           # timed forwards; the fastest counts

    @property
    def more_is_better(self) -> bool:
        """True if a larger quality is better."""
        return self.quality == "accuracy"

    def config(self, seed: int, **changes: Any) -> TrainConfig:
        """The configuration that trains this model, or one with other sizes."""
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
