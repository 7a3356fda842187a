"""Lesson 22: the library's formats and scaler; a GPT in 16 bits: bytes, peaks, the picture."""

import tracemalloc
from collections.abc import Callable
from functools import cache

import numpy as np

from minipar.autograd import Function, Meter, backward
from minipar.autograd.function import operation_hook
from minipar.comm import Communicator
from minipar.memory.ledger import Ledger
from minipar.memory.temporaries import StepLedger
from minipar.mixed_precision import FP16, LossScaler, set_precision, unscale
from minipar.nn import GPT, GPTConfig
from minipar.number_formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16
from minipar.optim import AdamW
from minipar.parallel.compare_ranks import ranks_that_differ
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.parallel.wire_formats.low_precision import LowPrecisionWire
from minipar.parallel.wire_formats.wire import UNCOMPRESSED
from minipar.viz import draw_precision

from .kit import Lesson, Row

CONFIG = GPTConfig(vocab_size=64, context=32, num_layers=2, num_heads=4, width=48, tied=False)
STEP = GPTConfig(vocab_size=64, context=128, num_layers=2, num_heads=4, width=96)
ROWS, TARGETS = 4, 2**20        # of a batch here; targets of a large model's batch
UPDATES, UPDATE = 1024, 2.0**-10
FORMATS = (FLOAT16, BFLOAT16, FLOAT8_E5M2, FLOAT8_E4M3FN)


def compare_with_library(lesson: Lesson, bfloat16: Callable, float16: Callable,
                         next_scale: Callable) -> None:
    """Compare roundings and scales with the library's; train steps of a GPT in 16 bits."""
    rounding(lesson, bfloat16, float16, next_scale)
    gradients, weights = gradients_of_all_operations(), drift()
    gradients = gradients[gradients != 0]
    scaled = gradients * np.float32(2**16)
    count_zeros(lesson, gradients, scaled, weights)
    count_bytes(lesson)
    compare_peaks(lesson)
    overflow_on_one_rank(lesson)
    lesson.picture(lambda path: draw_precision(
        path, FORMATS, {"unscaled": gradients, "loss · 2¹⁶": scaled}, weights,
        "What low precision loses: gradients (left) and updates (right)"))


def rounding(lesson: Lesson, bfloat16: Callable, float16: Callable, next_scale: Callable) -> None:
    """Round numbers of all sizes, and follow a loss scale, by the lesson and by the library."""
    draw = np.random.default_rng(0)
    size = np.ldexp(np.float32(1), draw.integers(-45, 20, 10_000))
    x = draw.standard_normal(10_000, np.float32) * size
    scaler, scale, good, differing = LossScaler(interval=3), 2.0**16, 0, 0
    for overflow in draw.random(200) < 0.2:
        scaler.update(bool(overflow))
        scale, good = next_scale(scale, good, overflow, 3)
        differing += scaler.scale != scale
    lesson.say("The library's formats have any number of digits, its scaler has limits. On 10,000 "
               "random numbers of all sizes, and after 200 steps of which a fifth overflows:")
    lesson.table([
        Row("bfloat16: numbers that differ", 0, int(np.sum(BFLOAT16.round(x) != bfloat16(x)))),
        Row("float16: numbers that differ", 0, int(np.sum(FLOAT16.round(x) != float16(x)))),
        Row("scales that differ", 0, int(differing))], "the lesson's, and the library's")


def drift() -> dict[str, list[float]]:
    """A weight, from 1, after each of UPDATES updates by UPDATE; for three ways of storing it."""
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


