"""algorithm="mpi": the MPI library's own collectives, to compare with ours.

Each function takes the same arguments as the algorithms of its operation; `BUILTIN` has them all.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...backend import Array, is_host
from ..arguments import Combine, find_operator, joined
from ..collectives.broadcast import flattened
from ..communicator import Communicator, OwnAlgorithm
from ..subgroup import Subgroup

# NumPy's operator -> (MPI's, dtype kinds that it combines as NumPy does).  MPI's MAX and MIN drop a
# NaN on some ranks, and have no rule for complex numbers and bool.
NAMES: dict[Any, tuple[str, str]] = {np.add: ("SUM", "iufc"), np.multiply: ("PROD", "iuf"),
                                     np.maximum: ("MAX", "iu"), np.minimum: ("MIN", "iu")}
# No rank ends one of these before all have begun it.  So if a rank has left the program during one,
# the others wait for it in vain.  In the other collectives a rank may have done its part and left.
ALL_MEET = {"barrier", "all_gather", "reduce_scatter", "all_reduce", "all_to_all"}


def handles_of(comm: Communicator) -> tuple:
    """(mpi4py's communicator, its module MPI, the ranks in the order of `comm`)."""
    whole = whole_of(comm)
    members = comm.members if isinstance(comm, Subgroup) else range(comm.size)
    return whole.mpi_comm, whole.MPI, members


def whole_of(comm: Communicator) -> Any:
    """The communicator itself, where `comm` may be a Subgroup of the same ranks in another order.

    Raises TypeError for a Subgroup of some of its ranks only.
    """
    whole = comm.comm if isinstance(comm, Subgroup) else comm
    if whole.size != comm.size:
        raise TypeError('algorithm="mpi" takes all ranks of a communicator: split it, or choose '
                        '"auto"')
    return whole


def watched(operation: str, run: Callable[..., None]) -> Callable[..., None]:
    """`run` as one wait that the watchdog sees; where all ranks meet, also for ranks that left."""
    @functools.wraps(run)
    def watched_run(comm: Communicator, *args: Any) -> None:
        whole = whole_of(comm)
        waiting = (f"take part in MPI's own {operation}", None, None, 0, "")
        peers = whole.members if operation in ALL_MEET else ()
        with whole.rank_state.wait_for(waiting, peers):
            run(comm, *args)
    return watched_run


@contextmanager
def translated(combine: Combine, array: Array, MPI: Any) -> Iterator[tuple[Any, Callable]]:
    """Context: (operator, describe) to reduce arrays like `array`; mpi4py takes describe(array).

    The operator is MPI's own where that does what `combine` does.  Else MPI calls `combine` on
    elements that are mere bytes to it, and keeps the order of ranks: `combine` may not commute.
    """
    dtype = array.dtype
    name, kinds = NAMES.get(combine, ("", ""))
    if dtype.kind in kinds and dtype.isnative and dtype.char != "e":    # not all MPIs have float16
        yield getattr(MPI, name), lambda array: array
        return
    if not is_host(array):
        raise TypeError(f'algorithm="mpi" would combine {dtype} by NumPy, which cannot read a '
                        f'{type(array).__name__}: choose "auto"')

    def call(lower: Any, higher: Any, datatype: Any) -> None:
        result = np.frombuffer(higher, dtype)
        with np.errstate(all="ignore"):         # an error in here would end the process
            combine(np.frombuffer(lower, dtype), result, out=result)

    operator = MPI.Op.Create(call, commute=False)
    element = MPI.BYTE.Create_contiguous(dtype.itemsize).Commit()
    try:
        yield operator, lambda array: [array.view(np.uint8), element]
    finally:
        operator.Free()
        element.Free()


def in_bytes(arrays: Sequence[Array], MPI: Any) -> tuple[Array, list]:
    """The arrays joined as one vector of bytes, and mpi4py's description of it."""
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
    handles_of(comm)[0].Barrier()


def broadcast(comm: Communicator, array: Array, root: int) -> None:
    """MPI_Bcast."""
    mpi_comm, MPI, _ = handles_of(comm)
    with flattened(array) as flat:
        mpi_comm.Bcast([flat.view(np.uint8), MPI.BYTE], root)


def by_rank(line: Array, bounds: list, members: Sequence[int], MPI: Any) -> list:
    """mpi4py's description of pieces that do not lie in the order of the ranks."""
    row = line.itemsize * int(np.prod(line.shape[1:]))
    order = sorted(range(len(members)), key=lambda i: members[i])
    return [line.reshape(line.size).view(np.uint8), [(bounds[i][1] - bounds[i][0]) * row
            for i in order], [bounds[i][0] * row for i in order], MPI.BYTE]


def scatter(comm: Communicator, line: Array, bounds: list[tuple[int, int]]) -> None:
    """MPI_Scatterv."""
    mpi_comm, MPI, members = handles_of(comm)
    mine = line[slice(*bounds[comm.rank])].copy()
    mpi_comm.Scatterv(by_rank(line, bounds, members, MPI), [mine, MPI.BYTE], members[0])
    if comm.rank:                               # the root has it, perhaps in a read-only array
        line[slice(*bounds[comm.rank])] = mine


def gather(comm: Communicator, line: Array, bounds: list[tuple[int, int]]) -> None:
    """MPI_Gatherv."""
    mpi_comm, MPI, members = handles_of(comm)
    mine = line[slice(*bounds[comm.rank])].copy()
    mpi_comm.Gatherv([mine, MPI.BYTE], by_rank(line, bounds, members, MPI), members[0])


def reduce(comm: Communicator, flat: Array, combine: Combine) -> None:
    """MPI_Reduce."""
    mpi_comm, MPI, members = handles_of(comm)
    with translated(combine, flat, MPI) as (operator, describe):
        sending, receiving = describe(flat), None
        if comm.rank == 0:
            sending, receiving = MPI.IN_PLACE, sending
        mpi_comm.Reduce(sending, receiving, operator, members[0])


def all_gather(comm: Communicator, chunks: list[Array]) -> None:
    """MPI_Allgatherv."""
    mpi_comm, MPI, _ = handles_of(comm)
    flat, described = in_bytes(chunks, MPI)
    mpi_comm.Allgatherv(MPI.IN_PLACE, described)
    fill(chunks, flat)


def reduce_scatter(comm: Communicator, chunks: list[Array], combine: Combine) -> None:
    """MPI_Reduce_scatter."""
    mpi_comm, MPI, _ = handles_of(comm)
    flat = joined([c.reshape(c.size) for c in chunks])
    mine = np.empty(chunks[comm.rank].size, flat.dtype, like=flat)
    with translated(combine, flat, MPI) as (operator, describe):
        mpi_comm.Reduce_scatter(describe(flat), describe(mine), [c.size for c in chunks], operator)
    chunks[comm.rank][...] = mine.reshape(chunks[comm.rank].shape)


def all_reduce(comm: Communicator, flat: Array, op: str | Combine) -> None:
    """MPI_Allreduce."""
    mpi_comm, MPI, _ = handles_of(comm)
    with translated(find_operator(op), flat, MPI) as (operator, describe):
        mpi_comm.Allreduce(MPI.IN_PLACE, describe(flat), operator)


def all_to_all(comm: Communicator, outgoing: list[Array], incoming: list[Array],
               counts: Sequence[Sequence[int]] | None = None) -> None:
    """MPI_Alltoallv."""
    mpi_comm, MPI, _ = handles_of(comm)
    flat, described = in_bytes(incoming, MPI)
    mpi_comm.Alltoallv(in_bytes(outgoing, MPI)[1], described)
    fill(incoming, flat)


def scan(comm: Communicator, mine: Array, before: Array | None, combine: Combine) -> None:
    """MPI_Scan, or MPI_Exscan."""
    mpi_comm, MPI, _ = handles_of(comm)
    with translated(combine, mine, MPI) as (operator, describe):
        if before is None:
            mpi_comm.Scan(MPI.IN_PLACE, describe(mine), operator)
        else:
            there = before if comm.rank else before.copy()      # rank 0 keeps what it has
            mpi_comm.Exscan(describe(mine), describe(there), operator)


BUILTIN = {(operation.__name__, "mpi"): OwnAlgorithm(watched(operation.__name__, operation),
                                                     competes=lambda comm: False)
           for operation in (all_gather, all_reduce, all_to_all, barrier, broadcast, gather, reduce,
                             reduce_scatter, scan, scatter)}
