"""Lesson 23. Pruning: without four of five weights, what do size, FLOPs and time become?

Pruning multiplies a weight by its mask at each use: w · mask in forward, g · mask in backward.  It
removes the smallest weights of all layers together (magnitude), or 2 of every 4 inputs, or whole
neurons.  Then a smaller model without masks computes the same.

    magnitude     2 of 4        neurons           masks decided once, globally: one threshold for
    ▓ · · ▓ ·     ▓ · ▓ ▓ ·     ▓ · ▓ ▓ ·         all ranks' weights, found by
    · · ▓ · ·     · ▓ · ▓ ▓     ▓ · ▓ ▓ ·         4 all-reduces of 256 counts
    ▓ · · · ·     ▓ · ▓ · ▓     ▓ · ▓ ▓ ·
    · ▓ · · ▓     · ▓ · · ·     ▓ · ▓ ▓ ·

Size, FLOPs and time do not shrink alike.  Time shrinks only with the remaining *dense* products: a
processor multiplies zeros as fast as any number, and gathers scattered weights slowly.

The library's: minipar/compress/pruning.

    python lessons/23_pruning.py         mpirun -n 4 python lessons/23_pruning.py
"""

import numpy as np
from micro import Tensor, all_reduce, backward, copy_to, cross_entropy, mlp, part
from support.kit import Lesson, Row
from support.lesson_23 import compare_with_library
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch


def kth_smallest(comm: Communicator, numbers: np.ndarray, k: int) -> np.float32:
    """The k-th smallest of all ranks' float32 ≥ 0, whose bits are integers in the same order."""
    keys, found = numbers.view(np.uint32), 0
    for shift in (24, 16, 8, 0):                    # the key's bytes, the first one first
        byte_of = keys >> shift & 255
        counts = all_reduce(comm, np.bincount(byte_of, minlength=256).astype(np.int64))
        up_to = np.cumsum(counts)
        byte = np.searchsorted(up_to, k)            # here the running sum reaches k
        k -= up_to[byte] - counts[byte]             # the numbers below that byte
        found = found << 8 | int(byte)
        keys = keys[byte_of == byte]
    return np.uint32(found).view(np.float32)


def magnitude(comm: Communicator, w: np.ndarray, num_pruned: int) -> np.ndarray:
    """True where a weight stays; w is this rank's part of all weights."""
    size = np.abs(w).astype(np.float32)
    return size > kth_smallest(comm, size.ravel(), num_pruned)


def two_of_four(w: np.ndarray) -> np.ndarray:
    """True for the two largest of every four neighbouring inputs of w (in, out)."""
    fours = np.abs(w).reshape(-1, 4, w.shape[1])
    place = fours.argsort(1).argsort(1)             # 0 for the smallest of four … 3
    return (place >= 2).reshape(w.shape)


def without_neurons(first: np.ndarray, second: np.ndarray,
                    num_pruned: int) -> tuple[np.ndarray, np.ndarray]:
    """Two layers' weights without the neurons of the smallest ‖column‖ · ‖row‖ between them."""
    score = np.linalg.norm(first, axis=0) * np.linalg.norm(second, axis=1)
    stay = np.sort(score.argsort()[num_pruned:])
    return first[:, stay], second[stay]


def masked(w: Tensor, mask: np.ndarray) -> Tensor:
    return Tensor(w.data * mask, (w,), lambda g: (g * mask,))


def train(comm: Communicator, weights: list[np.ndarray], masks: list[np.ndarray], x: np.ndarray,
          labels: np.ndarray, num_steps: int, rate: float = 0.5) -> list[np.ndarray]:
    """Masked SGD, data-parallel."""
    for _ in range(num_steps):
        ws = [Tensor(w) for w in weights]
        used = [copy_to(masked(w, mask), comm) for w, mask in zip(ws, masks)]
        out = mlp(Tensor(part(comm, x)), used)
        backward(cross_entropy(out, part(comm, labels), len(x)))
        weights = [w.data - rate * w.grad for w in ws]
    return weights


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    p, draw = comm.size, np.random.default_rng(0)
    weights, x, labels = draw.normal(0, 0.5, (3, 16, 16)), draw.random((30, 16)), np.arange(30) % 16
    n, gone = weights.size, round(0.8 * weights.size)
    trace, own = counted(comm, lambda: magnitude(comm, part(comm, weights.ravel()), gone))
    kept = np.abs(weights) > np.sort(np.abs(weights), axis=None)[gone - 1]      # one process
    wrong = all_reduce(comm, np.array([np.sum(own != part(comm, kept.ravel()))], np.int64))[0]
    fours = two_of_four(weights[0]).reshape(-1, 4, 16).sum(1)
    first, second = without_neurons(weights[0], weights[1], 8)
    alone = train(comm.split(comm.rank), weights, kept, x, labels, 5)   # a world for each rank
    found = train(comm, weights, kept, x, labels, 5)
    lesson.table([
        *([Row("bytes of counts, 4 all-reduces: 4 · 2 (p − 1) · 256 · 8", 4 * 2 * (p - 1) * 2048,
               trace.bytes_sent(), "B")] if comm.rank == 0 else []),
        Row("weights whose mask is not that of one process", 0, int(wrong)),
        Row("2 of 4: kept of each four", 2.0, float(fours.mean() + fours.std())),
        Row("without half of the neurons: weights of two layers", n // 3, first.size + second.size),
        Row("5 steps of masked SGD: difference from one process", 1e-13, float(np.abs(
            np.subtract(found, alone)).max()), "", "≤"),
        Row("    pruned weights that changed", 0, int(np.sum((found != weights) & ~kept)))],
        f"n = {n} weights, 80 % of them pruned, p = {p}")
    compare_with_library(lesson, magnitude, two_of_four, without_neurons)
    lesson.takeaway("Bytes follow the weights that remain, time follows the dense products that "
                    "remain: to be faster, remove whole neurons, or use hardware for 2 of 4.")
    lesson.exercises(questions=[
        "At which sparsity does magnitude lose 5 % of the digits? And random?",
        "In masked, write `(g,)` in place of `(g * mask,)`. What changes, and what does not?",
        "Prune 90 % at once, or along the cubic (sparsity_schedule.py): with 80 steps? With 800?",
        "Why does gathering 20 % of the weights take longer than a dense product of all?"])


if __name__ == "__main__":
    launch(main)
