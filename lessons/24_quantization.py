"""Lesson 24. Quantization: how few bits does a weight need?

A trained weight has 32 bits, but most of them hardly change the model's output.  Affine
quantization rounds numbers to an evenly spaced grid and stores the index of the grid point:

    q = clip(round(x / scale) + zero)     x̂ = (q - zero) · scale     |x - x̂| ≤ scale / 2

      x  ──────┼────┼────┼────┼────┼────┼──────▶      3 bits: codes 0 … 7
               0    1    2    3    4    5
                         └ zero point: the code of 0

The largest number of a tensor, an output channel or a group sets the scale for all of it.  Where
rounding hurts, the other weights can compensate (GPTQ), or training can adapt.  The library's:
minipar/compress/quantization.

    python lessons/24_quantization.py          mpirun -n 4 python lessons/24_quantization.py
"""

import numpy as np
from micro import Tensor, backward, copy_to, cross_entropy, mlp, one_process, part
from support.kit import Lesson, Row
from support.lesson_24 import compare_with_library

from minipar.comm import Communicator
from minipar.launcher import launch


def scale_and_zero(x: np.ndarray, bits: int, axis: int | None = None) -> tuple:
    """Code 0 is the smallest number (of each column, if axis is 0), 2ᵇ - 1 the largest."""
    low, high = np.minimum(x.min(axis), 0), np.maximum(x.max(axis), 0)      # 0 has a code
    scale = (high - low) / (2**bits - 1)
    return scale, np.rint(-low / scale)


def encode(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, bits: int) -> np.ndarray:
    return np.clip(np.rint(x / scale) + zero, 0, 2**bits - 1).astype(int)


def decode(q: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return (q - zero) * scale


def product(a: np.ndarray, za: float, b: np.ndarray, zb: np.ndarray) -> np.ndarray:
    """Σ (a - za)(b - zb) from the product of the codes; sums of rows and columns correct it."""
    return a @ b - za * b.sum(0) - a.sum(1, keepdims=True) * zb + len(b) * za * zb


def gptq(w: np.ndarray, x: np.ndarray, bits: int) -> np.ndarray:
    """One output's weights (in,), rounded one by one so that x w changes little."""
    w, (scale, zero) = w.copy(), scale_and_zero(w, bits)
    hessian = 2 * x.T @ x
    inverse = np.linalg.inv(hessian + 0.01 * np.diag(hessian).mean() * np.eye(len(w)))
    for i in range(len(w)):
        rounded = decode(encode(w[i], scale, zero, bits), scale, zero)
        error = (w[i] - rounded) / inverse[i, i]
        w[i + 1:] -= error * inverse[i, i + 1:]         # the weights after it compensate
        w[i] = rounded
        inverse -= np.outer(inverse[:, i], inverse[i]) / inverse[i, i]      # w[i] is fixed now
    return w


def fake_quantized(w: Tensor, bits: int) -> Tensor:
    """Rounded in forward; backward as if it were not (the straight-through estimator)."""
    scale, zero = scale_and_zero(w.data, bits, axis=0)
    return Tensor(decode(encode(w.data, scale, zero, bits), scale, zero), (w,), lambda g: (g,))


def train(comm: Communicator, weights: list[np.ndarray], x: np.ndarray, labels: np.ndarray,
          bits: int, num_steps: int, rate: float = 0.2) -> tuple[list[np.ndarray], list[float]]:
    """Quantization-aware SGD, data-parallel: (float weights, this rank's part of each loss)."""
    losses = []
    for _ in range(num_steps):
        ws = [Tensor(w) for w in weights]
        used = [fake_quantized(copy_to(w, comm), bits) for w in ws]
        loss = cross_entropy(mlp(Tensor(part(comm, x)), used), part(comm, labels), len(x))
        backward(loss)
        weights = [w.data - rate * w.grad for w in ws]
        losses.append(loss.data)
    return weights, losses


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    draw = np.random.default_rng(0)
    weights, x = list(draw.normal(0, 0.5, (2, 16, 16))), draw.random((32, 16))
    labels = np.arange(32) % 16
    for _ in range(50):                                 # the model that is quantized
        weights = [w - 0.2 * g for w, g in zip(weights, one_process(weights, x, labels))]
    w, (sx, zx), (sw, zw) = weights[0], scale_and_zero(x, 8), scale_and_zero(weights[0], 8, 0)
    a, b = encode(x, sx, zx, 8), encode(w, sw, zw, 8)
    sums = product(a, zx, b, zw)
    s2, z2 = scale_and_zero(w, 2, 0)
    nearest = decode(encode(w, s2, z2, 2), s2, z2)
    better = np.stack([gptq(column, x, 2) for column in w.T], axis=1)
    alone, losses = train(comm.split(comm.rank), weights, x, labels, 2, 50)    # one rank each
    found, _ = train(comm, weights, x, labels, 2, 50)
    lesson.table([
        Row("8 bits: largest |x − x̂| ÷ scale", 0.5 + 1e-9,
            float((np.abs(w - decode(b, sw, zw)) / sw).max()), "", "≤"),
        Row("outputs unlike Σ (a − zₐ)(b − z_b)", 0, int(np.sum(sums != (a - zx) @ (b - zw)))),
        Row("2 bits: GPTQ's change of x w ÷ that of rounding", 1.0,
            float(np.linalg.norm(x @ (better - w)) / np.linalg.norm(x @ (nearest - w))), "", "≤"),
        Row("2 bits: loss after 50 steps of QAT ÷ before", 0.9, losses[-1] / losses[0], "", "≤"),
        Row("    difference from one process", 1e-12, float(np.abs(np.subtract(
            found, alone)).max()), "", "≤")], f"p = {comm.size}")
    compare_with_library(lesson, encode, product, gptq)
    lesson.takeaway("The error is half a step, and the largest number that shares a scale sets the "
                    "step. So let few numbers share a scale, and let the other weights, or "
                    "training, compensate for the rest.")
    lesson.exercises(questions=[
        "Multiply one weight by 100. How large is the error of int4 per tensor, per channel, per "
        "group:32?",
        "In fake_quantized, write `(0 * g,)` in place of `(g,)`, the true derivative of rounding "
        "almost everywhere. What does training do?",
        "A group of 32 costs 4 bytes for its scale: how many bits is an int4 weight then?",
        "Why does int_matmul split its sums into blocks, and how long may a block of int8 be?"])


if __name__ == "__main__":
    launch(main)
