"""Data parallelism on two real ranks: its speed-up over one rank, and its strategies.

    alone      rank 0 trains on 8 samples, rank 1 sleeps             T₁
    weak       each rank has 8 samples of its own                    scaling 2 T₁ / T
    strong     the same 8 samples, 4 on each rank                    scaling   T₁ / T
    ceiling    as weak and strong, without messages: the effect of two busy cores on each other

All strategies compute the same step, so each is compared with DDP.
"""

from collections.abc import Callable

import numpy as np

from minipar.backend.malloc import keep_freed_memory
from minipar.comm import Communicator
from minipar.nn import GPT
from minipar.optim import AdamW
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch

from ..gpt import BATCH, CONFIG, make_batch
from ..timing import Row, milliseconds, seconds_of_slowest

TARGETS = {"zero1": 0.97, "zero2": 0.97, "zero3": None, "fsdp": 0.92}      # DDP's time over theirs


def make_step(comm: Communicator, name: str, batch: Microbatch) -> Callable[[], float]:
    """A training step of the strategy of that name on the ranks of `comm`."""
    model = GPT(CONFIG).initialize(seed=0)
    strategy = make_strategy(name, model, comm)
    optimizer = AdamW(strategy.slabs, lr=1e-3)

    def step() -> float:
        optimizer.zero_grad()
        loss = strategy.forward_backward([batch])
        strategy.step(optimizer)
        return loss
    return step


def measure(comm: Communicator, num_rounds: int) -> list[Row]:
    """The rows, on rank 0; `comm` has two ranks."""
    keep_freed_memory()
    ids, targets = make_batch(2 * BATCH, CONFIG)

    def samples(first: int, count: int) -> Microbatch:
        rows = np.arange(first, first + count)
        return Microbatch(ids[rows], targets[rows], rows)
    whole = samples(comm.rank * BATCH, BATCH)                   # 8 of 16 samples
    half = samples(comm.rank * BATCH // 2, BATCH // 2)          # 4 of the first 8

    alone = comm.split(comm.rank)
    assert alone is not None            # every rank gave split a color
    steps = {"alone": make_step(alone, "ddp", whole) if comm.rank == 0 else lambda: None,
             "weak": make_step(comm, "ddp", whole), "strong": make_step(comm, "ddp", half),
             "weak ceiling": make_step(alone, "ddp", whole),
             "strong ceiling": make_step(alone, "ddp", half),
             **{name: make_step(comm, name, whole) for name in TARGETS}}
    seconds = seconds_of_slowest(comm, steps, num_rounds)
    if comm.rank:
        return []
    rows = [_row(seconds, kind, size, target)
            for kind, size, target in (("weak", 2, 1.90), ("strong", 1, 1.80))
            for kind, target in ((kind, target), (f"{kind} ceiling", None))]
    return rows + [Row(f"  {name}, {BATCH} samples each, against DDP", milliseconds(seconds[name]),
                       f"DDP {milliseconds(seconds['weak'])}", seconds["weak"] / seconds[name],
                       target) for name, target in TARGETS.items()]


def _row(seconds: dict[str, float], kind: str, size: int, target: float | None) -> Row:
    """Scaling of work that is `size` times that of one rank."""
    alone, together = seconds["alone"], seconds[kind]
    tokens = size * BATCH * CONFIG.context
    per_rank = size * BATCH // 2
    what = "  ceiling: two processes computing without messages" if target is None \
        else f"GPT, DDP on 2 ranks, {per_rank} samples each ({kind} scaling)"
    return Row(what, f"{milliseconds(together)}, {tokens / together:,.0f} tokens/s",
               f"1 rank {milliseconds(alone)}", size * alone / together, target)
