"""Lesson 00. Why distribute?  When does one machine stop?

A single device reaches two limits, its *walls*.  With Ψ parameters and D tokens (or rows) of data:

    memory    float32 parameter 4 + gradient 4 + Adam's two moments 8  =  16 Ψ bytes
              + activations, which forward keeps for backward: they grow with the tokens of a step
    compute   x w is a multiplication and an addition for each weight: 2 FLOPs a row
              backward has two such products, for x and for w:         6 Ψ D FLOPs

Below, p ranks train an MLP for one step, each with its part of the rows (*data parallelism*).  That
divides the compute and the activations; 16 Ψ bytes stay on every rank.

    python lessons/00_why_distribute.py          mpirun -n 4 python lessons/00_why_distribute.py
"""

from math import ceil

import numpy as np
from micro import Tensor, all_reduce, backward, cross_entropy, mlp, part
from support.kit import Lesson, Row
from support.lesson_00 import compare_with_library
from support.measuring import total

from minipar.comm import Communicator
from minipar.launcher import launch


def parameters(vocabulary: int, context: int, layers: int, d: int) -> int:
    """Ψ of a GPT of width d, whose head shares the table of embeddings."""
    layer = 12 * d * d + 13 * d         # attention 4 d² + 4 d, MLP 8 d² + 5 d, two layer norms 4 d
    return (vocabulary + context) * d + layers * layer + 2 * d


def training_bytes(psi: int) -> int:
    """Parameters, gradients, Adam's mean and mean square: kept from step to step, in float32."""
    return (4 + 4 + 4 + 4) * psi


def training_flops(psi: int, tokens: int) -> int:
    """One product forward and two backward, of 2 FLOPs for each weight and token."""
    return (2 + 4) * psi * tokens


def devices(psi: int, tokens: int, memory: float, flops_per_second: float,
            days: float) -> tuple[int, int]:
    """The two walls: the devices that can hold it, and those that finish within `days`."""
    return (ceil(training_bytes(psi) / memory),
            ceil(training_flops(psi, tokens) / (flops_per_second * days * 86400)))


def counted_linear(x: Tensor, w: Tensor, counts: list[int]) -> Tensor:
    """x w, which adds the FLOPs of its three products to counts."""
    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        counts.append(2 * a.shape[0] * a.shape[1] * b.shape[1])
        return a @ b
    return Tensor(product(x.data, w.data), (x, w),
                  lambda g: (product(g, w.data.T), product(x.data.T, g)))


def train(comm: Communicator, weights: list[np.ndarray], x: np.ndarray, labels: np.ndarray,
          rate: float = 0.01) -> tuple[int, int]:
    """Adam's first step, in place.  Returns this rank's FLOPs, and how many numbers it keeps."""
    ws, counts = [Tensor(w) for w in weights], []
    out = mlp(Tensor(part(comm, x)), ws, lambda x, w: counted_linear(x, w, counts))
    backward(cross_entropy(out, part(comm, labels), len(x)))
    grads = [all_reduce(comm, w.grad) for w in ws]
    means, squares = [0.1 * g for g in grads], [0.001 * g * g for g in grads]
    for w, mean, square in zip(weights, means, squares):
        w -= rate * (mean / 0.1) / (np.sqrt(square / 0.001) + 1e-8)
    return sum(counts), sum(a.size for a in [*weights, *grads, *means, *squares])


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    rng, rows = np.random.default_rng(0), 60
    weights = list(rng.normal(0, 0.5, (3, 16, 16)))
    x, labels = rng.random((rows, 16)), rng.integers(0, 16, rows)
    alone, psi = [w.copy() for w in weights], sum(w.size for w in weights)
    train(comm.split(comm.rank), alone, x, labels)          # split: a world of one rank for each
    flops, kept = train(comm, weights, x, labels)
    lesson.table([
        Row("numbers kept on every rank: 16 Ψ bytes / 4", training_bytes(psi) // 4, kept),
        Row("FLOPs of this rank: 6 Ψ D of its rows", training_flops(psi, len(part(comm, x))),
            flops),
        Row("FLOPs of all ranks: 6 Ψ D", training_flops(psi, rows), total(comm, flops)),
        Row("weights: largest difference from one process", 1e-10, float(max(
            np.abs(a - b).max() for a, b in zip(weights, alone))), "", "≤"),
    ], f"Ψ = {psi}, D = {rows} rows, p = {comm.size}")
    compare_with_library(lesson, parameters, training_bytes, training_flops, devices)
    lesson.takeaway("One device has two limits: memory, 16 Ψ bytes plus activations, which "
                    "parallelism must divide or move; and compute, 6 Ψ D FLOPs, which it must "
                    "share out.")
    lesson.exercises(questions=[
        "Plan a run of 7 billion parameters: GPTConfig(50257, 2048, 32, 32, 4096) on 2 T tokens. "
        "How many 80 GB devices hold it? How many finish in 30 days? Which limit decides?",
        "In train, write `[w.grad for w in ws]` in place of `[all_reduce(comm, w.grad) for w in "
        "ws]`. Which row of the first table fails on 4 ranks? Which on one?",
        "Which width makes attention half of a layer's FLOPs at a context of 32,768?",
        "In 16 bits Adam also steps a 32-bit copy of the parameters, the *master copy*. Why is it "
        "16 Ψ bytes again?"])


if __name__ == "__main__":
    launch(main)
