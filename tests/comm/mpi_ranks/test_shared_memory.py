"""All-reduce in a shared window: real ranks only, fake nodes too."""

from pathlib import Path

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.arguments import OPERATORS
from minipar.comm.collectives import all_gather, all_reduce
from minipar.comm.mpi.shared_memory import TRAY_BYTES
from minipar.comm.simulated.replay import replay
from minipar.comm.subgroup import Subgroup
from minipar.comm.trace import Trace
from minipar.comm.work import start_work
from minipar.testing import worlds

LENGTHS = (0, 1, 7, 3000, 4097, TRAY_BYTES // 8 - 1, TRAY_BYTES // 8, TRAY_BYTES // 4 + 5)


def named_memory() -> set[str]:
    """The files of shared memory that this process has mapped and that still have a name."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if "/dev/shm/" in line} - {"(deleted)"}


def given(rank: int, n: int, dtype="float64") -> np.ndarray:
    return np.random.default_rng([rank, n]).integers(0, 4, n).astype(dtype)


def reduced(p: int, n: int, dtype="float64", op: str = "sum") -> np.ndarray:
    return OPERATORS[op].reduce([given(r, n, dtype) for r in range(p)], axis=0, dtype=dtype)


@worlds(mpi=(3,), slow_mpi=(1, 2, 4))
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "bool"])
@pytest.mark.one_in(2)
def test_it_equals_numpy(world, dtype):
    def body(comm):
        for op in ("max", "min") if dtype == "bool" else OPERATORS:
            for n in LENGTHS:
                mine = given(comm.rank, n, dtype)
                result = all_reduce(comm, mine, op, algorithm="shared")
                assert np.array_equal(result, reduced(comm.size, n, dtype, op))
                assert np.array_equal(mine, given(comm.rank, n, dtype))
    world.run(body)


@worlds(mpi=(2, 3, 4))
def test_it_is_the_same_bits_on_all_ranks_and_every_time(world):
    def body(comm):
        for n in (2000, 300_000):
            mine = np.random.default_rng(comm.rank).standard_normal(n).astype(np.float32)
            results = [all_reduce(comm, mine, algorithm="shared").tobytes() for _ in range(4)]
            assert len(set(results)) == 1
            first = np.frombuffer(results[0], np.uint8)
            assert (all_gather(comm, first).reshape(comm.size, -1) == first).all()
    world.run(body)


@worlds(mpi=(3,))
def test_layouts_and_out(world):
    def body(comm):
        whole = given(comm.rank, 600).reshape(20, 30)
        total = reduced(comm.size, 600).reshape(20, 30)
        for cut in (lambda a: a[::2, ::-3], lambda a: a.T, np.asfortranarray):
            assert np.array_equal(all_reduce(comm, cut(whole), algorithm="shared"), cut(total))
        assert all_reduce(comm, whole, algorithm="shared", out=whole) is whole
        assert np.array_equal(whole, total)
        assert all_reduce(comm, np.array(2.0), algorithm="shared") == 2.0 * comm.size
    world.run(body)


@worlds(mpi=(4,))
@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1], [0, 1, 2, 3]])
@pytest.mark.one_in(2)
def test_the_ring_between_nodes(world, nodes):
    def body(comm):
        known, comm.rank_state.nodes = comm.rank_state.nodes, nodes
        try:
            comm.start_trace()
            for n in LENGTHS:
                result = all_reduce(comm, given(comm.rank, n), algorithm="shared")
                assert np.array_equal(result, reduced(4, n))
            trace = comm.stop_trace()
        finally:
            comm.rank_state.nodes = known
        inside = nodes[:comm.rank].count(nodes[comm.rank])          # its number on its node
        lanes = min(nodes.count(node) for node in nodes)
        assert (trace.num_sent() > 0) == (inside < lanes)
        assert all(nodes[m.dest] != nodes[comm.rank] for m in trace.select())
    world.run(body)


@worlds(mpi=(2,))
def test_a_trace_shows_a_span_where_there_are_no_messages(world):
    def body(comm):
        comm.start_trace()
        all_reduce(comm, given(comm.rank, 5000), algorithm="shared")
        trace = comm.stop_trace()
        assert trace.num_sent() == 0 and not trace.receives
        assert [span.name for span in trace.named_spans()] == ["all_reduce in shared memory"]
    world.run(body)


@worlds(mpi=(2,))
def test_who_waits_moves_on_what_it_sent(world):
    """A send that is not waited for must get through while its rank is in the collective."""
    def body(comm):
        for n in (10, 1 << 20):
            array, out = given(0, n), np.empty(n)
            if comm.rank == 0:
                sending = comm.isend(array, 1)
            else:
                comm.recv(out, 0)
                assert np.array_equal(out, array)
            assert all_reduce(comm, np.ones(9), algorithm="shared")[0] == 2
            if comm.rank == 0:
                sending.wait()
    world.run(body)


@worlds(mpi=(3,))
def test_works_and_parts_run_the_blocked_ring(world):
    def body(comm):
        work = start_work(all_reduce, comm, given(comm.rank, 3000), algorithm="shared")
        between = all_reduce(comm, np.ones(5000), algorithm="shared")       # while it is under way
        assert np.array_equal(work.wait(), reduced(3, 3000)) and (between == 3).all()
        assert comm.memory is not None
        if comm.rank != 1:
            assert all_reduce(Subgroup(comm, [2, 0]), np.ones(3), algorithm="shared")[0] == 2
    world.run(body)


@worlds(mpi=(2,))
def test_many_windows_and_none_stays_behind(world):
    def body(comm):
        before = named_memory()
        for number in range(12):
            part = comm.split(0)
            assert all_reduce(part, np.ones(3000), algorithm="shared")[0] == comm.size
            assert named_memory() == before
            if number % 2:
                part.free()
    world.run(body)


def test_a_trace_with_it_cannot_be_played_again():
    trace = Trace(programs={rank: [("world", 0), ("shared", 8)] for rank in range(2)})
    with pytest.raises(ValueError, match="all-reduced in shared memory, without messages"):
        replay(trace, Cluster(2))


def test_simulated_ranks_share_no_window():
    for communicator in (lambda comm: comm, lambda comm: Subgroup(comm, [1, 0])):
        with pytest.raises(TypeError, match=r'"shared" needs real MPI ranks.*"blocked_ring"'):
            Cluster(2).run(lambda comm, communicator=communicator: all_reduce(
                communicator(comm), np.ones(2), algorithm="shared"))
