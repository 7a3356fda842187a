"""`worlds`: one test body in both worlds."""


import numpy as np

from minipar.testing import worlds
from minipar.testing.worlds import SimulatedWorld


def test_worlds_names_and_marks_its_tests():
    mark = worlds(1, 3, mpi=(2, 4)).mark
    assert mark.args[0] == "world"
    assert [p.id for p in mark.args[1]] == ["sim-1", "sim-3", "mpi-2", "mpi-4"]
    assert [p.values[0].size for p in mark.args[1]] == [1, 3, 2, 4]
    assert [[m.kwargs for m in p.marks] for p in mark.args[1]] == [
        [], [], [{"min_size": 2}], [{"min_size": 4}]]
    slow = worlds(mpi=(3,), slow_mpi=(4,)).mark.args[1]
    assert [[m.name for m in p.marks] for p in slow] == [["mpi"], ["mpi", "slow"]]


@worlds(2, 3, mpi=(2, 4))
def test_the_same_body_runs_in_both_worlds(world):
    def body(comm):
        assert comm.size == world.size
        heard = np.zeros(1, dtype=np.int64)
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        comm.sendrecv(np.array([comm.rank]), right, heard, left)
        assert heard[0] == left
        return comm.rank

    ranks = world.run(body)
    if isinstance(world, SimulatedWorld):
        assert ranks == list(range(world.size))
    else:
        assert len(ranks) <= 1


@worlds(2, mpi=(2,))
def test_communicators_of_one_run_do_not_fill_the_next(world):
    """MPICH has room for 2048; a body may split as it likes, and need not clean up."""
    def body(comm):
        for _ in range(1100):
            part = comm.split(0)
        assert part.size == 2
    for _ in range(2):
        world.run(body)
