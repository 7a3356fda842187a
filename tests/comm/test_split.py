"""split(): who is with whom, in which order, and that messages of two groups never meet."""

import numpy as np
import pytest

from minipar.comm.collectives import all_gather, all_reduce
from minipar.testing import worlds


def members(comm) -> list[int]:
    """World numbers of a communicator's ranks, asked from themselves."""
    return all_gather(comm, np.array([comm.world_rank])).tolist()


@worlds(1, 2, 3, 5, 6)
def test_one_colour_keeps_all(world):
    def body(comm):
        same = comm.split(color=7)
        assert (same.rank, same.size) == (comm.rank, comm.size)
        assert members(same) == list(range(comm.size))
    world.run(body)


@worlds(1, 2, 3, 5, 6)
@pytest.mark.parametrize("num_colors", [2, 3])
def test_colours_part_the_ranks(world, num_colors):
    def body(comm):
        part = comm.split(comm.rank % num_colors)
        expected = list(range(comm.rank % num_colors, comm.size, num_colors))
        assert members(part) == expected and part.size == len(expected)
        assert part.world_rank == comm.rank == expected[part.rank]
        assert [part.world_rank_of(rank) for rank in range(part.size)] == expected
        assert all_reduce(part, np.array(comm.rank)) == sum(expected)
    world.run(body)


@worlds(1, 2, 3, 5, 6)
def test_a_key_decides_the_order_and_ties_go_by_rank(world):
    def body(comm):
        ranks = list(range(comm.size))
        assert members(comm.split(0, key=-comm.rank)) == ranks[::-1]
        assert members(comm.split(0, key=comm.rank // 2)) == ranks
        assert members(comm.split(0, key=comm.rank % 2)) == ranks[::2] + ranks[1::2]
    world.run(body)


@worlds(1, 2, 3, 5, 6)
def test_without_a_colour_there_is_no_communicator(world):
    def body(comm):
        part = comm.split(None if comm.rank % 2 else 1)
        assert (part is None) == (comm.rank % 2 == 1)
        if part is not None:
            assert members(part) == list(range(0, comm.size, 2))
        assert comm.split(None) is None
        assert members(comm) == list(range(comm.size))      # the old one goes on
    world.run(body)


@worlds(2, 3, 5, 6)
def test_splits_of_splits(world):
    """A mesh of rows and columns, and the single ranks where they cross."""
    def body(comm):
        row = comm.split(comm.rank // 2)
        column = comm.split(comm.rank % 2)
        assert members(row) == [r for r in range(comm.size) if r // 2 == comm.rank // 2]
        assert members(column) == list(range(comm.rank % 2, comm.size, 2))
        alone = row.split(row.rank)
        assert alone.size == 1 and members(alone) == [comm.rank]
        reversed_column = column.split(0, key=-column.rank)
        assert members(reversed_column) == members(column)[::-1]
        assert reversed_column.world_rank == comm.rank
    world.run(body)


@worlds(2, 3)
def test_messages_of_two_groups_never_meet(world):
    """The same two ranks, the same tag, three communicators; received in another order."""
    def body(comm):
        comms = [comm, comm.split(0), comm.split(0)]
        if comm.rank == 0:
            requests = [c.isend(np.array([i]), dest=1) for i, c in enumerate(comms)]
            for request in requests:
                request.wait()
        elif comm.rank == 1:
            for i in (2, 0, 1):
                got = np.empty(1, np.int64)
                comms[i].recv(got, source=0)
                assert got[0] == i
    world.run(body)


@worlds(2)
def test_an_exchange_in_a_group_takes_nothing_from_another(world):
    def body(comm):
        part, other = comm.split(0), comm.rank ^ 1          # in pairs: 0 and 1, 2 and 3
        waiting = comm.isend(np.array([100]), other)
        got = np.empty(1, np.int64)
        part.sendrecv(np.array([comm.rank]), other, got, other)
        assert got[0] == other
        comm.recv(got, other)
        assert got[0] == 100
        waiting.wait()
    world.run(body)


@worlds(4)
def test_groups_work_at_the_same_time(world):
    def body(comm):
        half = comm.split(comm.rank // 2)
        for _ in range(3 * (1 + comm.rank // 2)):           # one half has more to do
            total = all_reduce(half, np.full(5, float(comm.rank)))
            assert total.tolist() == [4 * (comm.rank // 2) + 1.0] * 5
        assert all_reduce(comm, np.array([1])) == 4
    world.run(body)


@worlds(3)
def test_a_rank_outside_the_group_is_refused(world):
    def body(comm):
        part = comm.split(0 if comm.rank < 2 else 1)
        with pytest.raises(ValueError, match=f"dest=2 is no rank of this communicator: it has 0 … "
                                             f"{part.size - 1}"):
            part.send(np.zeros(1), dest=2)
    world.run(body)
