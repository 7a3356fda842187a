"""`@worlds`: one test body for N simulated ranks in this process and for N real ranks under MPI.

    @worlds(1, 2, 3, mpi=(4,))             # simulated with 1, 2 and 3 ranks; on 4 real ranks
    def test_sum(world):
        def body(comm):                    # runs on every rank, with its asserts
            assert comm.size == world.size
            return comm.rank
        world.run(body)

A test that passes in one world only has found a difference between them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


class SimulatedWorld:
    """A world of `size` ranks simulated in this process."""

    def __init__(self, size: int):
        self.size = size

    def run(self, body: Callable[[Any], Any]) -> list[Any]:
        """Run body(comm) on every rank; return its values, by rank."""
        from minipar.comm.simulated.cluster import Cluster
        results, _seconds = Cluster(self.size).run(body)
        return results

    def has_this_process(self) -> bool:
        """True: all ranks are in this process."""
        return True


class MPIWorld:
    """A world of `size` real ranks: the first ones of this process's MPI job."""

    def __init__(self, size: int):
        self.size = size

    def run(self, body: Callable[[Any], Any]) -> list[Any]:
        """Run body(comm) on the first `size` ranks; return the value of this rank in a list.

        The list is empty on the job's other ranks.  An assert about all ranks therefore belongs
        in the body, after a collective.
        """
        from minipar.comm.mpi.world import world_communicator
        job = world_communicator()
        made_before = len(job.rank_state.splits)
        # A new communicator for each run: unread messages of a failed test never reach it.
        comm = job.split(0 if job.rank < self.size else None)
        if comm is None:
            return []
        result = body(comm)
        # Also free the communicators that the body made: MPICH has room for 2048.
        for made in job.rank_state.splits[made_before:]:
            made.free()
        return [result]

    def has_this_process(self) -> bool:
        """True on the ranks of the job that run bodies: on others no body can raise."""
        from minipar.comm.mpi.world import world_communicator
        return world_communicator().rank < self.size


def worlds(*sizes: int, mpi: Sequence[int] = (4,), slow: Sequence[int] = (),
           slow_mpi: Sequence[int] = ()) -> "pytest.MarkDecorator":
    """Run a test once per world: simulated with each of `sizes`, on real ranks with each of `mpi`.

    The test takes an argument `world` with `size` and `run(body)`.  `slow` are more simulated sizes
    and `slow_mpi` more real ones, whose tests are marked slow.
    """
    import pytest  # only here: `find_difference`, beside it, needs none
    simulated = [pytest.param(SimulatedWorld(n), id=f"sim-{n}") for n in sizes]
    simulated += [pytest.param(SimulatedWorld(n), id=f"sim-{n}", marks=pytest.mark.slow)
                  for n in slow]
    real = [pytest.param(MPIWorld(n), id=f"mpi-{n}", marks=pytest.mark.mpi(min_size=n))
            for n in mpi]
    real += [pytest.param(MPIWorld(n), id=f"mpi-{n}",
                          marks=[pytest.mark.mpi(min_size=n), pytest.mark.slow]) for n in slow_mpi]
    return pytest.mark.parametrize("world", simulated + real)


def ranks_needed(item: "pytest.Item") -> int | None:
    """The number of real ranks that a test asks for (0: any number); None for a serial test."""
    marks = list(item.iter_markers("mpi"))
    if not marks:
        return None
    return max(int(mark.kwargs.get("min_size") or 0) for mark in marks)
