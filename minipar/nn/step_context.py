"""The training step that is computed now: dropout and routers of experts ask for it.

    with training_step(seed, step, samples):        dropout is active, its masks those of the step
        loss = model.loss(inputs, targets)

Outside of it, in evaluation and generation, dropout does nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """The training step as layers see it: dropout and routers of experts need it.

    `samples` holds the global sample number of each row of the current microbatch.  `shares`, if
    given, holds the part of each row in the loss of the whole batch: its targets / all
    targets, times the loss scale.
    `sum_over_samples` sums an array of float64 over the ranks that have other samples.  `routed`
    notes what routers have counted, so that a recomputed forward counts nothing twice.
    """

    seed: int
    step: int
    samples: np.ndarray
    shares: np.ndarray | None = None    # (rows,), on the device of the model
    sum_over_samples: Callable[[np.ndarray], np.ndarray] = lambda counts: counts
    routed: dict = field(default_factory=dict)


# A context variable, because every rank of the simulated cluster has a context of its own.
_step: ContextVar[TrainingStep | None] = ContextVar("training_step", default=None)


def current_step() -> TrainingStep | None:
    """The training step of this context; None outside of one, where dropout does nothing."""
    return _step.get()


@contextmanager
def training_step(seed: int, step: int, samples: Sequence[int] | np.ndarray,
                  **for_routers: Callable | np.ndarray) -> Iterator[TrainingStep]:
    """Context in which dropout is active, for the `samples` (global numbers) of this batch.

    `for_routers`: the fields `shares` and `sum_over_samples` of TrainingStep, by their names.
    Routers need them, since their losses are averages over the whole batch.
    """
    token = _step.set(TrainingStep(seed, step, np.array(samples, dtype=np.int64), **for_routers))
    try:
        yield _step.get()
    finally:
        _step.reset(token)


def row_shares(targets: np.ndarray, ignore_index: int, loss_divisor: float) -> np.ndarray:
    """The share of each row in the batch's loss (rows,): its targets / `loss_divisor`."""
    counts = targets != ignore_index
    return counts.sum(axis=tuple(range(1, counts.ndim))) / loss_divisor