def count_zeros(lesson: Lesson, gradients: np.ndarray, scaled: np.ndarray,
                weights: dict[str, list[float]]) -> None:
    """Count gradients that underflow, `scaled` ones beside them; show how `weights` drifted."""
    below = [int(np.sum(np.abs(gradients) <= limit)) for limit in (2.0**-25, 2.0**-41)]
    zeros = [int(np.sum(FLOAT16.round(array) == 0)) for array in (gradients, scaled)]
    lesson.say(f"Gradients are divided by the number of targets: with {TARGETS:,} of them "
               f"{zeros[0] / gradients.size:.0%} of all gradients of this GPT are 0 in float16. "
               f"Multiplied by 2¹⁶ only {zeros[1] / gradients.size:.2%} are, and no digit changes.")
    lesson.table([Row("gradients that float16 rounds to 0: at most 2⁻²⁵", below[0], zeros[0]),
                  Row("the same after loss · 2¹⁶: at most 2⁻⁴¹", below[1], zeros[1]),
                  Row("weight in float32 after 1024 updates of 2⁻¹⁰", 2.0,
                      weights["float32 master"][-1]),
                  Row("in bfloat16: 2⁻¹⁰ is less than half a step of 2⁻⁷", 1.0,
                      weights["bfloat16, nearest"][-1]),
                  Row("rounded at random: error, at most 4 √(1024 · 2⁻¹⁰ · 2⁻⁷)", 4 * 2.0**-3.5,
                      abs(weights["bfloat16, stochastic"][-1] - 2), rule="≤")],
                 "underflow and drift")


def count_bytes(lesson: Lesson) -> None:
    """Count activations, messages and the optimizer's arrays, in 16 bits and in 32."""
    comm = lesson.comm
    whole = kept(GPT(CONFIG).initialize())
    narrow = kept(set_precision(GPT(CONFIG), FP16).initialize())
    wide, reduced = reduced_bytes(comm, False), reduced_bytes(comm, True)
    strategy = make_strategy("ddp", GPT(CONFIG).initialize(), comm)
    optimizer, psi = AdamW(strategy.slabs), GPT(CONFIG).num_parameters()
    held = sum(slab.data.nbytes + slab.grad.nbytes for slab in strategy.slabs) \
        + sum(array.nbytes for state in optimizer.states for array in state.values())
    lesson.table([Row("activations kept: half, but for those in float32",
                      (whole["all"] + whole["same"]) // 2, narrow["all"], "B"),
                  Row("gradients sent to be summed: 2 bytes instead of 4", wide // 2, reduced, "B"),
                  Row("weights, gradients, Adam: 4 + 4 + 8 (paper: 2 + 2 + 12)", 16 * psi, held,
                      "B")], "bytes, float16 and bfloat16 beside float32")
    lesson.say("Here a weight is rounded at each use, and no 16-bit copy is kept. So weights, "
               "gradients and states need 16 Ψ bytes, as in the paper, but divided differently. "
               "Statistics of layer norms and the loss stay in float32.")


def compare_peaks(lesson: Lesson) -> None:
    """Compare the peak of a step in float32 and in float16, counted and allocated."""
    (wide_count, wide_peak), (count, narrow_peak) = peak(narrow=False), peak(narrow=True)
    lesson.table([Row("float32: by the ledger, and by the allocator", wide_count, wide_peak,
                      "B", "≈"), Row("float16", count, narrow_peak, "B", "≈")],
                 "peak of a step, beside weights and gradients")
    lesson.say("Half of the kept activations is not half of the peak: arrays that operations are "
               f"working on stay in float32. With two layers 16 bits save "
               f"{1 - narrow_peak / wide_peak:.0%} of the peak, and nothing of weights, gradients "
               "and states.")


def overflow_on_one_rank(lesson: Lesson) -> None:
    """Let one number overflow on the last rank: all ranks must skip the step and scale less."""
    comm = lesson.comm
    finite, scaler = one_overflow(comm)
    same = ranks_that_differ(comm, repr(scaler.state_dict()).encode())
    lesson.say(f"Now one number overflows, only on rank {comm.size - 1} of {comm.size}. After a "
               f"control message of 8 bytes all ranks skip the step, and all have scale "
               f"{scaler.scale:g}.")
    assert not finite and not same and scaler.scale == 2.0**15


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
