"""algorithm="mpi": the MPI library's own collectives, to compare with ours.

Same arguments as the algorithms that they stand beside; every wait is the library's.  Raises
TypeError on a simulated cluster.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from ...backend import Array
from ..chunks import OPERATORS
from ..collectives.broadcast_algorithms import flattened
from ..communicator import Communicator
from ..subgroup import Part

NAMES = {OPERATORS["sum"]: "SUM", OPERATORS["prod"]: "PROD", OPERATORS["max"]: "MAX",
         OPERATORS["min"]: "MIN"}
# Of these nobody is through before all have begun: who has left is missing.  Of the others a rank
# may have done its part, and left, while one that is late holds up the rest.
ALL_MEET = {"barrier", "all_gather", "reduce_scatter", "all_reduce", "all_to_all"}


def open_up(comm: Communicator) -> tuple:
    """(mpi4py's communicator, its module MPI, the ranks in the order of `comm`)."""
    members: Sequence[int] = range(comm.size)
    if isinstance(comm, Part):
        comm, members = comm.comm, comm.members
    if not hasattr(comm, "mpi_comm"):
        raise TypeError('algorithm="mpi" needs real MPI ranks: start with mpirun, or choose "auto"')
    return comm.mpi_comm, comm.MPI, members


def watched(operation: str, run: Callable) -> Callable:
    """`run`, one of these, as one wait; if all meet there, it says so if one of them has left."""
    @functools.wraps(run)
    def watched_run(comm: Communicator, *args) -> None:
        open_up(comm)
        whole = comm.comm if isinstance(comm, Part) else comm
        waiting = (f"take part in MPI's own {operation}", None, None, 0, "")
        peers = whole.members if operation in ALL_MEET else ()
        with whole.me.watchdog.watching(waiting, peers):
            run(comm, *args)
    return watched_run


def in_bytes(arrays: Sequence[Array], MPI) -> tuple[Array, list]:
    """One vector of bytes of the arrays one after the other, and mpi4py's description of it."""
    flat = np.concatenate([a.reshape(a.size).view(np.uint8) for a in arrays])
    sizes = [a.nbytes for a in arrays]
    return flat, [flat, sizes, [sum(sizes[:i]) for i in range(len(sizes))], MPI.BYTE]


def fill(arrays: Sequence[Array], flat: Array) -> None:
    """The inverse of `in_bytes`."""
    start = 0
    for a in arrays:
        a[...] = flat[start:start + a.nbytes].view(a.dtype).reshape(a.shape)
        start += a.nbytes


def barrier(comm: Communicator) -> None:
    """MPI_Barrier."""
    open_up(comm)[0].Barrier()


def broadcast(comm: Communicator, array: Array, root: int) -> None:
    """MPI_Bcast."""
    mpi_comm, MPI, _ = open_up(comm)
    with flattened(array) as flat:
        mpi_comm.Bcast([flat.view(np.uint8), MPI.BYTE], root)


def by_rank(line: Array, bounds: list, members: Sequence[int], MPI) -> list:
    """mpi4py's description of pieces that lie in another order than that of the ranks."""
    row = line.itemsize * int(np.prod(line.shape[1:]))
    order = sorted(range(len(members)), key=lambda i: members[i])
    return [line.reshape(line.size).view(np.uint8), [(bounds[i][1] - bounds[i][0]) * row
            for i in order], [bounds[i][0] * row for i in order], MPI.BYTE]


def scatter(comm: Communicator, line: Array, bounds: list[tuple[int, int]]) -> None:
    """MPI_Scatterv."""
    mpi_comm, MPI, members = open_up(comm)
    mine = line[slice(*bounds[comm.rank])].copy()
    mpi_comm.Scatterv(by_rank(line, bounds, members, MPI), [mine, MPI.BYTE], members[0])
    line[slice(*bounds[comm.rank])] = mine


def gather(comm: Communicator, line: Array, bounds: list[tuple[int, int]]) -> None:
    """MPI_Gatherv."""
    mpi_comm, MPI, members = open_up(comm)
    mine = line[slice(*bounds[comm.rank])].copy()
    mpi_comm.Gatherv([mine, MPI.BYTE], by_rank(line, bounds, members, MPI), members[0])


def reduce(comm: Communicator, flat: Array, combine) -> None:
    """MPI_Reduce."""
    mpi_comm, MPI, members = open_up(comm)
    sending, receiving = (MPI.IN_PLACE, flat) if comm.rank == 0 else (flat, None)
    mpi_comm.Reduce(sending, receiving, getattr(MPI, NAMES[combine]), members[0])


def all_gather(comm: Communicator, chunks: list[Array]) -> None:
    """MPI_Allgatherv."""
    mpi_comm, MPI, _ = open_up(comm)
    flat, described = in_bytes(chunks, MPI)
    mpi_comm.Allgatherv(MPI.IN_PLACE, described)
    fill(chunks, flat)


def reduce_scatter(comm: Communicator, chunks: list[Array], combine) -> None:
    """MPI_Reduce_scatter."""
    mpi_comm, MPI, _ = open_up(comm)
    mine = np.empty_like(chunks[comm.rank])
    mpi_comm.Reduce_scatter(np.concatenate([c.reshape(c.size) for c in chunks]), mine,
                            [c.size for c in chunks], getattr(MPI, NAMES[combine]))
    chunks[comm.rank][...] = mine


def all_to_all(comm: Communicator, outgoing: list[Array], incoming: list[Array],
               counts: Sequence[Sequence[int]] | None = None) -> None:
    """MPI_Alltoallv."""
    mpi_comm, MPI, _ = open_up(comm)
    flat, described = in_bytes(incoming, MPI)
    mpi_comm.Alltoallv(in_bytes(outgoing, MPI)[1], described)
    fill(incoming, flat)


def scan(comm: Communicator, mine: Array, before: Array | None, combine) -> None:
    """MPI_Scan, or MPI_Exscan."""
    mpi_comm, MPI, _ = open_up(comm)
    op = getattr(MPI, NAMES[combine])
    if before is None:
        mpi_comm.Scan(MPI.IN_PLACE, mine, op)
    elif comm.rank == 0:
        mpi_comm.Exscan(mine, before.copy(), op)
    else:
        mpi_comm.Exscan(mine, before, op)
