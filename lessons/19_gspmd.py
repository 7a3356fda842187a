"""Lesson 19. GSPMD: what follows when you say how a few tensors are cut?

The program below knows nothing of ranks.  We annotate some of its tensors with the dimension that
the p ranks cut.  Its operations name their dimensions; two steps do the rest:

    product  x (n, i), w (i, o) ─▶ y (n, o)    elementwise  h (n, o) ─▶ a    sum  y (n, o) ─▶ loss

    propagate   if n is cut in x, it is cut in y: back and forth, until nothing changes
    partition   each rank computes on pieces.  A conflict: an operand that is needed whole but is
                cut, is gathered; one that is whole is copied, and its gradient summed.  If the
                result does not have the cut dimension, it is a sum of parts: all-reduce

Rows alone give data parallelism, one weight of two gives Megatron's tensor parallelism, and rows
and weights give FSDP.  These are the collectives that one writes by hand, and none is written down.
Xu et al. 2021.  The library's: minipar/gspmd/propagate.py and minipar/gspmd/partitioning/.

    python lessons/19_gspmd.py              mpirun -n 4 python lessons/19_gspmd.py
"""

from functools import partial
from itertools import permutations

import micro
import numpy as np
from micro import Tensor, backward, copy_to, linear, part, reduce_from, relu
from support.kit import Lesson, Row
from support.lesson_19 import compare_with_library
from support.measuring import counted, total

from minipar.comm import Communicator
from minipar.launcher import launch


def half_squares(y: Tensor) -> Tensor:
    return Tensor((y.data**2).sum() / 2, (y,), lambda g: (g * y.data,))


# Each operation, its operands and its result, which comes last, with a letter for each dimension.
PROGRAM = [(linear, {"x": "ni", "w1": "io", "h": "no"}), (relu, {"h": "no", "a": "no"}),
           (linear, {"a": "ni", "w2": "io", "y": "no"}), (half_squares, {"y": "no", "loss": ""})]


def propagate(program: list, annotations: dict[str, int]) -> dict[str, int]:
    """The cut dimension of each tensor: the same in all tensors of an operation that have it."""
    cut, before = dict(annotations), {}
    while cut != before:
        before = dict(cut)
        for _, letters in program:
            for one, other in permutations(letters, 2):
                if one in cut and other not in cut:     # who came first, keeps its cut
                    letter = letters[one][cut[one]]
                    if letter in letters[other]:
                        cut[other] = letters[other].index(letter)
    return cut


def gather(x: Tensor, comm: Communicator, dim: int) -> Tensor:
    """The whole matrix x; each rank has a piece of it.  Backward: reduce-scatter."""
    def turned(matrix: np.ndarray) -> np.ndarray:       # so that rows are cut
        return matrix.T if dim == 1 else matrix

    def pull(g: np.ndarray) -> tuple[np.ndarray]:
        return (turned(micro.reduce_scatter(comm, turned(g).ravel()).reshape(piece.shape)),)
    piece = turned(x.data)
    whole = micro.all_gather(comm, piece.ravel(), piece.size * comm.size)
    return Tensor(turned(whole.reshape(-1, piece.shape[1])), (x,), pull)


def run(comm: Communicator, program: list, cut: dict[str, int], values: dict) -> Tensor:
    """The program on this rank's pieces; each operation is computed along one cut dimension."""
    for operation, letters in program:
        *operands, result = letters
        cuts = [letters[name][cut[name]] for name in (result, *operands) if name in cut]
        along, inputs = cuts[0] if cuts else "", []     # "" is in all: whole, and all do the same
        for name in operands:
            x = values[name]
            if along not in letters[name]:              # needed whole
                x = gather(x, comm, cut[name]) if name in cut else copy_to(x, comm)
            inputs.append(x)
        y = operation(*inputs)
        values[result] = y if along in letters[result] else reduce_from(y, comm)    # Σ of parts
    return values[result]


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    p, d, rows, draw = comm.size, 2 * comm.size, [], np.random.default_rng(0)
    arrays = {"x": draw.random((3 * p, d)), "w1": draw.random((d, d)), "w2": draw.random((d, d))}
    alone = {name: Tensor(array) for name, array in arrays.items()}
    backward(run(comm.split(comm.rank), PROGRAM, {}, alone))
    for what, annotations, n_there, n_back in (         # numbers sent in forward and in backward
            ("x by rows", {"x": 0}, 2, 4 * d * d),
            ("w1 by columns", {"w1": 1}, 6 * p * d, 6 * p * d),
            ("all by rows", {"x": 0, "w1": 0, "w2": 0}, 2 * d * d + 2, 2 * d * d)):
        cut = propagate(PROGRAM, annotations)
        pieces = {name: Tensor(part(comm, array, cut[name]) if name in cut else array)
                  for name, array in arrays.items()}
        there, loss = counted(comm, partial(run, comm, PROGRAM, cut, pieces))
        back, _ = counted(comm, partial(backward, loss))
        for name, x in alone.items():
            right = part(comm, x.grad, cut[name]) if name in cut else x.grad
            np.testing.assert_allclose(pieces[name].grad, right, rtol=1e-12)
        for phase, n, trace in (("forward", n_there, there), ("backward", n_back, back)):
            rows += [Row(f"{what}: {phase}", 8 * (p - 1) * n, total(comm, trace.bytes_sent()), "B")]
    lesson.table(rows, f"p = {p}; all gradients equal those of one process")
    compare_with_library(lesson, PROGRAM, propagate, run)
    lesson.takeaway("A sharding is a property of dimensions that operations share. Say it for a "
                    "few tensors, and the collectives follow.")
    lesson.exercises(questions=[
        "x (dp, ·) w (dp, ·): both operands of a product want dp, on different factors. Which "
        "three things could a rank compute, and what does each cost?",
        "In run, write `else x` in place of `else copy_to(x, comm)`. Which gradients of the three "
        "programs are wrong now?",
        "Annotate ids with (None, cp) instead of (dp, None): time is cut, and attention needs it "
        "whole. Which collectives does `minipar shard` show, and whose method is that?",
        "In lesson_19.py FSDP's weights have priority=1. What is gathered if they come first?"])


if __name__ == "__main__":
    launch(main)
