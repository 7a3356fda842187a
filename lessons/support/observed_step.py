"""Lessons 07 to 10: one training step of a GPT with a data-parallel strategy, measured."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np

from minipar.comm import Communicator
from minipar.comm.collectives import all_reduce
from minipar.launcher import metered
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig, Module
from minipar.optim import AdamW
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.parallel.wire_formats.wire import Wire
from minipar.viz.timelines.memory_timeline import MemoryStep, peak_of, phase_starts

from .kept_trace import stop_trace
from .measuring import total

STATES = ("parameters", "optimizer states", "gradients", "communication")   # not activations
ROWS = 2                    # of a microbatch, on each rank


class RingWire(Wire):
    """Sums buckets by the ring all-reduce, whatever their size."""

    all_reduce = staticmethod(partial(all_reduce, algorithm="ring"))


class Step(NamedTuple):
    """The measurements; bytes count STATES, since activations are equal in all strategies."""

    strategy: Strategy
    kept: int               # bytes on this rank before the step
    peak: int               # most bytes on this rank during the step
    sent: int               # bytes that all ranks sent, without bookkeeping
    seconds: float          # the median of a few steps, on this rank
    memory: MemoryStep      # of this rank, for the picture


def observe(comm: Communicator, config: GPTConfig, make: Callable[[Module, Communicator], Strategy],
            num_microbatches: int = 1, num_timed: int = 3) -> Step:
    """Train a GPT with the strategy make(model, comm): time some steps, and measure one more."""
    ids = np.random.default_rng(comm.rank).integers(0, config.vocab_size,
                                                    (ROWS, config.context + 1))
    batches = [Microbatch(ids[:, :-1], ids[:, 1:], np.arange(ROWS))] * num_microbatches
    ledger = Ledger(now=comm.now)
    with ledger.recording():                # before the model exists: its arrays count, too
        strategy = make(GPT(config).initialize(), comm)
        optimizer = AdamW(strategy.slabs)

    def step(comm: Communicator) -> float:
        begun = comm.now()
        optimizer.zero_grad()
        strategy.forward_backward(batches)
        strategy.step(optimizer)
        return comm.now() - begun
    times = [step(comm) for _ in range(1 + num_timed)]      # the first is slower
    kept, begun = sum(ledger.live_of[kind] for kind in STATES), comm.now()
    comm.start_trace()
    with ledger.recording():
        metered(step)(comm)
    ended, trace = comm.now(), stop_trace(comm)
    memory = MemoryStep("", ledger.history, begun, ended, phases=phase_starts(trace, comm.rank))
    return Step(strategy, kept, peak_of(memory, STATES)[1], total(comm, trace.bytes_sent()),
                median(times[1:] or times), memory)
