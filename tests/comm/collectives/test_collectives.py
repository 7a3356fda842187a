"""Every collective against NumPy, in both worlds, at sizes that are no power of two."""

import numpy as np
import pytest

from minipar.comm.arguments import OPERATORS
from minipar.comm.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    chunk_bounds,
    reduce_scatter,
)
from minipar.testing import worlds

SIZES = (1, 2, 3, 4, 5, 7, 8)
DTYPES = ("float64", "float32", "float16", "int64", "int8", "uint16")
SHAPES = {"0-d": (), "none": (0,), "no rows": (3, 0), "one": (1,), "fewer than ranks": (2,),
          "uneven": (13,), "even": (8, 3)}
LAYOUTS = {"plain": lambda a: a, "fortran": np.asfortranarray, "backwards": lambda a: a[::-1, ::-1],
           "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2], "transposed": lambda a: a.T}


def inputs(size: int, shape: tuple, dtype: str = "float64") -> np.ndarray:
    """The arrays of all ranks, known to each: (size, *shape), of numbers around 1."""
    rng = np.random.default_rng(size)
    if dtype.startswith("float"):
        return rng.uniform(0.5, 1.5, (size, *shape)).astype(dtype)
    return rng.integers(0, 3, (size, *shape)).astype(dtype)


def assert_reduced(result: np.ndarray, parts: np.ndarray, op: str) -> None:
    """Integers, maxima and minima exactly; rounded sums and products within p eps."""
    expected = OPERATORS[op].reduce(parts, axis=0, dtype=parts.dtype)
    assert result.dtype == parts.dtype and result.shape == expected.shape
    if parts.dtype.kind != "f" or op in ("max", "min"):
        assert np.array_equal(result, expected)
    else:
        exact = OPERATORS[op].reduce(parts.astype(np.float64), axis=0)
        bound = len(parts) * np.finfo(parts.dtype).eps * exact      # all numbers are positive
        assert np.all(np.abs(result.astype(np.float64) - exact) <= bound)


def assert_same_bits(comm, array: np.ndarray) -> None:
    mine = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    for other in np.split(all_gather(comm, mine), comm.size):
        assert np.array_equal(other, mine)


@worlds(*SIZES)
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.one_in(2)
def test_all_reduce_of_every_dtype_and_shape(world, op):
    def body(comm):
        for dtype in DTYPES:
            for shape in SHAPES.values():
                parts = inputs(comm.size, shape, dtype)
                mine = parts[comm.rank].copy()
                result = all_reduce(comm, mine, op)
                assert_reduced(result, parts, op)
                assert np.array_equal(mine, parts[comm.rank]) and result is not mine
                assert_same_bits(comm, result)
    world.run(body)


@worlds(2, 3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_reduce_of_every_layout_in_and_out(world, layout):
    def body(comm):
        parts = inputs(comm.size, (4, 6))
        mine = LAYOUTS[layout](parts[comm.rank].copy())
        expected = np.sum([LAYOUTS[layout](part) for part in parts], axis=0)
        np.testing.assert_allclose(all_reduce(comm, mine), expected, rtol=1e-15)
        out = LAYOUTS[layout](np.zeros((4, 6)))
        assert all_reduce(comm, mine, out=out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-15)
        assert all_reduce(comm, mine, out=mine) is mine         # in place
        assert np.array_equal(mine, out)
    world.run(body)


@worlds(1, 3)
def test_an_out_of_another_kind_is_refused(world):
    def body(comm):
        for out in (np.zeros(4), np.zeros(3, np.float32)):
            with pytest.raises(ValueError, match=r"out is .* the result float64 \(3,\)"):
                all_reduce(comm, np.zeros(3), out=out)
    world.run(body)


@worlds(mpi=(2, 4))
@pytest.mark.parametrize("op", OPERATORS)
def test_the_ring_agrees_with_the_mpi_library(world, op):
    def body(comm):
        for dtype in ("float64", "float32", "int64", "uint16"):
            parts = inputs(comm.size, (13, 2), dtype)
            mine = parts[comm.rank].copy()
            assert_reduced(all_reduce(comm, mine, op, algorithm="mpi"), parts, op)
            assert np.array_equal(mine, parts[comm.rank])
            all_reduce(comm, mine, op, algorithm="mpi", out=mine)
            assert_reduced(mine, parts, op)
    world.run(body)


@worlds(2, mpi=())
def test_there_is_no_mpi_library_in_simulation(world):
    with pytest.raises(TypeError, match="needs real MPI ranks"):
        world.run(lambda comm: all_reduce(comm, np.zeros(2), algorithm="mpi"))


@worlds(*SIZES)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_reduce_scatter_along_any_axis(world, dim):
    def body(comm):
        for shape in ((8, 8, 8), (5, 6, 7), (2, 1, 3), (0, 0, 4)):      # uneven, fewer than ranks
            for op in OPERATORS:
                parts = inputs(comm.size, shape)
                mine = parts[comm.rank].copy()
                result = reduce_scatter(comm, mine, dim, op)
                pieces = np.array_split(parts, comm.size, axis=dim % 3 + 1)
                assert_reduced(result, pieces[comm.rank], op)
                assert np.array_equal(mine, parts[comm.rank])
    world.run(body)


@worlds(*SIZES)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_all_gather_along_any_axis(world, dim):
    def body(comm):
        for shape in ((8, 8, 8), (5, 6, 7), (2, 1, 3), (0, 0, 4)):
            for dtype in DTYPES:
                whole = inputs(1, shape, dtype)[0]
                mine = np.array_split(whole, comm.size, axis=dim)[comm.rank].copy()
                result = all_gather(comm, mine, dim, total=shape[dim])
                assert np.array_equal(result, whole) and result.dtype == whole.dtype
        parts = inputs(comm.size, (2, 3, 4))                    # equal pieces need no total
        result = all_gather(comm, parts[comm.rank], dim)
        assert np.array_equal(result, np.concatenate(parts, axis=dim))
    world.run(body)


@worlds(2, 3)
def test_all_gather_refuses_another_piece_than_its_own(world):
    def body(comm):
        with pytest.raises(ValueError, match=f"rank {comm.rank} of {comm.size} has length 9 along "
                                             "axis 1; its piece of 7 is"):
            all_gather(comm, np.zeros((2, 9)), 1, total=7)
    world.run(body)


@worlds(*SIZES)
@pytest.mark.parametrize("root", [0, 1, -1])
def test_broadcast_from_any_root(world, root):
    def body(comm):
        source = root % comm.size
        for dtype in DTYPES:
            for shape in SHAPES.values():
                parts = inputs(comm.size, shape, dtype)
                mine = parts[comm.rank].copy()
                result = broadcast(comm, mine, source)
                assert np.array_equal(result, parts[source]) and result.dtype == mine.dtype
                assert np.array_equal(mine, parts[comm.rank]) and result is not mine
                out = np.array(mine)
                assert broadcast(comm, out, source, out=out) is out
                assert np.array_equal(out, parts[source])
    world.run(body)


@worlds(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_broadcast_of_every_layout(world, layout):
    def body(comm):
        parts = inputs(comm.size, (4, 6))
        out = LAYOUTS[layout](np.zeros((4, 6)))
        broadcast(comm, LAYOUTS[layout](parts[comm.rank]), root=2, out=out)
        assert np.array_equal(out, LAYOUTS[layout](parts[2]))
    world.run(body)


@worlds(*SIZES)
@pytest.mark.parametrize("split_dim, concat_dim", [
    (0, 0), (0, 1), (1, 0), (2, 1), (-1, 0), (0, -1)])
def test_all_to_all_between_any_axes(world, split_dim, concat_dim):
    def body(comm):
        p, r = comm.size, comm.rank
        for lengths in ((2, 3, 4), (1, 1, 1), (3, 0, 2)):
            shape = list(lengths)
            shape[split_dim] *= p
            parts = inputs(p, tuple(shape))
            mine = parts[r].copy()
            result = all_to_all(comm, mine, split_dim, concat_dim)
            expected = [np.split(part, p, axis=split_dim)[r] for part in parts]
            assert np.array_equal(result, np.concatenate(expected, axis=concat_dim))
            assert np.array_equal(mine, parts[r])
            assert np.array_equal(all_to_all(comm, result, concat_dim, split_dim), mine)
    world.run(body)


@worlds(2, 3)
def test_all_to_all_refuses_an_axis_that_does_not_divide(world):
    def body(comm):
        with pytest.raises(ValueError, match="axis 1 of length 7 does not divide among"):
            all_to_all(comm, np.zeros((2, 7)), 1, 0)
    world.run(body)


@worlds(1, 2)
def test_unknown_names_are_refused_with_the_known_ones(world):
    def body(comm):
        for call, said in (
                (lambda a: all_reduce(comm, a, op="mean"),
                 "unknown reduction 'mean': choose from sum, prod, max, min"),
                (lambda a: reduce_scatter(comm, a, op="mean"), "unknown reduction 'mean'"),
                (lambda a: all_reduce(comm, a, algorithm="wood"),
                 "unknown algorithm 'wood': choose from ring, blocked_ring, "),
                (lambda a: broadcast(comm, a, algorithm="ring"),
                 "unknown algorithm 'ring': choose from binomial, chain, "),
                (lambda a: broadcast(comm, a, root=comm.size), f"root={comm.size} is no rank"),
                (lambda a: broadcast(comm, a, root=-1), "root=-1 is no rank")):
            with pytest.raises(ValueError, match=said):
                call(np.zeros(2))
    world.run(body)


@pytest.mark.parametrize("total", [0, 1, 5, 6, 16])
@pytest.mark.parametrize("num_chunks", [1, 3, 4, 7])
def test_chunks_are_those_of_array_split(total, num_chunks):
    numbers = np.arange(total)
    pieces = [numbers[start:stop] for start, stop in chunk_bounds(total, num_chunks)]
    for piece, expected in zip(pieces, np.array_split(numbers, num_chunks), strict=True):
        assert np.array_equal(piece, expected)
