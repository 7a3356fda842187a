"""Lesson 22. Mixed precision: what is lost in 16 bits, and how is it kept?

Half the bytes mean half the memory for activations and half the traffic, and GPUs multiply 16-bit
numbers many times faster than 32-bit ones.  Three things go wrong without a remedy:

    underflow    a gradient of at most 2⁻²⁵ is 0 in float16   scale the loss, by 2¹⁶ say
    overflow     a gradient from 65520 on is infinite         skip the step on all ranks; scale less
    drift        1 + 2⁻¹⁰ is 1 in bfloat16                    keep a float32 master copy

    float32     s eeeeeeee fffffffffffffffffffffff      sign, exponent, fraction
    bfloat16    s eeeeeeee fffffff                      the upper half of a float32
    float16     s eeeee ffffffffff                      10 digits, exponents from -14 to 15

The library's: minipar/number_formats/rounding.py and minipar/mixed_precision/loss_scaler.py.

    python lessons/22_mixed_precision.py          mpirun -n 4 python lessons/22_mixed_precision.py
"""

from math import ceil, log2

import numpy as np
from micro import all_reduce, part
from support.kit import Lesson, Row
from support.lesson_22 import compare_with_library

from minipar.comm import Communicator
from minipar.launcher import launch

RATE, ROWS = 2**-5, 2**29       # rate of a summed loss; rows of a huge batch, most without error


def drop(x: np.ndarray, digits: int) -> np.ndarray:
    """Round float32 to its nearest neighbour whose last digits are 0; of a tie, to the even one."""
    bits = x.view(np.uint32)                        # the same 32 bits, read as an integer
    almost_half = (1 << digits - 1) - 1
    last = bits >> digits & 1                       # of the digits that stay: 1 if that is odd
    return (bits + almost_half + last >> digits << digits).view(np.float32)


def bfloat16(x: np.ndarray) -> np.ndarray:
    return drop(x, 16)


def float16(x: np.ndarray) -> np.ndarray:
    size, half = np.abs(x), np.float32(0.5)
    rounded = drop(size, 23 - 10)
    tiny = size + half - half                       # between 1/2 and 1 float32 has steps of 2⁻²⁴
    rounded = np.where(size < 2.0**-14, tiny, rounded)
    return np.copysign(np.where(rounded < 2.0**16, rounded, np.float32(np.inf)), x)


def bfloat16_at_random(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Up or down, so that the mean is x: add any number below 1 in the last digit, then cut."""
    bits = x.view(np.uint32) + random.integers(0, 1 << 16, x.shape, np.uint32)
    return (bits >> 16 << 16).view(np.float32)


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray, scale: float) -> np.ndarray:
    """Gradient of scale · Σ (x w - y)² / 2 / ROWS: weights, errors, gradients have 16 bits."""
    error = float16((x @ float16(w) - y) * np.float32(scale / ROWS))
    return float16(x.T @ error)


def step(comm: Communicator, w: np.ndarray, grad: np.ndarray,
         scale: float) -> tuple[np.ndarray, bool]:
    """(the float32 weights after a step of all ranks or none, did a gradient overflow?)"""
    infinite = np.array([not np.isfinite(grad).all()], float)
    overflow = all_reduce(comm, infinite)[0] > 0    # 8 bytes: on any rank?
    if overflow:
        return w, True
    return w - np.float32(RATE * ROWS / scale) * all_reduce(comm, grad), False


def next_scale(scale: float, good: int, overflow: bool, interval: int) -> tuple[float, int]:
    """Halve it after an overflow; double it after `interval` good steps."""
    if overflow:
        return scale / 2, 0
    if good + 1 == interval:
        return scale * 2, 0
    return scale, good + 1


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    p, draw, ones = comm.size, np.random.default_rng(0), np.ones(1, np.float32)
    x = draw.integers(0, 2, (p, 4)).astype(np.float32)
    y = draw.integers(0, 2, p).astype(np.float32)
    x[-1], y[-1] = 1, 12                            # the last rank has the largest gradient
    w, alone, scale, good, skipped = np.zeros(4, np.float32), np.zeros(4), 2.0**44, 0, 0
    lost = int(np.sum(gradient(w, x[-1:], y[-1:], 1.0) == 0))
    for _ in range(5):
        grad = gradient(w, part(comm, x), part(comm, y), scale)
        w, overflow = step(comm, w, grad, scale)
        scale, good = next_scale(scale, good, overflow, 100)
        skipped += overflow
    for _ in range(2):                              # one process, float64
        alone -= RATE * x.T @ (x @ alone - y)
    nearest, chance = ones, ones
    for _ in range(1024):
        nearest = bfloat16(nearest + np.float32(2**-10))
        chance = bfloat16_at_random(chance + np.float32(2**-10), draw)
    lesson.table([
        Row("scale 1: gradients of 12 · 2⁻²⁹ that are 0 in float16, of 4", 4, lost),
        Row("scale 2⁴⁴: steps skipped until 12 · 2⁻²⁹ · scale < 65520",
            ceil(log2(12 * 2**15 / 65520)), skipped),
        Row("    2 more: difference from one process in float64", 0, np.abs(w - alone).max()),
        Row("1 after 1024 updates of 2⁻¹⁰, in bfloat16", 1.0, float(nearest[0])),
        Row("    rounded at random: error, at most 4 √(1024 · 2⁻¹⁰ · 2⁻⁷)", 4 * 2.0**-3.5,
            abs(float(chance[0]) - 2), "", "≤")], f"p = {p}")
    compare_with_library(lesson, bfloat16, float16, next_scale)
    lesson.takeaway("Save activations and send gradients in 16 bits; keep weights and sums in 32. "
                    "Scale the loss, so that gradients fit the range of the format.")
    lesson.exercises(questions=[
        "bfloat16 needs no loss scaling, float16 no smaller learning rate. Why?",
        "In step, write `infinite[0] > 0` in place of `all_reduce(comm, infinite)[0] > 0`. What "
        "do 4 simulated ranks do?"])


if __name__ == "__main__":
    launch(main)
