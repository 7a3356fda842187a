"""Collectives inside programs that use mpi4py themselves: Communicator.from_mpi."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minipar.comm import Communicator
from minipar.comm.collectives import all_gather, all_reduce, broadcast
from minipar.comm.work import start_work
from minipar.environment import find_mpirun, mpirun_environment
from minipar.testing import worlds

ROOT = Path(__file__).parents[3]
PROGRAM = """
import numpy as np
from mpi4py import MPI
from minipar.comm import Communicator
from minipar.comm.collectives import all_reduce

world = MPI.COMM_WORLD
theirs = np.empty(1)
request = world.Irecv(theirs, (world.rank - 1) % world.size)        # any tag: it waits for theirs
comm = Communicator.from_mpi(world)
total = all_reduce(comm, np.full(1000, world.rank + 1.0))
right = world.allreduce(world.rank + 1.0)
world.Send(np.full(1, 7.0), (world.rank + 1) % world.size)
request.Wait()
assert (total == right).all() and theirs[0] == 7.0
print(f"rank {comm.rank} of {comm.size}: equal")
"""


@worlds(mpi=(2, 4))
def test_any_communicator_of_mpi4py(world):
    def body(comm):
        program = comm.mpi_comm.Split(comm.rank % 2, -comm.rank)        # the program's own
        ranks = Communicator.from_mpi(program)
        assert (ranks.rank, ranks.size) == (program.rank, program.size)
        assert not ranks.is_simulated and ranks.world_rank == program.rank
        expected = program.allreduce(comm.rank)
        for algorithm in ("auto", "ring", "recursive_doubling", "mpi", "shared"):
            assert all_reduce(ranks, np.full(3, comm.rank), algorithm=algorithm)[0] == expected
        work = start_work(all_reduce, ranks, np.full(5, comm.rank))
        assert program.bcast(comm.rank if program.rank == 0 else None) == \
            broadcast(ranks, np.array([comm.rank]))[0]
        assert work.wait()[0] == expected
        row = ranks.split(0)
        assert list(all_gather(row, np.array([comm.rank]))) == program.allgather(comm.rank)
        row.free()
        ranks.free()
        program.Free()
    world.run(body)


@worlds(mpi=(2,))
def test_its_messages_never_meet_those_of_the_program(world):
    def body(comm):
        program, peer = comm.mpi_comm, 1 - comm.rank
        ranks = Communicator.from_mpi(program)
        theirs, ours = np.zeros(2), np.zeros(2)
        request = program.Irecv(theirs, peer, 0)            # posted first, with the same tag
        ranks.sendrecv(np.full(2, 1.0), peer, ours, peer, tag=0)
        program.Send(np.full(2, 2.0), peer, 0)
        request.Wait()
        assert (ours == 1).all() and (theirs == 2).all()
        ranks.free()
    world.run(body)


@worlds(mpi=(2,))
def test_anything_else_is_refused(world):
    def body(comm):
        for wrong in (comm, None, comm.MPI.COMM_NULL):
            with pytest.raises(TypeError, match="from_mpi takes an intracommunicator of mpi4py"):
                Communicator.from_mpi(wrong)
    world.run(body)


@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun: pip install '.[mpi]'")
def test_a_program_that_exists(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([find_mpirun(), "-n", "3", sys.executable, tmp_path / "program.py"],
                          env=mpirun_environment() | {"PYTHONPATH": str(ROOT)}, text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(f"rank {r} of 3: equal" in done.stdout for r in range(3)), done.stdout
