"""Lesson 22: training steps of a GPT in 16 bits, measured."""

import tracemalloc
from functools import cache

import numpy as np

from minipar.autograd import Function, Meter, backward
from minipar.autograd.function import operation_hook
from minipar.comm import Communicator
from minipar.memory.ledger import Ledger
from minipar.memory.temporaries import StepLedger
from minipar.nn import GPT, GPTConfig
from minipar.number_formats import BFLOAT16
from minipar.optim import AdamW
from minipar.parallel.low_precision_wire import LowPrecisionWire
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.parallel.wire import UNCOMPRESSED
from minipar.precision import FP16, LossScaler, set_precision, unscale

CONFIG = GPTConfig(vocab_size=64, context=32, num_layers=2, num_heads=4, width=48, tied=False)
STEP = GPTConfig(vocab_size=64, context=128, num_layers=2, num_heads=4, width=96)
ROWS, TARGETS = 4, 2**20        # of a batch here; targets of a large model's batch


class RecordGradient(Function):
    """The identity; its backward appends the gradient to a list."""

    metered = False

    @staticmethod
    def forward(ctx, x, seen):
        ctx.seen = seen
        return x

    @staticmethod
    def backward(ctx, g):
        ctx.seen.append(np.array(g).ravel())
        return [g]


def batch(rank: int) -> Microbatch:
    """This rank's tokens."""
    ids = np.random.default_rng(rank).integers(0, CONFIG.vocab_size, (ROWS, CONFIG.context + 1))
    return Microbatch(ids[:, :-1], ids[:, 1:], np.arange(ROWS))


def gradients_of_all_operations() -> np.ndarray:
    """All gradients of one step in float32, as small as in a batch of TARGETS targets."""
    model, (ids, targets, _), seen = GPT(CONFIG).initialize(), batch(0), []
    with operation_hook(lambda y: RecordGradient.apply(y, seen=seen)):
        loss = model.loss(ids, targets, TARGETS)
    backward(loss)
    return np.concatenate(seen)


def kept(model: GPT) -> dict[str, int]:
    """Bytes that one step keeps for backward: all, and those that stay in float32."""
    ledger, (ids, targets, _) = Ledger(model.parameters()), batch(0)
    with ledger.recording():
        loss = model.loss(ids, targets)
        live = ledger.live
        backward(loss)
    rows = ROWS * CONFIG.context
    statistics = 4 * rows * (2 * CONFIG.num_layers + 1)         # of layer norms: one a row
    same = statistics + 4 * rows * CONFIG.vocab_size + ids.nbytes      # dlogits, ids
    return {"all": live, "same": same}


@cache          # once for all simulated ranks of a process: their results are equal
def peak(narrow: bool) -> tuple[int, int]:
    """Peak bytes of a second step, without weights and gradients: counted, and allocated."""
    model = GPT(STEP)
    (set_precision(model, FP16) if narrow else model).initialize()
    ids, targets = np.random.default_rng(0).integers(0, STEP.vocab_size, (2, 16, STEP.context))
    for _ in range(2):
        ledger = StepLedger(model.parameters())
        tracemalloc.start()             # counts all allocations of Python and NumPy
        with Meter().running(), ledger.recording():     # with its own meter, no other rank runs
            backward(model.loss(ids, targets))
        measured = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return ledger.peak, measured


def one_overflow(comm: Communicator) -> tuple[bool, LossScaler]:
    """A ZeRO-1 step with an infinite gradient on the last rank only: (finite, loss scaler)."""
    strategy = make_strategy("zero1", set_precision(GPT(CONFIG), FP16).initialize(), comm)
    optimizer, scaler = AdamW(strategy.slabs), LossScaler()
    optimizer.zero_grad()
    strategy.forward_backward([batch(comm.rank)], scale=scaler.scale)
    if comm.rank == comm.size - 1:
        strategy.slabs[-1].complete_grad()[0] = np.inf
    finite = unscale(strategy, scaler.scale)
    scaler.update(not finite)
    return finite, scaler


def reduced_bytes(comm: Communicator, narrow: bool) -> int:
    """Bytes that this rank sends to sum gradients."""
    wire = LowPrecisionWire(BFLOAT16) if narrow else UNCOMPRESSED
    strategy = make_strategy("zero1", GPT(CONFIG).initialize(), comm, wire=wire)
    comm.start_trace()
    strategy.forward_backward([batch(comm.rank)])
    return comm.stop_trace().bytes_sent(comm.rank, "reduce_scatter")
