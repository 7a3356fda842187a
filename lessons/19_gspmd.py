"""Lesson 19. GSPMD: what follows when you say how a few tensors are cut?

The program below knows nothing of ranks.  We annotate some of its tensors with the dimension that
the p ranks cut.  Its operations name their dimensions; two steps do the rest:

    product  x (n, i), w (i, o) ─▶ y (n, o)    elementwise  h (n, o) ─▶ a    sum  y (n, o) ─▶ loss

    propagate   if n is cut in x, it is cut in y: back and forth, until nothing changes
    partition   each rank computes on pieces.  A conflict: an operand that is needed whole but is
                cut, is gathered; one that is whole is copied, and its gradient summed.  If the
                result does not have the cut dimension, it is a sum of parts: all-reduce

Rows alone give data parallelism, one weight of two gives Megatron's tensor parallelism, rows and
weights FSDP: the collectives that one writes by hand, and none is written down.  Xu et al. 2021.
The library's: minipar/gspmd/propagate.py and minipar/gspmd/partitioning/.

    python lessons/19_gspmd.py              mpirun -n 4 python lessons/19_gspmd.py
"""

from functools import partial

import micro
import numpy as np
from micro import Tensor, backward, copy_to, linear, part, reduce_from, relu
from support.kit import Lesson, Row
from support.lesson_19 import compare_with_library
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch


def half_squares(y: Tensor) -> Tensor:
    return Tensor((y.data**2).sum() / 2, (y,), lambda g: (g * y.data,))


# Each operation, its operands and its result, which comes last, with the names of their dimensions.
PROGRAM = [(linear, {"x": "ni", "w1": "io", "h": "no"}), (relu, {"h": "no", "a": "no"}),
           (linear, {"a": "ni", "w2": "io", "y": "no"}), (half_squares, {"y": "no", "loss": ""})]


def propagate(program: list, annotations: dict[str, int]) -> dict[str, int]:
    """The cut dimension of each tensor: the same in all tensors of an operation that have it."""
    cut = dict(annotations)
    while True:
        before = dict(cut)
        for _, tensors in program:
            for name, dims in tensors.items():
                for other, its_dims in tensors.items():
                    if name in cut and dims[cut[name]] in its_dims:     # who came first, keeps it
                        cut.setdefault(other, its_dims.index(dims[cut[name]]))
        if cut == before:
            return cut


def gather(x: Tensor, comm: Communicator, dim: int) -> Tensor:
    """The whole matrix x, of which each rank has a piece.  Backward: reduce-scatter."""
    turn = np.transpose if dim == 1 else np.asarray         # so that rows are cut
    piece = turn(x.data)
    whole = micro.all_gather(comm, piece.ravel(), piece.size * comm.size)
    return Tensor(turn(whole.reshape(-1, piece.shape[1])), (x,), lambda g: (
        turn(micro.reduce_scatter(comm, turn(g).ravel()).reshape(piece.shape)),))


def whole(x: Tensor, comm: Communicator, cut: int | None) -> Tensor:
    """x, needed whole by ranks that do different things with it: so its gradients add up."""
    return copy_to(x, comm) if cut is None else gather(x, comm, cut)


def run(comm: Communicator, program: list, cut: dict[str, int], values: dict) -> Tensor:
    """The program on this rank's pieces; each operation is computed along one cut dimension."""
    for operation, tensors in program:
        *operands, result = tensors
        ways = [tensors[name][cut[name]] for name in (result, *operands) if name in cut]
        way = ways[0] if ways else ""       # "" is in all: whole, and each rank does the same
        values[result] = operation(*(
            values[name] if way in tensors[name] else whole(values[name], comm, cut.get(name))
            for name in operands))
        if way not in tensors[result]:      # each rank has a part of the sum
            values[result] = reduce_from(values[result], comm)
    return values[result]


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    p, d, rows, draw = comm.size, 2 * comm.size, [], np.random.default_rng(0)
    arrays = {"x": draw.random((3 * p, d)), "w1": draw.random((d, d)), "w2": draw.random((d, d))}
    alone = {name: Tensor(array) for name, array in arrays.items()}
    backward(run(comm.split(comm.rank), PROGRAM, {}, alone))
    for name, annotations, there, back in (
            ("x by rows", {"x": 0}, 2, 4 * d * d),
            ("w1 by columns", {"w1": 1}, 6 * p * d, 6 * p * d),
            ("all by rows", {"x": 0, "w1": 0, "w2": 0}, 2 * d * d + 2, 2 * d * d)):
        cut = propagate(PROGRAM, annotations)
        pieces = {each: Tensor(part(comm, array, cut[each]) if each in cut else array)
                  for each, array in arrays.items()}
        forward, loss = counted(comm, partial(run, comm, PROGRAM, cut, pieces))
        backwards, _ = counted(comm, partial(backward, loss))
        for each in arrays:
            right = part(comm, alone[each].grad, cut[each]) if each in cut else alone[each].grad
            np.testing.assert_allclose(pieces[each].grad, right, rtol=1e-12)
        rows += [Row(f"{name}: {phase}", 8 * (p - 1) * numbers * (comm.rank == 0),
                     trace.bytes_sent(), "B") for phase, numbers, trace in (
                         ("forward", there, forward), ("backward", back, backwards))]
    lesson.table(rows, f"p = {p}; all gradients equal those of one process")
    compare_with_library(lesson, PROGRAM, propagate, run)
    lesson.takeaway("A sharding is a property of dimensions that operations share. Say it for a "
                    "few tensors, and the collectives follow.")
    lesson.exercises(questions=[
        "x (dp, ·) w (dp, ·): both operands of a product want dp, on different factors. Which "
        "three things could a rank compute, and what does each cost?",
        "In whole, write `x if cut` in place of `copy_to(x, comm) if cut`. Which gradients of the "
        "three programs are wrong now?",
        "Annotate ids with (None, cp) instead of (dp, None): time is cut, and attention needs it "
        "whole. Which collectives does `minipar shard` show, and whose method is that?",
        "In lesson_19.py FSDP's weights have priority=1. What is gathered if they come first?"])


if __name__ == "__main__":
    launch(main)
