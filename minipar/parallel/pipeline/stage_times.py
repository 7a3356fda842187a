"""Profile the parts of a model, to cut it into stages that take equally long.

    times = profile_parts(model, batch, comm)               seconds of F, I and W of each part
    cuts = cut_evenly([sum(time) for time in times], 4)     stages that take equally long
    simulate(schedule, stage_times(times, cuts))            the schedule with these times

The minimum of several runs counts: other work of the machine can only add time.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ...autograd import Tensor, backward
from ...backend import to_host
from ...comm import Communicator
from ...comm.collectives import broadcast
from ...nn import Module
from ...nn.chain import chain
from ...random import training_step
from ..expert.distribute_experts import moe_layers
from ..strategy import Microbatch
from .schedule.simulate import Times


def profile_parts(model: Module, batch: Microbatch, comm: Communicator,
                  repeats: int = 3) -> list[Times]:
    """The minimum seconds of each part over `repeats` runs, by rank 0's clock.  Collective.

    Call it before a strategy takes the model, of which it needs all parts.  Clears the gradients.
    """
    runs = np.array([_time_parts(model, batch, comm) for _ in range(repeats)])  # (repeat, part, 3)
    model.zero_grad()
    for layer in moe_layers(model).values():
        layer.forget_counts()
    with comm.labelled("control"):
        least = broadcast(comm, np.min(runs, axis=0))
    return [Times(*row) for row in to_host(least).tolist()]


def _time_parts(model: Module, batch: Microbatch, comm: Communicator) -> list[tuple]:
    parts, x, kept, times = chain(model), batch.inputs, [], []
    rows = len(batch.samples)
    with training_step(0, 0, batch.samples, shares=np.full(rows, 1 / max(rows, 1))):
        for part in parts:
            start = comm.now()
            y = part.apply(x)
            if part is parts[-1]:
                y = model.criterion(y, batch.targets)
            kept.append((x, y, comm.now() - start))
            x = Tensor(y.data, requires_grad=True)
    grad = None
    for x, y, forward in reversed(kept):
        start = comm.now()
        backward_weights = backward(y, grad, defer_weights=True)
        middle = comm.now()
        if backward_weights:
            backward_weights()
        times.append((forward, middle - start, comm.now() - middle))
        grad = x.grad if isinstance(x, Tensor) else None
    return times[::-1]


def stage_times(times: Sequence[Times], cuts: Sequence[int]) -> list[Times]:
    """The times of stages: the sums of their parts' times."""
    return [Times(*map(sum, zip(*times[start:stop])))
            for start, stop in pairwise([0, *cuts, len(times)])]
