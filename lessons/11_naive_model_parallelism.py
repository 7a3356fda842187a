"""Lesson 11. Naive model parallelism: who idles?

A model that does not fit on one device is cut into stages: rank 0 has the first layers, rank 1 the
next ones, and so on.  Each rank needs the activations of the rank before it, and in backward the
gradients of the rank after it.  So at any time one rank works and p - 1 wait.

    rank 0  ▐ F ▌                ▐  B  ▌        p devices take as long as one:
    rank 1       ▐ F ▌    ▐  B  ▌               utilization 1/p, whatever the batch size
    rank 2            ▐ F ▌▐ B ▌                2 (p - 1) b d numbers are sent, one after another

In 2012 AlexNet needed two devices, and its authors cut it the other way: each device had half of
the channels of every layer, a *column*.  The columns exchange data only at some layers, so both
devices work all the time (Krizhevsky, Sutskever & Hinton 2012, section 3.5).

    rank 0  x ─▶ layer ─▶ layer ─┬─▶ layer ─▶ layer ─┐
                                 ╳ all columns       Σ ─▶ logits
    rank 1  x ─▶ layer ─▶ layer ─┴─▶ layer ─▶ layer ─┘

The library's: minipar/parallel/pipeline/naive.py.

    python lessons/11_naive_model_parallelism.py          mpirun -n 4 python lessons/11_…
"""

from functools import partial

import numpy as np
from micro import Tensor, backward, cross_entropy, linear, mlp, one_process, part, reduce_from, relu
from support.kit import Lesson, Row
from support.lesson_11 import columns_in_one_process, compare_with_library
from support.measuring import counted, rounds_of, total

from minipar.comm import Communicator
from minipar.launcher import launch

Array = np.ndarray


def in_stages(comm: Communicator, weights: Array, x: Array, labels: Array) -> list[Array]:
    """The gradients of this rank's layers, 1/p of the weights."""
    p, r, layers = comm.size, comm.rank, [Tensor(w) for w in part(comm, weights)]
    h = Tensor(x if r == 0 else np.empty_like(x))
    if r > 0:
        comm.recv(h.data, r - 1)                # wait for all ranks before
    y = mlp(relu(h) if r > 0 else h, layers)
    if r < p - 1:
        comm.send(y.data, r + 1)
        grad = np.empty_like(y.data)
        comm.recv(grad, r + 1)                  # wait for all ranks after, there and back
        backward(y, grad)
    else:
        backward(cross_entropy(y, labels, len(labels)))
    if r > 0:
        comm.send(h.grad, r - 1)
    return [w.grad for w in layers]


def exchange(h: Tensor, comm: Communicator) -> Tensor:
    """The channels of all columns.  All ranks use mine: backward adds up their gradients of it."""
    p, r = comm.size, comm.rank
    columns = [h.data if i == r else np.empty_like(h.data) for i in range(p)]
    for k in range(1, p):
        comm.sendrecv(h.data, (r + k) % p, columns[r - k], (r - k) % p)

    def pull(grad: Array) -> tuple:
        grads, arrived = np.split(grad, p, axis=1), np.empty_like(h.data)
        mine = grads[r].copy()
        for k in range(1, p):
            comm.sendrecv(grads[(r + k) % p], (r + k) % p, arrived, (r - k) % p)
            mine += arrived
        return (mine,)
    return Tensor(np.hstack(columns), (h,), pull)


def in_columns(comm: Communicator, column: list[Array], x: Array, labels: Array) -> list[Array]:
    """The gradients of this rank's column of four layers."""
    first, second, third, last = layers = [Tensor(w) for w in column]
    h = relu(linear(relu(linear(Tensor(x), first)), second))        # of this column alone
    h = relu(linear(exchange(h, comm), third))                      # of all columns
    logits = reduce_from(linear(h, last), comm)                     # the sum of all columns'
    backward(cross_entropy(logits, labels, len(labels)))
    return [w.grad for w in layers]


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, r, b, d, draw, rows = comm.size, comm.rank, 6, 8, np.random.default_rng(0), []
    x, labels = draw.normal(size=(b, d)), draw.integers(0, d, b)
    weights = draw.normal(size=(2 * p, d, d)) / 2                       # two layers for each rank
    columns = [[draw.normal(size=(w, d)) for w in (d, d, p * d, d)] for _ in range(p)]
    for name, program, right, sent, at_once in (
            ("stages", partial(in_stages, comm, weights), part(comm, one_process(
                weights, x, labels)), 2 * (p - 1) * b * d * 8, 1),
            ("columns", partial(in_columns, comm, columns[r]), columns_in_one_process(
                columns, x, labels)[r], 2 * (p + 1) * (p - 1) * b * d * 8, p)):
        trace, grads = counted(comm, partial(program, x, labels))
        error = max(np.abs(mine - grad).max() for mine, grad in zip(grads, right, strict=True))
        rounds = total(comm, 0 if r else rounds_of(trace, p))
        rows += [Row(f"{name}: difference from one process", 1e-14, error, "", "≤"),
                 Row("    sent by all ranks", sent, total(comm, trace.bytes_sent()), "B"),
                 Row("    messages at a time", at_once, total(comm, trace.num_sent()) / rounds)]
    lesson.table(rows, f"p = {p}, b = {b} samples, d = {d}")
    compare_with_library(lesson, in_stages, in_columns)
    lesson.takeaway("Layers on different devices give memory, not speed: utilization stays 1/p "
                    "until you also cut either each layer or the batch.")
    lesson.exercises(questions=[
        "In in_stages, write `comm.isend(y.data, r + 1)` in place of `comm.send(y.data, r + 1)`. "
        "Does any rank wait less?",
        "Rank 1's layers take twice as long as the others'. What is the utilization of p ranks?",
        "In minipar TwoColumns meet twice. What would be sent if they met at every layer?",
        "Why does the last rank need the labels, the first one the inputs, and no rank both?"])


if __name__ == "__main__":
    launch(main)
