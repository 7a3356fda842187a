"""Every operation × algorithm gives what NumPy gives: any ranks, roots, arrays and operators."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    exscan,
    gather,
    reduce,
    reduce_scatter,
    scan,
    scatter,
)
from minipar.comm.collectives.operations import OVER_NODES
from minipar.testing import worlds
from tests.support.operation_table import ALL, NAMES, call, check, given

each = pytest.mark.parametrize(("operation", "algorithm"), ALL, ids=NAMES)

ROOTED = ("broadcast", "scatter", "gather", "reduce")


# Small ones, powers of two and their neighbours; the others are slow.
SIZES = {*range(1, 10), 12, 15, 16, 17, 31, 32, 33}


@pytest.mark.parametrize("sizes", [
    pytest.param(SIZES, id="some"),
    pytest.param({*range(1, 34)} - SIZES, id="others", marks=pytest.mark.slow)])
@each
@pytest.mark.one_in(3)
def test_on_1_to_33_ranks_it_equals_numpy(operation, algorithm, sizes):
    for p in sorted(sizes):
        n = (0, 2 * p, 37)[p % 3]               # nothing, p | n, p ∤ n
        results, _ = Cluster(p).run(lambda comm, n=n: call(operation, algorithm, comm, n))
        for rank, result in enumerate(results):
            check(result, operation, p, rank, n)


@each
@worlds(mpi=(4,))
def test_on_real_ranks_it_equals_numpy(world, operation, algorithm):
    def body(comm):
        if algorithm in OVER_NODES:
            flat = given(comm.rank, 9)
            ALGORITHMS["all_reduce"][algorithm].run(comm, flat, "sum", ranks_per_node=2)
            check(flat, operation, comm.size, comm.rank, 9)
        else:
            for n in (9, 0):
                check(call(operation, algorithm, comm, n), operation, comm.size, comm.rank, n)
    world.run(body)


@pytest.mark.parametrize("operation", sorted(ALGORITHMS))
@worlds(mpi=(4,))
def test_the_library_s_own_equals_numpy(world, operation):
    def body(comm):
        for n, root in ((9, 0), (6, 2), (0, 1)):
            options = {"root": root} if operation in ROOTED else {}
            check(call(operation, "mpi", comm, n, **options), operation, comm.size, comm.rank, n,
                  **options)
    world.run(body)


@pytest.mark.parametrize("operation", sorted(ALGORITHMS))
def test_the_library_s_own_needs_real_ranks(operation):
    with pytest.raises(TypeError, match="needs real MPI ranks"):
        Cluster(2).run(lambda comm: call(operation, "mpi", comm, 4))


@pytest.mark.parametrize(("operation", "algorithm"), [
    (o, a) for o, a in ALL if o in ROOTED])
def test_nothing_hangs_on_the_root(operation, algorithm):
    for p in (2, 3, 5, 6, 8):
        for root in range(p):
            results, _ = Cluster(p).run(
                lambda comm, root=root: call(operation, algorithm, comm, 11, root=root))
            for rank, result in enumerate(results):
                check(result, operation, p, rank, 11, root=root)


REDUCING = [(o, a) for o, a in ALL
            if o in ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan")]


@pytest.mark.parametrize(("operation", "algorithm"), REDUCING)
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_operators_and_dtypes(operation, algorithm, op):
    dtypes = [np.float16, np.float32, np.float64, np.int8, np.int32, np.uint16]
    if op in ("max", "min"):
        dtypes.append(np.bool_)
    for dtype in dtypes:
        p = 5                                   # 3⁵ = 243: exact in float16; int8 wraps as NumPy's
        results, _ = Cluster(p).run(
            lambda comm, dtype=dtype: call(operation, algorithm, comm, 7, dtype, op))
        for rank, result in enumerate(results):
            if operation != "exscan" or rank:
                check(result, operation, p, rank, 7, dtype, op)


@pytest.mark.parametrize(("operation", "algorithm"), REDUCING)
@pytest.mark.one_in(2)
def test_floats_are_within_p_eps_and_the_same_bits_under_any_delay(operation, algorithm):
    p, n = 11, 40
    inputs = np.random.default_rng(0).standard_normal((p, n)).astype(np.float32)
    run = {"reduce": reduce, "all_reduce": all_reduce, "reduce_scatter": reduce_scatter,
           "scan": scan, "exscan": exscan}[operation]

    def body(comm, delays):
        comm.report_compute("delay", 0, int(delays[comm.rank]), 0.0)
        return run(comm, inputs[comm.rank], algorithm=algorithm)

    seen = set()
    for seed in range(50):
        delays = np.random.default_rng(seed).integers(0, 10**7, p)
        results, _ = Cluster(p).run(lambda comm, delays=delays: body(comm, delays))
        seen.add(b"".join(result.tobytes() for result in results if result is not None))
    assert len(seen) == 1
    sums = np.cumsum(inputs.astype(np.float64), axis=0)
    bound = p * np.finfo(np.float32).eps * np.abs(inputs).sum(0)
    if operation == "all_reduce":
        assert len({result.tobytes() for result in results}) == 1       # the same on all ranks
        assert (np.abs(results[0] - sums[-1]) <= bound).all()
    elif operation == "reduce":
        assert (np.abs(results[0] - sums[-1]) <= bound).all()
    elif operation == "reduce_scatter":
        assert (np.abs(np.concatenate(results) - sums[-1]) <= bound).all()
    else:
        late = operation == "exscan"
        for rank in range(late, p):
            assert (np.abs(results[rank] - sums[rank - late]) <= bound).all()


@pytest.mark.parametrize(("operation", "algorithm"), [(o, a) for o, a in ALL if o != "barrier"])
def test_any_layout_of_the_array(operation, algorithm):
    """Non-contiguous, Fortran order, a second axis, none at all."""
    p, run = 3, {"broadcast": broadcast, "scatter": scatter, "gather": gather, "reduce": reduce,
                 "all_gather": all_gather, "reduce_scatter": reduce_scatter, "scan": scan,
                 "all_reduce": all_reduce, "all_to_all": all_to_all, "exscan": exscan}[operation]
    base = np.random.default_rng(1).integers(0, 9, (p, 12, 12)).astype(np.float64)
    layouts = [lambda a: a[::2, ::-2], lambda a: np.asfortranarray(a[:6, :6]),
               lambda a: a.T[:6, 3:9]]
    dims = {"dim": 1} if operation in ("scatter", "gather", "all_gather", "reduce_scatter") else {}
    if operation == "all_to_all":
        dims = {"split_dim": 1, "concat_dim": 0}
    for layout in layouts:
        arrays = [layout(base[r]) for r in range(p)]
        results, _ = Cluster(p).run(
            lambda comm, arrays=arrays: run(comm, arrays[comm.rank], algorithm=algorithm, **dims))
        plain, _ = Cluster(p).run(
            lambda comm, arrays=arrays: run(comm, arrays[comm.rank].copy(order="C"), **dims))
        total = sum(arrays)
        right = {"broadcast": arrays[0], "scatter": arrays[0][:, :2], "all_reduce": total,
                 "gather": np.concatenate(arrays, 1), "all_gather": np.concatenate(arrays, 1),
                 "reduce": total, "reduce_scatter": total[:, :2], "scan": arrays[0],
                 "exscan": np.zeros((6, 6)),
                 "all_to_all": np.concatenate([a[:, :2] for a in arrays])}[operation]
        assert np.array_equal(results[0], right)
        for result, same in zip(results, plain):
            assert (result is None and same is None) or np.array_equal(result, same)
    if not dims:
        results, _ = Cluster(p).run(
            lambda comm: run(comm, np.array(comm.rank + 1.0), algorithm=algorithm))
        assert results[0].shape == ()
        assert float(results[0]) == {"broadcast": 1, "scan": 1, "exscan": 0}.get(operation, 6)
