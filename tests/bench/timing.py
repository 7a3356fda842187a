"""Timing of interleaved steps, so that other load on the machine slows all of them alike."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np

from minipar.comm import Communicator
from minipar.comm.collectives import all_reduce


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, `ours` against `theirs`, and the target.

    The ratio should be at least the target, or at most, if not `at_least`.
    """

    what: str
    ours: str
    theirs: str = ""
    ratio: float | None = None
    target: float | None = None
    at_least: bool = True
    has_failed: bool = False

    @classmethod
    def failed(cls, name: str, why: str) -> "Row":
        """The row that takes the place of those that the measurement `name` did not reach."""
        return cls(name, "failed", why, has_failed=True)

    @property
    def met(self) -> bool | None:
        """True if the ratio reaches the target; None without a ratio or a target."""
        if self.ratio is None or self.target is None:
            return None
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target


def training_step(optimizer: Any, compute_loss: Callable[[], Any]) -> Callable[[], float]:
    """A training step that returns the loss, of minipar or of PyTorch."""
    def step() -> float:
        optimizer.zero_grad()
        loss = compute_loss()
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


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


def meet(comm: Communicator) -> None:
    """Let both ranks start the next step together; the first to arrive sleeps, and uses no core."""
    other, token = 1 - comm.rank, np.zeros(1, np.uint8)
    answer = np.empty_like(token)
    arriving = comm.irecv(answer, other)
    comm.send(token, other)
    while not arriving.test():
        time.sleep(2e-4)
    comm.sendrecv(token, other, answer, other)


def seconds_of_slowest(comm: Communicator, steps: dict[str, Callable[[], object]],
                       num_rounds: int) -> dict[str, float]:
    """The median, over interleaved rounds, of each step's seconds on the slower of two ranks."""
    times = interleave(steps, num_rounds, before=lambda: meet(comm))
    slowest = all_reduce(comm, np.array(list(times.values())), op="max")
    return medians(dict(zip(times, slowest.tolist())))


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
    """Seconds as text in ms, or in µs if there are few."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.{1 if seconds < 1e-4 else 0}f} µs"
    return f"{seconds * 1e3:.{1 if seconds > 0.01 else 2}f} ms"


def check_same(what: str, steps: dict[str, Callable[[], float]]) -> None:
    """Run every step once.  Raises AssertionError unless all return the same loss."""
    losses = {name: step() for name, step in steps.items()}
    first = next(iter(losses.values()))
    assert all(math.isclose(loss, first, rel_tol=1e-4) for loss in losses.values()), \
        f"{what}: these should be the same computation, but their losses differ: {losses}"
