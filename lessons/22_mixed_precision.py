"""Lesson 22. Mixed precision: what is lost in 16 bits, and how is it kept?

Half the bytes are half the memory of activations and half the traffic, and processors multiply 16
bits many times faster than 32.  Three things go wrong if nothing else is done:

    underflow    a gradient below 2⁻²⁵ is 0 in float16     scale the loss, 2¹⁶ say
    overflow     one above 65504 is infinite               skip the step, on all ranks; scale down
    drift        1 + 2⁻¹⁰ is 1 in bfloat16                 float32 master weights

    python lessons/22_mixed_precision.py          mpirun -n 4 python lessons/22_mixed_precision.py
"""

import numpy as np
from kit import Lesson, Row

from minipar.autograd import Function, Tensor, backward
from minipar.autograd.function import after_operations
from minipar.comm import Communicator
from minipar.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16
from minipar.launch import launch
from minipar.memory.ledger import Ledger
from minipar.memory.precision import FP16, set_precision
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW, LossScaler
from minipar.parallel.data import ranks_that_differ
from minipar.parallel.narrow import reduce_in
from minipar.parallel.scaling import unscale
from minipar.parallel.strategies import make_strategy
from minipar.parallel.strategy import Microbatch, accumulate
from minipar.viz.precision import draw_precision

CONFIG = GPTConfig(vocab_size=64, context=32, num_layers=2, num_heads=4, width=48, tied=False)
ROWS, TARGETS = 4, 2**20        # of a batch here; targets of a batch as large models have it
UPDATES, UPDATE = 1024, 2.0**-10
FORMATS = (FLOAT16, BFLOAT16, FLOAT8_E5M2, FLOAT8_E4M3FN)


class Look(Function):
    """x itself; the gradient that comes back is noted."""

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
    """Tokens of this rank."""
    ids = np.random.default_rng(rank).integers(0, CONFIG.vocab_size, (ROWS, CONFIG.context + 1))
    return Microbatch(ids[:, :-1], ids[:, 1:], np.arange(ROWS))


def gradients_of_all_operations() -> np.ndarray:
    """Those of one step in float32, as small as in a batch of TARGETS targets."""
    model, (ids, targets, _), seen = GPT(CONFIG).initialize(), batch(0), []
    with after_operations(lambda y: Look.apply(y, seen=seen)):
        loss = model.loss(ids, targets, TARGETS)
    backward(loss)
    return np.concatenate([g for g in seen if g.size > 1])


def kept(model: GPT) -> dict[str, int]:
    """Bytes that one step keeps for backward: in all, and of what is never narrow."""
    ledger, (ids, targets, _) = Ledger(model.parameters()), batch(0)
    with ledger.recording():
        loss = model.loss(ids, targets)
        live = ledger.live
        backward(loss)
    rows = ROWS * CONFIG.context
    statistics = 4 * rows * (2 * CONFIG.num_layers + 1)         # of layer norms: one a row
    same = statistics + 4 * rows * CONFIG.vocab_size + ids.base.nbytes      # dlogits, ids
    return {"all": live, "same": same}


def drift() -> dict[str, list[float]]:
    """A weight of 1 that is to move by UPDATES × UPDATE, however it is kept."""
    random = np.random.default_rng(0)
    ways = {"float32 master": lambda w: w, "bfloat16, nearest": BFLOAT16.round,
            "bfloat16, stochastic": lambda w: BFLOAT16.round(w, random)}
    found = {}
    for name, keep in ways.items():
        w = np.ones(1, np.float32)
        found[name] = [float(w[0])]
        for _ in range(UPDATES):
            w = keep(w + np.float32(UPDATE))
            found[name].append(float(w[0]))
    return found


def one_overflow(comm: Communicator) -> tuple[bool, LossScaler]:
    """ZeRO-1, where the last rank's shard alone has an infinite gradient; whether to step."""
    strategy = make_strategy("zero1", set_precision(GPT(CONFIG), FP16).initialize(), comm)
    optimizer, scaler = AdamW(strategy.slabs), LossScaler()
    optimizer.zero_grad()
    accumulate(strategy, [batch(comm.rank)], scale=scaler.scale)
    if comm.rank == comm.size - 1:
        strategy.slabs[-1].complete_grad()[0] = np.inf
    finite = unscale(strategy, scaler.scale)
    scaler.update(not finite)
    return finite, scaler


