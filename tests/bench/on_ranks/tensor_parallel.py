"""Tensor parallelism on two real ranks: the share of a step that its messages take.

    tp = 2     the GPT of the other groups, each rank with half of heads, columns and vocabulary:
               2 + 2 all-reduces of 8 × 128 × 256 numbers (1 MiB) a layer
    silent     the same halves, both ranks at the same time, but nothing is sent or summed: the
               effect of two busy cores on each other (as many numbers, without meaning)
    annotated  the plain model, cut by GSPMD as three annotated weights say: the same layout
    alone      the whole model on rank 0, while rank 1 sleeps

The difference between `tp = 2` and `silent` is the cost of its messages.
"""

from collections.abc import Callable

import numpy as np

from minipar.autograd import Tensor
from minipar.backend import Array
from minipar.backend.malloc import keep_freed_memory
from minipar.comm import Communicator
from minipar.comm.mesh import DeviceMesh
from minipar.comm.subgroup import Subgroup
from minipar.gspmd import P, shard
from minipar.nn import GPT
from minipar.optim import AdamW
from minipar.parallel.tensor.layers import TensorSplit
from minipar.parallel.tensor.parallelize import split_model

from ..gpt import BATCH, CONFIG, make_batch, make_step
from ..timing import Row, check_same, milliseconds, seconds_of_slowest, training_step


class Silent(Subgroup):
    """A communicator without communication: each rank receives its own messages."""

    def __init__(self, comm: Communicator):
        super().__init__(comm, range(comm.size))

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """Copy `array` to `out`."""
        out[...] = array


class SilentSplit(TensorSplit):
    """A split whose sums over ranks are left out."""

    def enter(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def leave(self, y: Tensor) -> Tensor:
        """Return y, this rank's part of the sum."""
        return y


def make_model(comm: Communicator) -> GPT:
    """The GPT, split over the ranks of `comm`."""
    split = (SilentSplit if isinstance(comm, Silent) else TensorSplit)(comm)
    return split_model(GPT(CONFIG), split).initialize(seed=0)


ANNOTATIONS = {"wte.weight": P("tp"), "h.*.attn.c_attn.weight": P(None, "tp"),
               "h.*.mlp.c_fc.weight": P(None, "tp")}


def annotated_step(comm: Communicator, ids: np.ndarray, targets: np.ndarray
                   ) -> Callable[[], float]:
    """The training step of a model that GSPMD cuts."""
    def loss(model: GPT, ids: Array, targets: Array) -> Tensor:
        return model.loss(ids, targets, loss_divisor=float(BATCH * CONFIG.context))

    run = shard(loss, ids, targets, model=GPT(CONFIG), annotations=ANNOTATIONS,
                mesh=DeviceMesh(comm, tp=comm.size)).initialize(seed=0)
    return training_step(AdamW(run.slabs, lr=1e-3), lambda: run(ids, targets))


def measure(comm: Communicator, num_rounds: int) -> list[Row]:
    """The rows, on rank 0; `comm` has two ranks."""
    keep_freed_memory()
    ids, targets = make_batch(BATCH, CONFIG)
    alone = make_step(GPT(CONFIG).initialize(seed=0), ids, targets)
    together = make_step(make_model(comm), ids, targets)
    silent = make_step(make_model(Silent(comm)), ids, targets)
    annotated = annotated_step(comm, ids, targets)
    check_same("a step on two ranks", {"alone": alone, "tp = 2": together,
                                       "annotated": annotated})
    steps = {"tp = 2": together, "silent": silent, "annotated": annotated,
             "alone": alone if comm.rank == 0 else lambda: None}
    seconds = seconds_of_slowest(comm, steps, num_rounds)
    return report(seconds) if comm.rank == 0 else []


def report(seconds: dict[str, float]) -> list[Row]:
    """The rows, from median seconds by step."""
    ours, silent, alone = (seconds[name] for name in ("tp = 2", "silent", "alone"))
    tokens = BATCH * CONFIG.context
    return [Row(f"GPT, tp = 2, {BATCH} samples",
                f"{milliseconds(ours)}, {tokens / ours:,.0f} tokens/s",
                f"no messages {milliseconds(silent)}", silent / ours, 0.90),
            Row("  the same layout by GSPMD, from three annotations",
                milliseconds(seconds["annotated"]), f"by hand {milliseconds(ours)}",
                ours / seconds["annotated"], 0.90),
            Row("  speed-up over one rank", milliseconds(ours), f"1 rank {milliseconds(alone)}",
                alone / ours),
            Row("  ceiling: two processes computing without messages", milliseconds(silent),
                f"1 rank {milliseconds(alone)}", alone / silent)]
