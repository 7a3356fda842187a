"""Arrays that are not plain numbers of this machine: reduced and moved alike on all ranks, or
refused in one line before any message."""

from functools import partial

import numpy as np
import pytest

from minipar.comm import collectives
from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.arguments import OPERATORS
from minipar.comm.collectives import all_reduce, exscan, reduce_scatter, scan
from minipar.comm.collectives.operations import REDUCTIONS
from minipar.comm.work import start_work
from minipar.testing import worlds
from tests.comm.test_wrong_arguments import (
    COLLECTIVES,
    assert_nothing_is_under_way,
    refused,
)

RECORDS = [("id", "u2"), ("at", ">f4")]
NO_NUMBERS = {"text": np.array(["up", "left"]), "bytes": np.array([b"x", b"yz"]),
              "dates": np.array(["1999-12-31", "NaT"], "M8[D]"), "spans": np.ones(2, "m8[s]"),
              "records": np.ones(2, RECORDS), "void": np.zeros(2, "V3")}
NUMBERS = ["?", "i1", "u1", "i4", "u8", "e", "f", "d", "g", "F", "D", ">i2", ">f4", ">f8", ">c16"]
SPECIAL = {
    "masked": np.ma.masked_array([1.0, 2.0], [False, True]),
    "masked without a mask": np.ma.masked_array([1.0, 2.0]),
    "one masked number": np.ma.masked_array(1.0, True),
    "matrix": np.ones((1, 2)).view(np.matrix),
}


@worlds(1, 2, 3)
@pytest.mark.parametrize("kind", SPECIAL)
def test_arrays_that_are_more_than_their_numbers_are_refused(world, kind):
    def body(comm):
        special, plain, peer = SPECIAL[kind], np.zeros(2), (comm.rank + 1) % comm.size
        advice = "np.asarray(array)" if kind == "matrix" else "array.filled(value)"
        for name in COLLECTIVES:
            operation = getattr(collectives, name)
            assert advice in refused(operation, comm, special)
            assert advice in refused(start_work(operation, comm, special).wait)
            if name == "gather" and comm.rank:
                continue                                    # only the root's out is used
            array = np.zeros(2 * comm.size) if name == "all_to_all" else plain
            assert advice in refused(partial(operation, out=special), comm, array)
        for call in (comm.send, comm.isend, comm.recv, comm.irecv):
            assert advice in refused(call, special, peer)
        assert advice in refused(comm.sendrecv, special, peer, plain, peer)
        assert advice in refused(comm.sendrecv, plain, peer, special, peer)
        assert_nothing_is_under_way(comm)
    world.run(body)


@worlds(1, 3, mpi=(2,))
@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_what_is_no_number_is_not_reduced(world, kind):
    def body(comm):
        array = NO_NUMBERS[kind]
        for name in sorted(REDUCTIONS):
            algorithms = [*ALGORITHMS[name], "auto"] + ["mpi"] * (not comm.is_simulated)
            for op in [*OPERATORS, *OPERATORS.values()]:
                for algorithm in algorithms:
                    reduction = partial(getattr(collectives, name), op=op, algorithm=algorithm)
                    said = refused(reduction, comm, array)
                    assert f"of {array.dtype}: a reduction needs numbers" in said
        assert_nothing_is_under_way(comm)
    world.run(body)


@worlds(3, mpi=(2,))
def test_a_function_may_combine_records_and_a_ufunc_must_fit(world):
    """The later of two readings, by a function; bits of floats have no ufunc."""
    def later(a, b, out):
        out[...] = np.where(a["at"] > b["at"], a, b)

    def body(comm):
        mine = np.array([(comm.rank, -comm.rank), (comm.rank, comm.rank)], RECORDS)
        for algorithm in ["ring", "tree", "auto"] + ["mpi"] * (not comm.is_simulated):
            found = all_reduce(comm, mine, later, algorithm)
            assert found["id"].tolist() == [0, comm.size - 1]
        for call in all_reduce, reduce_scatter, scan:
            said = refused(partial(call, op=np.bitwise_or), comm, np.ones(2))
            assert "op='bitwise_or' does not make one float64 of two" in said
            said = refused(partial(call, op=np.add), comm, np.ones(2, bool), kind=ValueError)
            assert "op='add' of bool: 'max' is or" in said
        assert all_reduce(comm, np.array([1 << comm.rank]), np.bitwise_or) == 2**comm.size - 1
        assert_nothing_is_under_way(comm)
    world.run(body)


def numbers(rank: int, dtype: str) -> np.ndarray:
    """13 small numbers; floating ones with a NaN on rank 2 or 0, and infinity on rank 1."""
    values = np.random.default_rng(rank).integers(-3, 4, 13)
    array = (values > 0 if dtype == "?" else abs(values) if "u" in dtype else values).astype(dtype)
    if array.dtype.kind in "fc":
        array[[2, 5, 9]] = [[1, np.nan, 2], [1, np.inf, 3], [np.nan, 5, 5]][rank % 3]
    return array


