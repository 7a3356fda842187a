"""The worlds of real ranks: all that `mpirun` started, or the ranks of an mpi4py communicator.

    from mpi4py import MPI
    from minipar.comm import Communicator
    from minipar.comm.collectives import all_reduce

    comm = Communicator.from_mpi(MPI.COMM_WORLD)        # collective; once, at the start
    total = all_reduce(comm, gradient)                  # beside MPI.COMM_WORLD.Allreduce(…)

Such a communicator measures nothing: it chooses algorithms by what `minipar calibrate` has kept, or
by built-in numbers.
"""

import functools
from typing import Any

from ...environment import is_checking
from ..cost import calibration
from ..cost.choose import measured_choice
from .builtin_collectives import BUILTIN
from .communicator import MPICommunicator, connect
from .guardian import Guardian
from .library import forget_shared_memory, import_mpi
from .process import Process
from .shared_all_reduce import SHARED
from .watchdog import Watchdog


def from_mpi(mpi_comm: Any) -> MPICommunicator:
    """Collective.  A communicator of the same ranks as `mpi_comm`, an intracommunicator of mpi4py.

    It duplicates `mpi_comm`, so that its messages never meet those of the program.  Its ranks are a
    world of their own: reports and traces number them as `mpi_comm` does.  Every wait on it is
    watched (`watchdog.py`), and each call starts one small process on each node (`guardian.py`).
    Call it once for each `mpi_comm`, not in a loop.  `free()` gives the duplicate back.  Raises
    TypeError for anything else, such as an intercommunicator.
    """
    MPI = import_mpi()
    if not isinstance(mpi_comm, MPI.Intracomm) or mpi_comm == MPI.COMM_NULL:
        raise TypeError(f"from_mpi takes an intracommunicator of mpi4py, such as MPI.COMM_WORLD or "
                        f"what its Split returns, not {mpi_comm!r}")
    if is_checking():
        from .check.observer import connect_checked as connect_ranks
    else:
        connect_ranks = connect
    comm = connect_ranks(mpi_comm, MPI, measured_choice, {**BUILTIN, **SHARED}, watch)
    comm.rank_state.calibration = calibration.read_on_all(comm.mpi_comm, MPI)
    return comm


def watch(process: Process, node: Any) -> None:
    """Collective on the node.  Have this process watched: its waits, and its death."""
    process.guardian = Guardian(node, process.world_rank, len(process.nodes))
    forget_shared_memory()
    if not is_checking():               # under MINIPAR_CHECK=1 check/observer.py watches instead
        Watchdog(import_mpi(), process, process.guardian)


@functools.cache
def world_communicator() -> MPICommunicator:
    """Collective.  The communicator of all ranks that `mpirun` started; made at the first call."""
    return from_mpi(import_mpi().COMM_WORLD)
