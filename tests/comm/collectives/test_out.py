"""`out` of every operation; arrays of every kind through every algorithm."""

import numpy as np
import pytest

from minipar.backend.shape_array import Memory, ShapeArray
from minipar.comm import Cluster, collectives
from minipar.comm.collectives import (
    all_gather,
    all_reduce,
    exscan,
    gather,
    reduce,
    reduce_scatter,
    scan,
)
from minipar.testing import worlds
from tests.support.operation_table import ALL, NAMES, expected, given, pieces

MOVING = [pair for pair in ALL if pair[0] != "barrier"]
each = pytest.mark.parametrize(("operation", "algorithm"), MOVING,
                               ids=[name for name in NAMES if "barrier" not in name])
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan")


def run(operation, algorithm, comm, array, **options):
    """One call whose pieces are equal: the length of `array` is a multiple of the ranks'."""
    if operation in ("gather", "all_gather"):
        array = pieces(array, comm.size)[comm.rank]
    return getattr(collectives, operation)(comm, array, algorithm=algorithm, **options)


def layouts(result: np.ndarray) -> list[np.ndarray]:
    """Places for a vector: one that follows upon itself, one with gaps, one backwards."""
    n, dtype = len(result), result.dtype
    return [np.zeros(n, dtype), np.zeros(2 * n, dtype)[::2], np.zeros(n, dtype)[::-1]]


@each
@worlds(1, 3, 4, mpi=(4,))
@pytest.mark.one_in(3)
def test_the_result_is_written_into_out(world, operation, algorithm):
    def body(comm):
        p, r, n = comm.size, comm.rank, 3 * comm.size
        right = expected(operation, p, r, n)
        if right is None:                   # not the root of a gather or a reduce
            outs = [np.zeros(n, np.int64)] * 3
        else:
            outs = layouts(right)
        for out in outs:
            mine = given(r, n)
            result = run(operation, algorithm, comm, mine, out=out)
            assert (result is out) == (right is not None)
            assert np.array_equal(out, right if right is not None else np.zeros(n))
            assert np.array_equal(mine, given(r, n))
    world.run(body)


@each
def test_out_may_be_the_input(operation, algorithm):
    """Or a part of it, where the result is shorter; or contain it, where it is longer."""
    def body(comm):
        p, r, n = comm.size, comm.rank, 12
        mine = given(r, n)
        piece = slice(r * n // p, (r + 1) * n // p)
        out = mine[piece] if operation in ("scatter", "reduce_scatter") else mine
        result = run(operation, algorithm, comm, mine, out=out)
        assert result is None or np.array_equal(result, expected(operation, p, r, n))
    for p in (1, 3, 4):
        Cluster(p).run(body)


@pytest.mark.parametrize("operation", sorted({operation for operation, _ in MOVING}))
def test_an_out_of_another_kind_is_refused_before_any_message(operation):
    cluster = Cluster(2, trace=True)

    def body(comm):
        right = expected(operation, 2, 0, 4)
        for out in (np.zeros(len(right) + 1, np.int64), np.zeros(right.shape, np.int32),
                    np.zeros((1, *right.shape), np.int64)[..., ::-1]):
            with pytest.raises(ValueError, match=rf"out is .*, the result int64 \({len(right)},\)"):
                run(operation, "auto", comm, given(comm.rank, 4), out=out)
            if operation == "gather" and comm.rank:
                return                                      # only the root has a result
    if operation == "gather":
        with pytest.raises(ValueError, match="out is"):
            Cluster(2).run(lambda comm: run("gather", "auto", comm, given(0, 4),
                                            out=None if comm.rank else np.zeros(1)))
        return
    cluster.run(body)
    assert cluster.trace.num_sent() == 0


def test_out_along_another_axis():
    def body(comm):
        parts = np.arange(24).reshape(2, 3, 4) + 100 * comm.rank
        for dim in range(3):
            whole = np.zeros([n * 3 if i == dim else n for i, n in enumerate((2, 3, 4))], int)
            assert all_gather(comm, parts, dim, out=whole) is whole
            right = np.concatenate([parts + 100 * (r - comm.rank) for r in range(3)], dim)
            assert np.array_equal(whole, right)
            assert np.array_equal(gather(comm, parts, dim=dim, out=whole.copy("F")),
                                  right if comm.rank == 0 else None)
            piece = np.array_split(whole, 3, dim)[comm.rank]
            assert reduce_scatter(comm, whole.copy(), dim, out=piece) is piece
            assert np.array_equal(piece, 3 * parts)
    Cluster(3).run(body)


@pytest.mark.parametrize("op", ["sum", "prod"])
def test_a_sum_of_bool_is_refused_with_what_to_do(op):
    def body(comm):
        for run in (all_reduce, reduce, reduce_scatter, scan, exscan):
            with pytest.raises(ValueError, match="'max' is or, 'min' is and; to count, give"):
                run(comm, np.ones(4, bool), op=op)
        found = all_reduce(comm, np.array([comm.rank == 1, comm.rank >= 0]), op="max")
        assert found.dtype == bool and found.tolist() == [True, True]
        assert all_reduce(comm, np.array([comm.rank == 1, True]), "min").tolist() == [False, True]
    Cluster(2).run(body)


@each
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint16", "int64", "?"])
def test_every_dtype_travels(operation, algorithm, dtype):
    op = "max" if operation in REDUCING else "sum"
    options = {"op": op} if operation in REDUCING else {}
    results, _ = Cluster(3).run(lambda comm: run(operation, algorithm, comm,
                                                 given(comm.rank, 6, dtype), **options))
    for rank, result in enumerate(results):
        if operation == "exscan" and rank == 0:
            continue
        right = expected(operation, 3, rank, 6, np.dtype(dtype), op)
        assert (result is None) == (right is None)
        assert result is None or result.dtype == dtype and np.array_equal(result, right)


@each
@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
def test_shape_only_arrays_take_the_same_way(operation, algorithm, p):
    """Same shapes, same messages, no numbers."""
    n = 4 * p

    def traced(array_of) -> tuple:
        cluster = Cluster(p, trace=True)
        results, seconds = cluster.run(
            lambda comm: run(operation, algorithm, comm, array_of(comm.rank)))
        shapes = [None if a is None else (a.shape, a.dtype) for a in results]
        return shapes, seconds, sorted(cluster.trace.messages)
    memory = Memory()
    of_shapes = traced(lambda rank: ShapeArray((n, 3), np.float32, memory))
    assert of_shapes == traced(lambda rank: np.zeros((n, 3), np.float32))