@worlds(2, 3, mpi=(4,), slow_mpi=(2,))
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")       # infinity times 0, and minus infinity
@pytest.mark.one_in(2)
def test_every_algorithm_of_every_dtype_with_nan(world, op):
    """MPI's own max and min drop a NaN on some ranks; it knows no complex max, no big-endian."""
    def body(comm):
        p, r = comm.size, comm.rank
        for dtype in NUMBERS:
            if dtype == "?" and op in ("sum", "prod"):
                continue
            sums = [numbers(0, dtype)]
            for rank in range(1, p):
                sums.append(OPERATORS[op](sums[-1], numbers(rank, dtype)).astype(dtype))
            right = {"all_reduce": sums[-1], "reduce": None if r else sums[-1],
                     "scan": sums[r], "exscan": sums[r - 1] if r else None,
                     "reduce_scatter": np.array_split(sums[-1], p)[r]}
            for name, expected in right.items():
                for algorithm in [*ALGORITHMS[name], "auto"] + ["mpi"] * (not comm.is_simulated):
                    if op == "prod" and dtype in "FD>c16" and algorithm != "mpi":
                        continue            # infinity times a complex number: the order matters
                    found = getattr(collectives, name)(comm, numbers(r, dtype), op=op,
                                                       algorithm=algorithm)
                    if expected is not None:
                        assert found.dtype == dtype
                        np.testing.assert_allclose(found, expected, rtol=1e-2 if dtype == "e"
                                                   else 1e-5, err_msg=f"{name} {algorithm} {dtype}")
    world.run(body)


@worlds(mpi=(4,))
def test_max_by_the_mpi_library_is_nan_on_every_rank(world):
    def body(comm):
        mine = np.array([[5, 5, np.nan, 3][comm.rank]] * 4)
        for op in ("max", "min"):
            for dtype in "efdgFD":
                found = [all_reduce(comm, mine.astype(dtype), op, "mpi"),
                         reduce_scatter(comm, mine.astype(dtype), 0, op, "mpi")]
                assert all(np.isnan(part).all() for part in found)
    world.run(body)


@worlds(1, 3, mpi=(4,))
@pytest.mark.parametrize("kind", [*NO_NUMBERS, ">f8", "e", "g", "D"])
@pytest.mark.one_in(3)
def test_what_is_only_moved_may_be_anything(world, kind):
    """By every algorithm, from every root, in any layout, blocking or not; foreign byte order
    stays."""
    def body(comm):
        p, r = comm.size, comm.rank
        # lines: (rank, 2p), pieces: (rank, piece, 2)
        base = NO_NUMBERS[kind] if kind in NO_NUMBERS else np.array([1.5, -2]).astype(kind)
        lines = np.array([np.roll(np.repeat(base, p), k) for k in range(p)], base.dtype)
        pieces = lines.reshape(p, p, 2)
        for root in (0, p - 1):
            right = {"broadcast": lines[root], "scatter": pieces[root, r],
                     "gather": lines.reshape(-1) if r == root else None,
                     "all_gather": lines.reshape(-1), "all_to_all": pieces[:, r].reshape(-1)}
            read_only = lines[r].copy()
            read_only.flags.writeable = False
            for name, expected in right.items():
                operation = getattr(collectives, name)
                options = {} if name.startswith("all_") else {"root": root}
                own = [] if comm.is_simulated else ["mpi"]
                for algorithm in [*ALGORITHMS[name], "auto", *own]:
                    for mine in read_only, np.repeat(lines[r], 2)[::2], lines[r, ::-1].copy()[::-1]:
                        found = [operation(comm, mine, algorithm=algorithm, **options),
                                 start_work(operation, comm, mine, algorithm=algorithm if
                                            algorithm != "mpi" else "auto", **options).wait()]
                        for one in found:
                            if expected is not None:
                                assert one.dtype == base.dtype and one.shape == expected.shape
                                assert one.tolist() == expected.tolist()    # NaT as None
    world.run(body)


@worlds(1, 3)
def test_an_exscan_begins_with_what_changes_nothing(world):
    """For ufuncs and complex numbers too; of other functions it is not known."""
    def body(comm):
        for op, right in ((np.add, 0), (np.multiply, 1), (np.maximum, -np.inf), ("min", np.inf)):
            first = exscan(comm, np.ones(2, "f4"), op)
            assert comm.rank or (first == right).all()
        first = exscan(comm, np.array([-1e9 - 3j, 2]), "max")
        assert comm.rank or (np.maximum(first, [-1e300, 5j]) == [-1e300, 5j]).all()
        said = refused(exscan, comm, np.ones(2), np.hypot, kind=ValueError)
        assert said.startswith("an exscan by hypot has no number for rank 0: choose from sum, prod")
        assert_nothing_is_under_way(comm)
    world.run(body)
