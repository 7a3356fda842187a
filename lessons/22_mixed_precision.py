"""Lesson 22. Mixed precision: what is lost in 16 bits, and how is it kept?

Half the bytes mean half the memory for activations and half the traffic, and GPUs multiply 16-bit
numbers many times faster than 32-bit ones.  Three things go wrong without a remedy:

    underflow    a gradient of at most 2⁻²⁵ is 0 in float16   scale the loss, by 2¹⁶ say
    overflow     a gradient from 65520 on is infinite         skip the step on all ranks; scale less
    drift        1 + 2⁻¹⁰ is 1 in bfloat16                    keep float32 master weights

    python lessons/22_mixed_precision.py          mpirun -n 4 python lessons/22_mixed_precision.py
"""

import numpy as np
from support.kit import Lesson, Row
from support.mixed_precision_step import (
    CONFIG,
    TARGETS,
    gradients_of_all_operations,
    kept,
    one_overflow,
    peak,
    reduced_bytes,
)

from minipar.comm import Communicator
from minipar.launcher import launch
from minipar.nn import GPT
from minipar.number_formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16
from minipar.optim import AdamW
from minipar.parallel.registry import make_strategy
from minipar.parallel.replicas import ranks_that_differ
from minipar.precision import FP16, set_precision
from minipar.viz.precision import draw_precision

UPDATES, UPDATE = 1024, 2.0**-10
FORMATS = (FLOAT16, BFLOAT16, FLOAT8_E5M2, FLOAT8_E4M3FN)


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


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
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
    lesson.takeaway("Save activations and send gradients in 16 bits; keep weights and sums in 32. "
                    "Scale the loss, so that gradients fit the range of the format.")
    lesson.exercises(questions=[
        "bfloat16 needs no loss scaling, float16 no smaller learning rate. Why?",
        "Without the control message, what would happen to the ranks that did step?"])


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


if __name__ == "__main__":
    launch(main)
