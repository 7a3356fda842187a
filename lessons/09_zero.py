"""Lesson 09. ZeRO-1 and ZeRO-2: what is redundant?

In data parallelism every rank holds the same parameters, the same summed gradients and the same
optimizer states, 4 Ψ numbers, and computes the same update.  But an all-reduce is a reduce-scatter
and an all-gather, and between the two each rank has its own piece of the sum:

    gradients ─▶ reduce-scatter ─▶ step on 1/p ─▶ all-gather ─▶ parameters    again 2 Ψ (p-1)/p

In ZeRO-1 each rank steps only on its piece, so it needs 1/p of the optimizer states.  ZeRO-2 also
drops the gradients of other ranks' pieces, and ZeRO-3 (lesson 10) their parameters.

    numbers on a rank        parameters   gradients   states of Adam
    data parallelism             Ψ            Ψ            2 Ψ
    ZeRO-1                       Ψ            Ψ            2 Ψ/p
    ZeRO-2                       Ψ            Ψ/p          2 Ψ/p       minipar/parallel/zero/

    python lessons/09_zero.py          mpirun -n 4 python lessons/09_zero.py
"""

from functools import partial

import numpy as np
from micro import Tensor, all_gather, all_reduce, backward, cross_entropy, mlp, part, reduce_scatter
from support.kit import Lesson, Row
from support.lesson_09 import compare_with_library
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch

RATE, BETA_1, BETA_2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def adam(weight: np.ndarray, grad: np.ndarray, state: np.ndarray, t: int) -> None:
    """Step t of each number, in place: none needs to know of another.  state: both moments."""
    mean, square = state
    mean += (1 - BETA_1) * (grad - mean)
    square += (1 - BETA_2) * (grad**2 - square)
    weight -= RATE * mean / (1 - BETA_1**t) / (np.sqrt(square / (1 - BETA_2**t)) + EPSILON)


def gradients(weights: list, batches: list, num_rows: int) -> list[np.ndarray]:
    """Gradients of all weights, over this rank's microbatches; num_rows counts all ranks' rows."""
    ws = [Tensor(w) for w in weights]
    for x, labels in batches:
        backward(cross_entropy(mlp(Tensor(x), ws), labels, num_rows))
    return [w.grad for w in ws]


def data_parallel(comm: Communicator, weights: list, states: list, batches: list, num_rows: int,
                  t: int) -> None:
    """Every rank steps on everything."""
    for w, grad, state in zip(weights, gradients(weights, batches, num_rows), states):
        adam(w, all_reduce(comm, grad), state.reshape(2, *w.shape), t)


def zero1(comm: Communicator, weights: list, states: list, batches: list, num_rows: int,
          t: int) -> None:
    """Each rank steps on its piece, 1/p of each weight; states are as long as the piece."""
    for w, grad, state in zip(weights, gradients(weights, batches, num_rows), states):
        piece = part(comm, w.reshape(-1))               # a view: the step changes w
        adam(piece, reduce_scatter(comm, grad.reshape(-1)), state, t)
        w[:] = all_gather(comm, piece, w.size).reshape(w.shape)


def zero2(comm: Communicator, weights: list, states: list, batches: list, num_rows: int,
          t: int) -> None:
    """As ZeRO-1, but no rank keeps a whole gradient: each is reduced as soon as it is made."""
    pieces = [Tensor(part(comm, w.reshape(-1))) for w in weights]
    whole = dict(zip(pieces, weights))          # a Tensor is its own key, by identity

    def linear(x: Tensor, piece: Tensor) -> Tensor:     # the product with the whole weight
        def pull(g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:   # its backward, as in micro
            whole_grad = x.data.T @ g                   # no longer there when pull has ended
            return g @ whole[piece].T, reduce_scatter(comm, whole_grad.reshape(-1))
        return Tensor(x.data @ whole[piece], (x, piece), pull)      # pull's two go to x, piece
    for x, labels in batches:
        backward(cross_entropy(mlp(Tensor(x), pieces, linear), labels, num_rows))
    for w, piece, state in zip(weights, pieces, states):
        adam(piece.data, piece.grad, state, t)
        w[:] = all_gather(comm, piece.data, w.size).reshape(w.shape)


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    p, draw, m, width = comm.size, np.random.default_rng(0), 3, 4 * comm.size
    start, alone = draw.normal(0, 0.5, (4, width, width)), []
    x, labels = draw.random((m, 2 * p, width)), draw.integers(0, width, (m, 2 * p))
    for w, grad in zip(start, gradients(start, [*zip(x, labels)], labels.size)):    # one process
        alone.append(w.copy())
        adam(alone[-1], grad, np.zeros((2, *w.shape)), 1)
    mine, found, rows = [(part(comm, a), part(comm, b)) for a, b in zip(x, labels)], {}, []
    for method, share, sends in ((data_parallel, 1, 2), (zero1, p, 2), (zero2, p, m + 1)):
        found[method] = [*start.copy()]
        states = np.zeros((4, 2, width**2 // share))
        trace, _ = counted(comm, partial(method, comm, found[method], states, mine, labels.size, 1))
        assert np.abs(np.array(found[method]) - alone).max() < 1e-9, "the weights of one process"
        if comm.rank == 0:
            rows += [Row(f"{method.__name__}: sent by all ranks, {sends} Ψ (p − 1)",
                         sends * start.nbytes * (p - 1), trace.bytes_sent(), "B"),
                     Row("    states on a rank, 2 Ψ" + "/p" * (share > 1),
                         2 * start.nbytes // share, states.nbytes, "B")]
    lesson.table(rows, f"an MLP of Ψ = {start.size} parameters, {m} microbatches, p = {p}")
    compare_with_library(lesson, start, mine, found[zero1], found[zero2])
    lesson.takeaway("Whatever all ranks replicate is stored p − 1 times too often: ZeRO shards it. "
                    "For optimizer states that costs no extra traffic, and for gradients none as "
                    "long as a step has one microbatch.")
    lesson.exercises("shard_overlap", "gather_parameters", "transient_gradient_take", questions=[
        "A ZeRO-1 that all-reduces the gradients, steps on its piece and broadcasts the updates "
        "sends 3 Ψ. Which third was unnecessary?",
        "In zero1, write `part(comm, grad.reshape(-1))` in place of `reduce_scatter(comm, "
        "grad.reshape(-1))`. Do the ranks' weights still agree? Are they right?",
        "The library reduces several gradients in one message, a *bucket*, of 0.1 MB here. Raise "
        "BUCKET_MB in support/lesson_09.py to 25: how does ZeRO-2's peak change?",
        "With 16-bit parameters and gradients Adam steps a float32 *master copy* of the parameters:"
        " (2 + 2 + 12) Ψ bytes. Which of the three is worth most?"])


if __name__ == "__main__":
    launch(main)
