"""Collectives on real ranks of one node, against the MPI library's own call on the same buffers.

    our all_reduce(slab, out=slab)   │ in turn, in place, on views of one slab of 64 MiB, whose
    MPI_Allreduce(IN_PLACE, slab)    │ pages are huge (NumPy asks for them from 4 MiB on)

A time is that of the slowest rank, a ratio that of the medians.  The library allocates a temporary
array in each call, whose pages the kernel must find and zero: at 64 MiB that is most of the lead.
The last row is the same with a malloc that keeps all freed memory.  `keep_freed_memory` alone does
not suffice here: glibc maps arrays above 32 MiB anew, whatever its settings.
"""

import ctypes
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

from minipar.backend.malloc import keep_freed_memory
from minipar.comm import Communicator
from minipar.comm.arguments import find_algorithm
from minipar.comm.collectives import all_reduce

from ..timing import Row, import_torch, milliseconds

MIB = 1 << 20
TARGETS = {     # all_reduce: (ranks, algorithm) -> {bytes: how many times as fast as MPI's}
    (2, "recursive_doubling"): {4096: 0.9},
    (2, "auto"): {4096: 0.9},
    (2, "blocked_ring"): {MIB: 1.3, 16 * MIB: 1.5, 64 * MIB: 3.5},
    (2, "shared"): {4096: 1.2, MIB: 2.0, 4 * MIB: 2.0, 16 * MIB: 2.0},
    (4, "blocked_ring"): {MIB: 1.15, 16 * MIB: 1.5, 64 * MIB: 3.0},
    (4, "shared"): {MIB: None, 16 * MIB: None, 64 * MIB: None},
}
OTHERS = {"reduce_scatter": 1.2, "all_gather": 0.95, "all_to_all": 0.95, "broadcast": 0.8}
GLOO = 8.0


def measure(comm: Communicator, num_rounds: int) -> Iterator[Row]:
    """Yield the rows for as many ranks as `comm` has, 2 or 4."""
    slab = np.full(64 * MIB // 4, 1.0, np.float32)
    twin = slab.copy()

    def compare(what: str, num_bytes: int, target: float | None, ours: Callable[[], object],
                theirs: Callable[[], object], whose: str = "MPI") -> Row:
        mine, other = times(comm, num_bytes, num_rounds, ours, theirs)
        return Row(f"{what}, {size(num_bytes)}, {comm.size} ranks", milliseconds(mine),
                   f"{whose} {milliseconds(other)}", other / mine, target)

    def reduce(algorithm: str, num_bytes: int, target: float | None, note: str = "") -> Row:
        array = slab[:num_bytes // 4]
        check(comm, array, algorithm)
        return compare(
            f"all_reduce {algorithm}{note}", num_bytes, target,
            lambda: all_reduce(comm, array, algorithm=algorithm, out=array),
            lambda: comm.mpi_comm.Allreduce(comm.MPI.IN_PLACE, array))

    for (num_ranks, algorithm), targets in TARGETS.items():
        for num_bytes, target in targets.items() if num_ranks == comm.size else ():
            yield reduce(algorithm, num_bytes, target)
    if comm.size == 2:
        for operation, target in OTHERS.items():
            for num_bytes in (MIB, 16 * MIB):
                pair = calls(comm, operation, slab[:num_bytes // 4], twin[:num_bytes // 4])
                yield compare(operation, num_bytes, target, *pair)
        gloo = gloo_all_reduce(comm)
        for num_bytes in (MIB, 16 * MIB) if gloo else ():
            array = slab[:num_bytes // 4]
            yield compare("all_reduce against PyTorch", num_bytes, GLOO,
                          lambda array=array: all_reduce(comm, array, out=array),
                          lambda array=array: gloo(array), "gloo")
    map_nothing()
    yield reduce("blocked_ring", 64 * MIB, None, ", all freed memory kept")


def map_nothing() -> None:
    """Let glibc keep freed memory, and take large arrays from there as well."""
    max_mmaps = -4                      # M_MMAP_MAX in malloc.h
    if keep_freed_memory():
        ctypes.CDLL(None).mallopt(max_mmaps, 0)


def size(num_bytes: int) -> str:
    """Bytes as text in KiB or MiB."""
    return f"{num_bytes // MIB} MiB" if num_bytes >= MIB else f"{num_bytes // 1024} KiB"


def check(comm: Communicator, array: np.ndarray, algorithm: str) -> None:
    """Assert that the timed call gives the right sum."""
    array[...] = comm.rank + 1
    all_reduce(comm, array, algorithm=algorithm, out=array)
    assert (array == comm.size * (comm.size + 1) / 2).all(), algorithm
    array[...] = 0.0                # and stays that way, however often it is summed


def times(comm: Communicator, num_bytes: int, num_rounds: int, *steps: Callable[[], object]
          ) -> list[float]:
    """The median seconds of each step, a collective, on its slowest rank; run in turn."""
    repeats = min(50, max(1, 4 * MIB // num_bytes))
    found = np.zeros((num_rounds + 2, len(steps)))
    for one_round in found:
        for i, step in enumerate(steps):
            comm.mpi_comm.Barrier()
            start = time.perf_counter()
            for _ in range(repeats):
                step()
            one_round[i] = (time.perf_counter() - start) / repeats
    slowest = all_reduce(comm, found, op="max", algorithm="ring")
    return np.median(slowest[2:], axis=0).tolist()


def calls(comm: Communicator, operation: str, x: np.ndarray, y: np.ndarray) -> tuple:
    """(ours, the MPI library's) of an operation on the whole vectors x and y, without copies."""
    chunks, others = np.split(x, comm.size), np.split(y, comm.size)
    mpi = comm.mpi_comm

    def auto(comm: Communicator, *args: object) -> None:
        find_algorithm(comm, operation, "auto", x.nbytes)(comm, *args)
    return {
        "reduce_scatter": (lambda: auto(comm, chunks, np.add),
                           lambda: mpi.Reduce_scatter_block(x, others[0])),
        "all_gather": (lambda: auto(comm, chunks),
                       lambda: mpi.Allgather(comm.MPI.IN_PLACE, x)),
        "all_to_all": (lambda: auto(comm, chunks, others, None),
                       lambda: mpi.Alltoall(x, y)),
        "broadcast": (lambda: auto(comm, x, 0), lambda: mpi.Bcast(x, 0)),
    }[operation]


def gloo_all_reduce(comm: Communicator) -> Callable[[np.ndarray], None] | None:
    """PyTorch's all-reduce on processors, in place on a NumPy array; None without PyTorch."""
    torch = import_torch()
    if torch is None:
        return None
    name = tempfile.mktemp(prefix="minipar-gloo-") if comm.rank == 0 else None
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{comm.mpi_comm.bcast(name)}", rank=comm.rank,
        world_size=comm.size)
    return lambda array: torch.distributed.all_reduce(torch.from_numpy(array))
