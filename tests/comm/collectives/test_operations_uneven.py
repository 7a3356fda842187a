"""Pieces of any lengths, `out`, and what is refused."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    exscan,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from minipar.comm.collectives.all_reduce import hierarchical, torus
from minipar.comm.collectives.operations import OVER_NODES
from minipar.comm.cost import choose
from minipar.testing import worlds


def algorithms(operation: str):
    return pytest.mark.parametrize(
        "algorithm", [*ALGORITHMS[operation], "auto"])


def lengths(p: int) -> list[int]:
    """Uneven, some zero."""
    return [int(k) for k in np.random.default_rng(p).integers(0, 4, p)]


def rows(rank: int, n: int) -> np.ndarray:
    return np.arange(3 * n).reshape(n, 3) + 1000 * rank


@algorithms("all_gather")
@pytest.mark.parametrize("p", [1, 2, 3, 6, 7, 8])
def test_all_gather_of_uneven_pieces(p, algorithm):
    counts = lengths(p)
    results, _ = Cluster(p).run(lambda comm: all_gather(
        comm, rows(comm.rank, counts[comm.rank]), algorithm=algorithm, counts=counts))
    right = np.concatenate([rows(r, counts[r]) for r in range(p)])
    assert all(np.array_equal(result, right) for result in results)


@algorithms("gather")
@pytest.mark.parametrize("p", [1, 2, 3, 6, 7, 8])
def test_gather_of_uneven_pieces_to_every_root(p, algorithm):
    counts = lengths(p)
    right = np.concatenate([rows(r, counts[r]) for r in range(p)])
    for root in range(p):
        results, _ = Cluster(p).run(lambda comm, root=root: gather(
            comm, rows(comm.rank, counts[comm.rank]), root, 0, algorithm, counts))
        assert np.array_equal(results.pop(root), right)
        assert results == [None] * (p - 1)


@algorithms("scatter")
@pytest.mark.parametrize("p", [1, 2, 3, 6, 7, 8])
def test_scatter_of_uneven_pieces_from_every_root(p, algorithm):
    counts = lengths(p)
    whole = rows(5, sum(counts))
    for root in range(p):
        results, _ = Cluster(p).run(lambda comm, root=root: scatter(
            comm, whole if comm.rank == root else np.broadcast_to(0, whole.shape),
            root, 0, algorithm, counts))
        assert [len(result) for result in results] == counts
        assert np.array_equal(np.concatenate(results), whole)


@algorithms("scatter")
@worlds(1, 3, 6, mpi=(4,))
def test_scatter_of_an_array_that_only_the_root_has(world, algorithm):
    """The others say counts and dtype, or shape and dtype, or give an `out` that says both."""
    def body(comm):
        counts = [1 + r % 3 for r in range(comm.size)]
        whole, cuts = rows(5, sum(counts)).astype(np.int32), np.cumsum(counts)[:-1]
        for root in range(comm.size):
            def deal(array, counts=None, dim=0, root=root, **options):
                here = array if comm.rank == root else None
                return scatter(comm, here, root, dim, algorithm, counts, **options)

            vector = deal(whole[:, 0], counts, dtype=np.int32)
            assert np.array_equal(vector, np.split(whole[:, 0], cuts)[comm.rank])
            tables = [deal(whole, counts, shape=whole.shape, dtype="i4"),
                      deal(whole, counts, out=np.zeros((counts[comm.rank], 3), np.int32)),
                      deal(whole.T, counts, 1, out=np.zeros((3, counts[comm.rank]), "i4")).T]
            for table in tables:
                assert table.dtype == np.int32
                assert np.array_equal(table, np.split(whole, cuts)[comm.rank])
            even = deal(whole, shape=whole.shape, dtype=np.int32)       # by chunk_bounds
            assert np.array_equal(even, np.array_split(whole, comm.size)[comm.rank])
    world.run(body)


@worlds(2, 3, mpi=(4,))
def test_reduce_scatter_into_a_part_of_a_larger_buffer(world):
    """Flat or in the shape of the piece, and nothing beside it is touched."""
    def body(comm):
        counts = [1 + r % 3 for r in range(comm.size)]
        array = rows(comm.rank, sum(counts))
        start, n = sum(counts[:comm.rank]), counts[comm.rank]
        right = reduce_scatter(comm, array, counts=counts)
        for flat in (True, False):
            buffer = np.full((sum(counts) + 1, 3), -1)
            place = buffer[start:start + n]
            place = place.reshape(3 * n) if flat else place
            assert reduce_scatter(comm, array, counts=counts, out=place) is place
            assert np.array_equal(buffer[start:start + n], right)
            assert (np.delete(buffer, slice(start, start + n), 0) == -1).all()
    world.run(body)


@algorithms("reduce_scatter")
@pytest.mark.parametrize("p", [1, 2, 3, 6, 7, 8])
def test_reduce_scatter_into_uneven_pieces(p, algorithm):
    counts = lengths(p)
    results, _ = Cluster(p).run(lambda comm: reduce_scatter(
        comm, rows(comm.rank, sum(counts)), 0, "max", algorithm, counts))
    assert [len(result) for result in results] == counts
    assert np.array_equal(np.concatenate(results), rows(p - 1, sum(counts)))


@algorithms("all_to_all")
@pytest.mark.parametrize("p", [1, 2, 3, 6, 7, 8])
def test_all_to_all_by_a_table_of_lengths(p, algorithm):
    table = np.random.default_rng(p).integers(0, 4, (p, p)).tolist()

    def piece(source, dest):
        return rows(source, table[source][dest]) + 100 * dest

    def body(comm):
        mine = np.concatenate([piece(comm.rank, dest) for dest in range(p)])
        return all_to_all(comm, mine, algorithm=algorithm, counts=table)

    for rank, result in enumerate(Cluster(p).run(body)[0]):
        assert np.array_equal(result, np.concatenate([piece(s, rank) for s in range(p)]))


@pytest.mark.parametrize("ranks_per_node", [1, 2, 3, 4, 12])
@pytest.mark.parametrize("name", OVER_NODES)
def test_over_nodes_by_ranks_per_node(name, ranks_per_node):
    algorithm = ALGORITHMS["all_reduce"][name].run

    def body(comm):
        flat = np.arange(5) * (comm.rank + 1)
        algorithm(comm, flat, "sum", ranks_per_node)
        return flat
    for p in (1, 5, 8, 12):
        for result in Cluster(p).run(body)[0]:
            assert np.array_equal(result, np.arange(5) * p * (p + 1) // 2)


def test_hierarchical_by_the_cluster_s_nodes_sends_little_between_them():
    cluster = Cluster(nodes=3, devices_per_node=4, trace=True)
    results, _ = cluster.run(
        lambda comm: all_reduce(comm, np.full(8, comm.rank), algorithm="hierarchical"))
    assert all((result == 66).all() for result in results)
    between = [m for m in cluster.trace.select() if m.source // 4 != m.dest // 4]
    assert {m.source for m in between} == {0, 4, 8}
    assert sum(m.num_bytes for m in between) == (2 + 2 * 1) * 64      # fold, two halves each way


def test_out_is_written_and_returned():
    def body(comm):
        out = np.zeros((4, 3)).T                                        # Fortran order
        result = reduce(comm, np.ones((3, 4)), root=1, out=out if comm.rank == 1 else None)
        assert (result is out) == (comm.rank == 1)
        same = np.full(3, comm.rank)
        assert reduce(comm, same, op="max", root=2, out=same) is (same if comm.rank == 2 else None)
        return out, same
    results, _ = Cluster(3).run(body)
    assert (results[1][0] == 3).all() and (results[0][0] == 0).all()
    assert [int(same[0]) for _, same in results] == [0, 1, 2]


@pytest.mark.parametrize(("op", "dtype", "first"), [
    ("sum", np.float32, 0), ("prod", np.int32, 1), ("max", np.float16, -np.inf),
    ("min", np.float64, np.inf), ("max", np.int8, -128), ("min", np.uint8, 255),
    ("max", np.bool_, False), ("min", np.bool_, True)])
@algorithms("exscan")
def test_exscan_gives_rank_0_what_changes_nothing(op, dtype, first, algorithm):
    results, _ = Cluster(3).run(lambda comm: exscan(comm, np.ones(2, dtype), op, algorithm))
    assert results[0].dtype == dtype and (results[0] == first).all()


@algorithms("barrier")
def test_nobody_leaves_a_barrier_before_the_last_has_come(algorithm):
    def body(comm):
        comm.report_compute("late", 0, 100 * (comm.rank == 3), 0.0)
        barrier(comm, algorithm)
        return comm.now()
    for p in (4, 5, 7, 8):
        times, _ = Cluster(p, memory_bandwidth=1, latency=1e-9).run(body)
        assert min(times) >= 100


def test_auto_takes_few_rounds_for_short_arrays_and_few_bytes_for_long_ones():
    assert choose("all_reduce", 2, 4096) == "recursive_doubling"
    assert choose("all_reduce", 2, 1 << 20) == "ring"
    assert choose("all_reduce", 64, 1 << 12) == "recursive_doubling"
    assert choose("all_reduce", 64, 1 << 24) == "rabenseifner"
    assert choose("all_gather", 33, 64) == "bruck"
    assert choose("broadcast", 16, 64) == "binomial"
    assert choose("broadcast", 16, 1 << 24) == "pipelined_chain"
    cluster = Cluster(16, trace=True)
    for n, num_messages in ((1, 16 * 4), (1 << 17, 2 * 16 * 4)):
        cluster.run(lambda comm, n=n: all_reduce(comm, np.ones(n)))
        assert cluster.trace.num_sent(label="all_reduce") == num_messages


@pytest.mark.parametrize(("call", "message"), [
    (lambda comm: gather(comm, np.ones(2), algorithm="best"), "choose from binomial, linear"),
    (lambda comm: reduce(comm, np.ones(2), op="mean"), "unknown reduction 'mean'"),
    (lambda comm: reduce(comm, np.ones(2), root=2), "root=2 is no rank"),
    (lambda comm: reduce(comm, np.ones(2), out=np.ones(3)), "must be equal"),
    (lambda comm: scatter(comm, np.ones(4), counts=[1, 2]), "for each of 2 ranks, 4 in all"),
    (lambda comm: scatter(comm, None, root=comm.rank), "is the root of the scatter: give its"),
    (lambda comm: scatter(comm, None, 1 - comm.rank, dtype="f4"), "shape= of the root's array"),
    (lambda comm: scatter(comm, None, 1 - comm.rank, counts=[1, 1]), "None to scatter: say dtype="),
    (lambda comm: scatter(comm, np.ones(4), shape=(5,)), "array is float64 .4,., but shape= and"),
    (lambda comm: scatter(comm, np.ones(4), dtype="f4"), "but shape= and dtype= say f4 None"),
    (lambda comm: reduce_scatter(comm, np.ones(4), out=np.ones(4)),
     r"the result float64 \(2,\): give one of that shape, or a contiguous view of as many elem"
     r"ents, for example buffer.start:start . 2."),
    (lambda comm: reduce_scatter(comm, np.ones((4, 3)), out=np.ones(12)[::2]), "contiguous view"),
    (lambda comm: gather(comm, np.ones(4), counts=[4, 3]), "its piece by counts is 3"),
    (lambda comm: all_gather(comm, np.ones(4), counts=[4, 3]), "its piece of 7 is 3"),
    (lambda comm: reduce_scatter(comm, np.ones(4), counts=[4]), "give one length"),
    (lambda comm: reduce_scatter(comm, np.ones(4), counts=[5, -1]), "0 or more, for each of 2"),
    (lambda comm: all_to_all(comm, np.ones(2), counts=[[1, 1]] * 3), "give 2 rows of 2"),
    (lambda comm: all_to_all(comm, np.ones(2), counts=[1, 1]), "give 2 rows of 2"),
    (lambda comm: all_to_all(comm, np.ones(3)), "does not divide among 2 ranks"),
    (lambda comm: hierarchical(comm, np.ones(2), "sum", 0), "ranks_per_node=0"),
    (lambda comm: torus(comm, np.ones(2), "sum", 0), "ranks_per_node=0"),
])
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        Cluster(2).run(call)
