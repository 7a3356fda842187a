"""Lessons 11 to 13: run batches through pipeline stages and measure them; all ranks call these."""

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from minipar.autograd import backward
from minipar.comm import Cluster, Communicator, Trace
from minipar.comm.collectives import all_reduce, sum_over_ranks
from minipar.comm.mesh import DeviceMesh
from minipar.launcher import metered
from minipar.memory.ledger import Ledger
from minipar.nn import Module
from minipar.parallel.pipeline.schedule.timeline import Timeline
from minipar.parallel.strategy import Microbatch, Strategy

from .kept_trace import stop_trace


class Observed(NamedTuple):
    """The measurements of a batch: this rank's trace, and totals of all ranks."""

    trace: Trace
    loss: float
    sent: int           # bytes, without bookkeeping
    seconds: float      # from the first computation to the last
    busy: float         # fraction of the ranks' time in which they computed


def observe(comm: Communicator, batch: Callable[[], float]) -> Observed:
    """Call batch(), which returns the loss, once to warm up, and once measured."""
    batch()
    comm.start_trace()
    loss = metered(lambda comm: batch())(comm)
    trace = stop_trace(comm)
    spans = trace.named_spans()
    ends = np.array([-min(s.start for s in spans), max(s.end for s in spans)], float)
    seconds = float(np.sum(all_reduce(comm, ends, "max")))
    worked = sum_over_ranks(comm, sum(s.end - s.start for s in spans))
    return Observed(trace, loss, round(sum_over_ranks(comm, trace.bytes_sent())), seconds,
                    worked / seconds / comm.size)


def on_free_links(comm: Communicator,
                  program: Callable[[Communicator], Observed]) -> Observed | None:
    """The result of program(comm) if no rank shared its device and messages took no time.

    It runs on simulated ranks whose devices are as fast as this machine in the best of three runs.
    The trace has all ranks.  None if `comm` is simulated, and on ranks other than 0.
    """
    if comm.rank or comm.is_simulated:
        return None

    def run(speed: float, clock: str) -> list[Observed]:
        return Cluster(comm.size, latency=0.0, bandwidth=inf, flops_per_second=speed,
                       memory_bandwidth=speed, clock=clock).run(program)[0]

    def work(seen: list[Observed]) -> float:
        return seen[0].busy * seen[0].seconds
    really = min(work(run(1.0, "wall")) for _ in range(3))
    seen = run(work(run(1.0, "model")) / really, "model")
    return seen[0]._replace(trace=Trace.merged(one.trace for one in seen))


def step_of(strategy: Strategy, batches: Sequence[Microbatch]) -> Callable[[], float]:
    """A function that computes the microbatches' gradients, from zero, and returns the loss."""
    def batch() -> float:
        for slab in strategy.slabs:
            slab.zero_grad()
        return strategy.forward_backward(batches)
    return batch


def serial(model: Module, batches: Sequence[Microbatch]) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and gradients of one process; every rank computes them alone."""
    num_targets = float(sum(len(batch.targets) for batch in batches))
    loss = 0.0
    for batch in batches:
        part = model.loss(batch.inputs, batch.targets, num_targets)
        backward(part)
        loss += part.item()
    return loss, {name: p.grad for name, p in model.named_parameters()}


def distance(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The largest difference of any gradient, relative to the largest gradient."""
    assert found
    largest = max(np.max(np.abs(g)) for g in expected.values())
    return float(max(np.max(np.abs(found[name] - expected[name])) for name in found) / largest)


def gradients(strategy: Strategy) -> dict[str, np.ndarray]:
    """This rank's gradients, by name."""
    return strategy.slabs.gradients()


class Run(NamedTuple):
    """The measurements of a batch that ran by a schedule."""

    strategy: Strategy
    seen: Observed
    timeline: Timeline | None       # on rank 0
    activations: int                # bytes at their peak on this rank


def run(comm: Communicator, name: str, model: Module, batches: Sequence[Microbatch]) -> Run:
    """Run the schedule `name` once to time it, and once more to count activations."""
    strategy = Strategy(model, DeviceMesh(comm, pp=comm.size), schedule=name)
    step = step_of(strategy, batches)
    seen = observe(comm, step)
    timeline = strategy.pipeline.timeline(seen.trace)
    ledger = Ledger(p for slab in strategy.slabs for p in slab.parameters)
    with ledger.recording():
        step()
    return Run(strategy, seen, timeline, ledger.peak_of["activations"])
