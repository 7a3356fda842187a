"""All-reduce: everyone gives an array, everyone gets the sum (product, maximum, minimum).

    before   rank 0: a       rank 1: b       rank 2: c
    after    rank 0: a+b+c   rank 1: a+b+c   rank 2: a+b+c

A reduce-scatter, and then an all-gather, is one way to do it.
"""

import numpy as np

from ...backend import Array
from ..chunks import check_out, chunk_bounds, find_algorithm, find_operator
from ..communicator import Communicator
from .all_gather import ring as ring_all_gather
from .reduce_scatter import ring as ring_reduce_scatter


def ring(comm: Communicator, flat: Array, op: str) -> None:
    """2(p - 1) rounds, 2n(p-1)/p bytes: a reduce-scatter, then an all-gather, on the same ring.

        chunks     0 1 2 3         every rank ends with its own chunk reduced …
        rank 1     · Σ · ·         … and passes it on until everyone has all

    The least bytes possible, whatever p; every chunk is summed once, in one order, so that all
    ranks get the same bits.  Patarasuk & Yuan 2009.
    """
    chunks = [flat[start:stop] for start, stop in chunk_bounds(flat.size, comm.size)]
    ring_reduce_scatter(comm, chunks, find_operator(op))
    ring_all_gather(comm, chunks)


def mpi(comm: Communicator, flat: Array, op: str) -> None:
    """The MPI library's own all-reduce.  Raises TypeError on a simulated cluster."""
    if not hasattr(comm, "mpi_comm"):
        raise TypeError('algorithm="mpi" needs real MPI ranks: start with mpirun, or choose "ring"')
    names = {"sum": "SUM", "prod": "PROD", "max": "MAX", "min": "MIN"}
    comm.mpi_comm.Allreduce(comm.MPI.IN_PLACE, flat, getattr(comm.MPI, names[op]))


ALGORITHMS = {"ring": ring, "auto": ring, "mpi": mpi}


def all_reduce(comm: Communicator, array: Array, op: str = "sum", algorithm: str = "auto",
               out: Array | None = None) -> Array:
    """The reduction of `array` over all ranks, of the same shape and dtype, on every rank.

    `op` is sum, prod, max or min.  The input is not changed unless it is `out`, into which the
    result is then written.
    """
    find_operator(op, array.dtype)
    reduce = find_algorithm(ALGORITHMS, algorithm)
    if out is None:
        out = np.empty_like(array)
    elif out is not array:
        check_out(out, array, array.shape)
    in_place = out.flags.c_contiguous if hasattr(out, "flags") else True
    work = out if in_place else np.empty_like(array, order="C")
    if work is not array:
        work[...] = array
    if comm.size > 1:
        with comm.collective("all_reduce", array, op=op, algorithm=algorithm):
            reduce(comm, work.reshape(work.size), op)
    if work is not out:
        out[...] = work
    return out


def agree_on_sum(comm: Communicator, number: float) -> float:
    """The sum of one number over all ranks: 8 bytes of bookkeeping, labelled "control"."""
    with comm.labelled("control"):
        return float(all_reduce(comm, np.array([number], dtype=np.float64), algorithm="ring")[0])
