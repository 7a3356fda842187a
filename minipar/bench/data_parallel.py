"""Data parallelism on two real ranks: how much faster than minipar on one?

    alone      rank 0 trains on 8 samples, rank 1 sleeps             T₁
    weak       each rank has 8 samples of its own, slab form         scaling 2 T₁ / T
    strong     the same 8 samples, 4 on each rank                    scaling   T₁ / T
    ceiling    as weak and strong, but no rank sends anything: what two busy cores leave of each
"""

import time

import numpy as np

from ..backend import keep_freed_memory
from ..comm import Communicator
from ..comm.collectives import all_reduce
from ..nn import GPT
from ..parallel.data import all_reduce_gradients
from .gpt import BATCH, CONFIG, make_batch, make_step
from .timing import Row, interleave, medians, milliseconds


def measure(comm: Communicator, num_rounds: int) -> list[Row]:
    """The rows, on rank 0; `comm` has two ranks."""
    keep_freed_memory()
    ids, targets = make_batch(2 * BATCH)
    whole = slice(comm.rank * BATCH, (comm.rank + 1) * BATCH)               # 8 of 16 samples
    half = slice(comm.rank * BATCH // 2, (comm.rank + 1) * BATCH // 2)      # 4 of the first 8

    def make(part: slice, exchanges: bool):
        exchange = (lambda model: all_reduce_gradients(model, comm)) if exchanges else None
        return make_step(GPT(CONFIG).initialize(seed=0), ids[part], targets[part], exchange)

    steps = {"alone": make(whole, False) if comm.rank == 0 else lambda: None,
             "weak": make(whole, True), "weak ceiling": make(whole, False),
             "strong": make(half, True), "strong ceiling": make(half, False)}
    times = interleave(steps, num_rounds, before=lambda: _meet(comm))
    slowest = all_reduce(comm, np.array(list(times.values())), op="max")
    if comm.rank:
        return []
    seconds = medians(dict(zip(times, slowest.tolist())))
    return [_row(seconds, kind, size, target)
            for kind, size, target in (("weak", 2, 1.85), ("strong", 1, 1.75))
            for kind, target in ((kind, target), (f"{kind} ceiling", None))]


def _row(seconds: dict[str, float], kind: str, size: int, target: float | None) -> Row:
    """Scaling of work that is `size` times that of one rank."""
    alone, together = seconds["alone"], seconds[kind]
    tokens = size * BATCH * CONFIG.context
    per_rank = size * BATCH // 2
    what = "  ceiling: two processes computing without messages" if target is None \
        else f"GPT on 2 ranks, {per_rank} samples each ({kind} scaling)"
    return Row(what, f"{milliseconds(together)}, {tokens / together:,.0f} tokens/s",
               f"1 rank {milliseconds(alone)}", size * alone / together, target)


def _meet(comm: Communicator) -> None:
    """Both ranks start the next step together; who came first sleeps, and takes no one's cycles."""
    other, token = 1 - comm.rank, np.zeros(1, np.uint8)
    answer = np.empty_like(token)
    arriving = comm.irecv(answer, other)
    comm.send(token, other)
    while not arriving.test():
        time.sleep(2e-4)
    comm.sendrecv(token, other, answer, other)
