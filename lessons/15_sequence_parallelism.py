"""Lesson 15. Sequence parallelism: which activations are still replicated?

Tensor parallelism cuts the layers, but between them every rank computes the same layer norms and
dropouts for all tokens, and keeps the same activations.  Sequence parallelism cuts the tokens
there:

    tensor      ──x, all──▶ norm ──▶ f: copy       ═ pair ═ g: all-reduce     ──▶ x, all
    sequence    ──some x──▶ norm ──▶ all-gather    ═ pair ═ reduce-scatter    ──▶ some x

    kept of an MLP and its norm, in t·d numbers      tensor  2 + 8/p     sequence  1 + 9/p
    sent, in (p-1)·t·d numbers of all ranks                  4                     4

An all-reduce is a reduce-scatter and an all-gather: so the same bytes in smaller steps.  Weights
that are used on split tokens (norms, biases, positions) need their gradients summed: copy_to(w).
The library's: minipar/parallel/tensor/sequence.py.

    python lessons/15_sequence_parallelism.py        mpirun -n 4 python lessons/15_…
"""

from functools import partial

import numpy as np
from micro import Tensor, all_gather, backward, copy_to, linear, reduce_from, reduce_scatter, relu
from support.kit import Lesson, Row
from support.lesson_15 import compare_with_library, kept
from support.measuring import counted, total

from minipar.comm import Communicator
from minipar.launcher import launch


def norm(x: Tensor, gain: Tensor) -> Tensor:
    """Each token, a row of x, brought to mean 0 and variance 1, times gain."""
    scale = 1 / x.data.std(axis=1, keepdims=True)
    unit = (x.data - x.data.mean(axis=1, keepdims=True)) * scale

    def pull(grad: np.ndarray) -> tuple:
        du = grad * gain.data
        along = (du * unit).mean(axis=1, keepdims=True)
        return scale * (du - du.mean(axis=1, keepdims=True) - unit * along), (grad * unit).sum(0)
    return Tensor(unit * gain.data, (x, gain), pull)


def whole(comm: Communicator, x: np.ndarray) -> np.ndarray:
    """All tokens; rank i has the i-th part of them."""
    return all_gather(comm, x.reshape(-1), comm.size * x.size).reshape(-1, x.shape[1])


def summed(comm: Communicator, y: np.ndarray) -> np.ndarray:
    """This rank's part of the tokens in the sum of all ranks' y."""
    return reduce_scatter(comm, y.reshape(-1)).reshape(-1, y.shape[1])


def gather(x: Tensor, comm: Communicator) -> Tensor:
    """In the place of f.  Each rank uses all tokens in its own way: so backward adds up."""
    return Tensor(whole(comm, x.data), (x,), lambda grad: (summed(comm, grad),))


def scatter(y: Tensor, comm: Communicator) -> Tensor:
    """In the place of g.  Each y has the gradient of the sum, all tokens of it."""
    return Tensor(summed(comm, y.data), (y,), lambda grad: (whole(comm, grad),))


def tensor_layer(x: Tensor, gain: Tensor, a: Tensor, b: Tensor, comm: Communicator) -> Tensor:
    """All tokens x; this rank's columns a and rows b."""
    h = copy_to(norm(x, gain), comm)
    return reduce_from(linear(relu(linear(h, a)), b), comm)


def sequence_layer(x: Tensor, gain: Tensor, a: Tensor, b: Tensor, comm: Communicator) -> Tensor:
    """The same for this rank's tokens x.  Each rank uses gain on different tokens: copy_to."""
    h = gather(norm(x, copy_to(gain, comm)), comm)
    return scatter(linear(relu(linear(h, a)), b), comm)


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, r, t, d, rows = comm.size, comm.rank, 4 * comm.size, 2 * comm.size, []
    draw, n = np.random.default_rng(0), t * d
    x, gain, a, b, grad = [draw.normal(size=s) for s in ((t, d), d, (d, 4 * d), (4 * d, d), (t, d))]
    alone = [Tensor(each) for each in (x, gain, a, b)]
    y = tensor_layer(*alone, comm.split(r))                 # this rank alone, with all weights
    backward(y, grad)

    def cut(x: np.ndarray, axis: int = 0) -> np.ndarray:
        return np.array_split(x, p, axis)[r]
    for name, layer, tokens, keeps, sends in (
            ("tensor", tensor_layer, np.array, 2 * n + t + 8 * n // p, 4 * n),
            ("sequence", sequence_layer, cut, n + (n + t + 8 * n) // p, 4 * n + 2 * d)):
        parts = [Tensor(each) for each in (tokens(x), gain, cut(a, 1), cut(b))]
        forward, mine = counted(comm, partial(layer, *parts, comm))
        size = kept(mine, parts)
        back, _ = counted(comm, partial(backward, mine, tokens(grad)))
        error = max(np.abs(one - two).max() for one, two in (
            (mine.data, tokens(y.data)), (parts[0].grad, tokens(alone[0].grad)),
            (parts[1].grad, alone[1].grad), (parts[2].grad, cut(alone[2].grad, 1))))
        sent = total(comm, forward.bytes_sent() + back.bytes_sent())
        rows += [Row(f"{name}: difference from one process", 1e-13, error, "", "≤"),
                 Row("    numbers that a rank keeps", keeps, size),
                 Row("    sent by all ranks", (p - 1) * sends * 8, sent, "B")]
    lesson.table(rows, f"p = {p}: an MLP and its norm, {t} tokens, d = {d}")
    compare_with_library(lesson, tensor_layer, sequence_layer)
    lesson.takeaway("Between the pairs of layers tokens are independent: cut them there. Each "
                    "all-reduce becomes its two halves, which send the same bytes and need less "
                    "memory.")
    lesson.exercises("row_linear", questions=[
        "In sequence_layer, write `norm(x, gain)` in place of `norm(x, copy_to(gain, comm))`. What "
        "is each rank's gradient of gain? Which weights of a GPT need copy_to?",
        "Attention needs all tokens. What would the ranks send each other if queries stayed "
        "split, and met the keys and values of one rank after the other?",
        "When is the fourth bar worth its all-gathers? Compare with recomputing the layer."])


if __name__ == "__main__":
    launch(main)
