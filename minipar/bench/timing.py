"""How things are timed: interleaved, so that whatever else the machine does hits all alike."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from types import ModuleType


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, `ours` against `theirs`, and the target.

    `at_least` says whether the ratio should be at least or at most the target.
    """

    what: str
    ours: str
    theirs: str = ""
    ratio: float | None = None
    target: float | None = None
    at_least: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the target; None where there is nothing to compare."""
        if self.ratio is None or self.target is None:
            return None
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target


def interleave(steps: dict[str, Callable[[], object]], num_rounds: int, num_warmup: int = 3,
               before: Callable[[], None] | None = None) -> dict[str, list[float]]:
    """Seconds of each step, over rounds in which every step runs once, in turn.

    `before` is called before each step and not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(num_warmup + num_rounds):
        for name, step in steps.items():
            if before is not None:
                before()
            start = time.perf_counter()
            step()
            if i >= num_warmup:
                times[name].append(time.perf_counter() - start)
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """The median of each list."""
    return {name: median(values) for name, values in times.items()}


def import_torch() -> ModuleType | None:
    """PyTorch, told to use one thread; None if it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    return torch


def milliseconds(seconds: float) -> str:
    """With three or four digits; microseconds where there are few."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.{1 if seconds < 1e-4 else 0}f} µs"
    return f"{seconds * 1e3:.{1 if seconds > 0.01 else 2}f} ms"


def check_same(what: str, steps: dict[str, Callable[[], float]]) -> None:
    """Run every step once.  Raises AssertionError unless all return the same loss."""
    losses = {name: step() for name, step in steps.items()}
    first = next(iter(losses.values()))
    assert all(math.isclose(loss, first, rel_tol=1e-4) for loss in losses.values()), \
        f"{what}: these should be the same computation, but their losses differ: {losses}"
