"""A training step under a trace and a ledger, and models whose sizes do or do not divide by p."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from minipar.comm.mpi.communicator import MPICommunicator
from minipar.comm.simulated import SimulatedCommunicator
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW
from minipar.parallel.strategy import Microbatch
from tests.support.cases import ALL

TIME = 4
# 12 divides the size of every parameter of the first, and of few of the second
EXACT = GPTConfig(24, context=12, num_layers=3, num_heads=2, width=24)
UNEVEN = GPTConfig(11, context=6, num_layers=3, num_heads=2, width=10)
CONFIGS = {"divides": EXACT, "uneven": UNEVEN}


def rings_only(monkeypatch) -> None:
    """Let "auto" take the ring for messages of any size, as the formulas assume."""
    for kind in (SimulatedCommunicator, MPICommunicator):
        monkeypatch.setattr(kind, "choose", lambda self, operation, num_bytes: None)


def step(comm, strategy, optimizer, k: int = 1, rows: int = 2) -> None:
    """One training step of k microbatches of `rows` rows for each rank."""
    draw, total = np.random.default_rng(0), rows * comm.size
    ids = draw.integers(0, 11, (total, TIME))
    mine = np.array(strategy.rows(total), dtype=int)
    optimizer.zero_grad()
    strategy.forward_backward([Microbatch(ids[mine], ids[mine], mine)] * k)
    strategy.step(optimizer)


def counted(comm, name: str, config: GPTConfig, k: int = 1) -> tuple[Counter, list[int]]:
    """Bytes that this rank sends in a step by label, and the sizes of the buckets, if any."""
    strategy = ALL[name](GPT(config).initialize(0), comm)
    optimizer = AdamW(strategy.slabs)
    for _ in range(2):              # in the first step FSDP does not prefetch
        comm.start_trace()
        step(comm, strategy, optimizer, k)
        trace = comm.stop_trace()
    sent: Counter[str] = Counter()
    for message in trace.select() + trace.select(label="control"):
        assert message.source == comm.world_rank
        sent[message.label] += message.num_bytes
    return sent, [flat.size for flat in strategy.flats]


class Recorded(NamedTuple):
    """Bytes of some steps: peaks and what is left by kind; the peak of all but activations."""

    peak_of: Counter
    left: Counter
    peak: int
    buckets: list[int]


def recorded(comm, name: str, config: GPTConfig, num_steps: int = 2) -> Recorded:
    """The memory of the steps of a strategy; that of building it is not counted."""
    ledger = Ledger(now=comm.now)
    with ledger.recording():
        strategy = ALL[name](GPT(config).initialize(0), comm)
        optimizer = AdamW(strategy.slabs)
        ledger.forget_peaks()
        start, now = len(ledger.history), Counter(ledger.live_of)       # no activations yet
        for _ in range(num_steps):
            step(comm, strategy, optimizer)
        optimizer.zero_grad()
    now["activations"], peak = 0, now.total()
    for _, kind, num_bytes in ledger.history[start:]:
        if kind != "activations":
            now[kind] = num_bytes
            peak = max(peak, now.total())
    buckets = [flat.size for flat in strategy.flats]
    return Recorded(ledger.peak_of, Counter(ledger.live_of), peak, buckets)
