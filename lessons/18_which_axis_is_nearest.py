"""Lesson 18. 2D, 3D and topology: which axis belongs on the nearest ranks?

Eight ranks on two nodes train one GPT with three kinds of parallelism at once:

    pp = 2   splits the layers into stages     sends activations from stage to stage
    dp = 2   splits the rows of a batch        sums gradients, once a step
    tp = 2   splits each layer                 sums activations, four times in every layer

Axes nest: a rank's number has its places along the axes as digits.  Ranks along the fastest axis
are neighbours, ranks along the slowest are on different nodes:

    pp 0: node 0              pp 1: node 1
           tp 0  tp 1                tp 0  tp 1         rank = (pp · 2 + dp) · 2 + tp
    dp 0      0     1         dp 0      4     5         along dp: 0 2, 1 3, 4 6, 5 7
    dp 1      2     3         dp 1      6     7         between the nodes: along pp alone

Each nesting sends the same messages, but over different links.  Library: minipar/comm/mesh.py.

    python lessons/18_which_axis_is_nearest.py      (or mpirun -n 4 python …)
"""

from functools import partial
from itertools import permutations

import numpy as np
from micro import Tensor, backward, copy_to, cross_entropy, linear, part, reduce_from, relu
from support.kit import Lesson, Row
from support.lesson_18 import compare_with_library
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch

Shape = dict[str, int]              # axes with their sizes, from the slowest to the fastest


def coordinates(rank: int, shape: Shape) -> dict[str, int]:
    """A rank's place along each axis: the last digit is that of the fastest axis."""
    place = {}
    for axis in reversed(shape):
        rank, place[axis] = divmod(rank, shape[axis])
    return place


def rank_of(place: dict[str, int], shape: Shape) -> int:
    """The rank at this place."""
    rank = 0
    for axis, size in shape.items():
        rank = rank * size + place[axis]
    return rank


def along(comm: Communicator, axis: str, shape: Shape) -> Communicator:
    """The ranks that differ from me along this axis only; `split` knows them by their first one."""
    place = coordinates(comm.rank, shape)
    return comm.split(rank_of({**place, axis: 0}, shape))


def bytes_between_nodes(sent: dict[str, int], shape: Shape, per_node: int) -> int:
    """The bytes on slow links, if each rank sends sent[axis] to the next one along each axis."""
    total = 0
    for rank in range(np.prod([*shape.values()])):
        place = coordinates(rank, shape)
        for axis, size in shape.items():
            next_rank = rank_of({**place, axis: (place[axis] + 1) % size}, shape)
            if next_rank // per_node != rank // per_node:
                total += sent[axis]
    return total


def best_nesting(sent: dict[str, int], shape: Shape, per_node: int) -> tuple[str, ...]:
    """The order of the axes that sends least between nodes."""
    return min(permutations(shape), key=lambda order: bytes_between_nodes(
        sent, {axis: shape[axis] for axis in order}, per_node))


def dp_and_tp(dp: Communicator, tp: Communicator, weights: np.ndarray, x: np.ndarray,
              labels: np.ndarray) -> list[np.ndarray]:
    """micro's tensor_parallel along tp, and its data_parallel along dp: one copy_to more."""
    ws = [Tensor(part(tp, w, axis=1 - i % 2)) for i, w in enumerate(weights)]
    h = Tensor(part(dp, x))
    for i in range(0, len(ws), 2):
        h = relu(linear(copy_to(relu(h) if i else h, tp), copy_to(ws[i], dp)))
        h = reduce_from(linear(h, copy_to(ws[i + 1], dp)), tp)
    backward(cross_entropy(h, part(dp, labels), len(x)))    # divided by the rows of all
    return [w.grad for w in ws]


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, tp_size, rows, draw = comm.size, 2 - comm.size % 2, [], np.random.default_rng(0)
    d, n, shape = 4 * p, 2 * p, {"dp": p // tp_size, "tp": tp_size}
    weights, x, labels = draw.normal(0, .3, (4, d, d)), draw.random((n, d)), draw.integers(0, d, n)
    alone = dp_and_tp(*2 * [comm.split(comm.rank)], weights, x, labels)
    numbers = {"dp": 4 * d * d // tp_size, "tp": 4 * n // shape["dp"] * d}      # of all-reduces
    sent = {axis: 2 * (size - 1) * 8 * numbers[axis] // size for axis, size in shape.items()}
    for nested in ({axis: shape[axis] for axis in order} for order in permutations(shape)):
        dp, tp = along(comm, "dp", nested), along(comm, "tp", nested)
        trace, grads = counted(comm, partial(dp_and_tp, dp, tp, weights, x, labels))
        off = max(np.abs(grad - part(tp, right, axis=1 - i % 2)).max()
                  for i, (grad, right) in enumerate(zip(grads, alone)))
        crossing = sum(m.num_bytes for m in trace.select() if m.source // 2 != m.dest // 2)
        predicted = bytes_between_nodes(sent, nested, 2) * (comm.rank == 0)
        rows += [Row(f"{' > '.join(nested)}: difference from one process", 1e-13, off, "", "≤"),
                 Row("    bytes between nodes of 2 ranks", predicted, crossing, "B")]
    lesson.table(rows, " × ".join(f"{axis} {size}" for axis, size in shape.items()))
    compare_with_library(lesson, coordinates, bytes_between_nodes, best_nesting)
    lesson.takeaway("The nesting does not change the messages, but the links that carry them: put "
                    "the axis that sends most, and most often, on the nearest ranks.")
    lesson.exercises(questions=[
        "Which of the three axes send more when the batch grows, and which does not?",
        "In along, write `place[axis]` in place of `rank_of({**place, axis: 0}, shape)`. Which "
        "ranks meet on 2 × 2, and which on 2 × 2 × 2?",
        "Set ROWS = 2 in support/lesson_18.py, so that a dp rank has one row: which axis sends "
        "most now, and which belongs between the nodes?",
        "Switch sequence_parallel on. Do the bytes of pp change? Why?"])


if __name__ == "__main__":
    launch(main)