def reduced_bytes(comm: Communicator, narrow: bool) -> int:
    """What this rank sends to sum gradients."""
    strategy = make_strategy("zero1", GPT(CONFIG).initialize(), comm)
    if narrow:
        reduce_in(strategy, BFLOAT16)
    comm.start_trace()
    accumulate(strategy, [batch(comm.rank)])
    return comm.stop_trace().bytes_sent(comm.rank, "reduce_scatter")


def main(comm: Communicator) -> None:
    """See the module."""
    lesson = Lesson(comm, __file__, "What is lost in 16 bits, and how is it kept?")
    gradients, weights = gradients_of_all_operations(), drift()
    lost = {scale: float(np.mean((FLOAT16.round(gradients * np.float32(scale)) == 0)
                                 & (gradients != 0))) for scale in (1, 2**16)}
    lesson.say(f"Gradients are divided by the number of targets: with {TARGETS:,} of them "
               f"{lost[1]:.0%} of all gradients of this GPT are 0 in float16. Times 2¹⁶ it is "
               f"{lost[2**16]:.2%}, and no digit has changed.")
    below = [int(np.sum((np.abs(gradients) * s <= 2.0**-25) & (gradients != 0)))
             for s in (1, 2**16)]
    zeros = [int(np.sum((FLOAT16.round(gradients * np.float32(s)) == 0) & (gradients != 0)))
             for s in (1, 2**16)]
    lesson.table([Row("gradients that float16 makes 0: at most 2⁻²⁵", below[0], zeros[0]),
                  Row("the same after loss · 2¹⁶: at most 2⁻⁴¹", below[1], zeros[1]),
                  Row("weight in float32 after 1024 updates of 2⁻¹⁰", 2.0,
                      weights["float32 master"][-1]),
                  Row("in bfloat16: 2⁻¹⁰ is no half step of 2⁻⁷", 1.0,
                      weights["bfloat16, nearest"][-1]),
                  Row("by chance: off by 4 √(1024 · 2⁻¹⁰ · 2⁻⁷) at most", 4 * 2.0**-3.5,
                      abs(weights["bfloat16, stochastic"][-1] - 2), rule="≤")],
                 "underflow and drift")
    whole = kept(GPT(CONFIG).initialize())
    narrow = kept(set_precision(GPT(CONFIG), FP16).initialize())
    wide, reduced = reduced_bytes(comm, False), reduced_bytes(comm, True)
    strategy = make_strategy("ddp", GPT(CONFIG).initialize(), comm)
    optimizer, psi = AdamW(strategy.slabs), GPT(CONFIG).num_parameters()
    held = sum(slab.data.nbytes + slab.grad.nbytes for slab in strategy.slabs) \
        + sum(array.nbytes for state in optimizer.states for array in state.values())
    lesson.table([Row("activations kept: (all − same) / 2 + same",
                      (whole["all"] + whole["same"]) // 2, narrow["all"], "B"),
                  Row("gradients sent to be summed: 2 for 4", wide // 2, reduced, "B"),
                  Row("weights, gradients, Adam: 4 + 4 + 8 (paper: 2 + 2 + 12)", 16 * psi, held,
                      "B")], "bytes, float16 and bfloat16 beside float32")
    lesson.say("Here a weight is rounded for each use and no narrow copy is kept, so master, "
               "gradient and states are 16 Ψ, as in the paper, cut otherwise. What stays in "
               "float32: statistics of layer norms and the loss.")
    finite, scaler = one_overflow(comm)
    same = ranks_that_differ(comm, repr(scaler.state_dict()).encode())
    lesson.say(f"One number overflows on rank {comm.size - 1} of {comm.size} alone. A control "
               f"message of 8 bytes later all ranks skip the step, and all have scale "
               f"{scaler.scale:g}.")
    assert not finite and not same and scaler.scale == 2.0**15
    lesson.picture(lambda path: draw_precision(
        path, FORMATS, {"as they are": gradients, "loss · 2¹⁶": gradients * 2.0**16}, weights,
        "What narrow numbers lose: gradients (left) and updates (right)"))
    lesson.takeaway("Store and send 16 bits, add up in 32: gradients are scaled to where the format "
                    "has numbers, and weights keep a float32 master.")
    lesson.exercises(questions=[
        "bfloat16 needs no loss scaling, float16 no smaller learning rate. Why?",
        "Without the control message, what would become of the ranks that did step?"])


if __name__ == "__main__":
    launch(main)
