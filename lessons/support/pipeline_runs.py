"""What lessons 11 to 13 observe of a batch that goes through stages; every rank calls these."""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from statistics import median
from typing import NamedTuple

import numpy as np

from minipar.autograd import backward
from minipar.comm import Cluster, Communicator, Trace
from minipar.comm.collectives import agree_on_sum, all_reduce
from minipar.launcher import metered
from minipar.memory.ledger import Ledger
from minipar.nn import Module
from minipar.parallel.pipeline import Timeline, Times, make_schedule
from minipar.parallel.pipeline.executor import Pipeline
from minipar.parallel.strategy import Microbatch, Strategy


class Observed(NamedTuple):
    """A batch: this rank's trace, and what all ranks together did."""

    trace: Trace
    loss: float
    sent: int           # bytes, bookkeeping apart
    seconds: float      # from the first computation to the last
    busy: float         # share of the ranks' time in which they computed


def observe(comm: Communicator, batch: Callable[[], float]) -> Observed:
    """Call batch(), which returns the loss, once to warm up, and once more observed."""
    batch()
    comm.start_trace()
    loss = metered(lambda comm: batch())(comm)
    trace = comm.stop_trace()
    spans = trace.named_spans()
    ends = np.array([-min(s.start for s in spans), max(s.end for s in spans)], float)
    seconds = float(np.sum(all_reduce(comm, ends, "max")))
    worked = agree_on_sum(comm, sum(s.end - s.start for s in spans))
    return Observed(trace, loss, round(agree_on_sum(comm, trace.bytes_sent())), seconds,
                    worked / seconds / comm.size)


def on_free_links(comm: Communicator,
                  program: Callable[[Communicator], Observed]) -> Observed | None:
    """What program(comm) would be if no rank shared its device and messages took no time.

    Simulated ranks, whose device is as fast as this machine: the best of three runs says how fast.
    The trace has all ranks.  None if `comm` is simulated itself, and on every rank but 0.
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
    """Gradients of the microbatches, from zero; returns the loss."""
    def batch() -> float:
        for slab in strategy.slabs:
            slab.zero_grad()
        return strategy.forward_backward(batches)
    return batch


def serial(model: Module, batches: Sequence[Microbatch]) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the gradients of one process, computed by every rank for itself."""
    num_targets = float(sum(len(batch.targets) for batch in batches))
    loss = 0.0
    for batch in batches:
        part = model.loss(batch.inputs, batch.targets, num_targets)
        backward(part)
        loss += part.item()
    return loss, {name: p.grad for name, p in model.named_parameters()}


def distance(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The largest difference of any gradient, relative to the largest."""
    assert found
    largest = max(np.max(np.abs(g)) for g in expected.values())
    return float(max(np.max(np.abs(found[name] - expected[name])) for name in found) / largest)


def gradients(strategy: Strategy) -> dict[str, np.ndarray]:
    """Of all stages, on every rank."""
    return {name: g for slab in strategy.slabs for name, g in slab.named(slab.grad).items()}


class Run(NamedTuple):
    """A batch through a schedule."""

    strategy: Pipeline
    seen: Observed
    timeline: Timeline | None       # on rank 0
    activations: int                # bytes at their peak on this rank


def run(comm: Communicator, name: str, model: Module, batches: Sequence[Microbatch]) -> Run:
    """Through the schedule of that name a batch to be timed, and one more to weigh activations."""
    strategy = Pipeline(model, comm, partial(make_schedule, name, comm.size))
    step = step_of(strategy, batches)
    seen = observe(comm, step)
    timeline = strategy.timeline(seen.trace)
    ledger = Ledger(p for slab in strategy.slabs for p in slab.parameters)
    with ledger.recording():
        step()
    return Run(strategy, seen, timeline, ledger.peak_of["activations"])


def times_of(timeline: Timeline) -> list[Times]:
    """What forward and backward of each stage took, the median of its microbatches.

    Where backward is done in one, it counts as the gradient of the input.
    """
    taken: dict[tuple[int, str], list[float]] = {}
    for i in timeline.intervals:
        taken.setdefault((i.stage, i.kind), []).append(i.end - i.start)
    return [Times(median(taken[s, "F"]), median(taken.get((s, "B")) or taken[s, "I"]),
                  median(taken.get((s, "W"), [0]))) for s, kind in sorted(taken) if kind == "F"]


def typical(timeline: Timeline) -> Times:
    """The least that a stage took for a microbatch, of the stages the median: free of waiting.

    Where backward is done in one, it counts as the gradient of the input.
    """
    def seconds(*kinds: str) -> float:
        least = [min((i.end - i.start for i in row if i.kind in kinds), default=0.0)
                 for row in timeline.rows()]
        return median(least)
    return Times(seconds("F"), seconds("I", "B"), seconds("W"))


def from_rank_0(comm: Communicator, value: float | None) -> float:
    """Rank 0's number, for all."""
    return agree_on_sum(comm, 0.0 if value is None else value)
