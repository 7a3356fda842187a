"""Further operations and algorithms, and which of them "auto" takes.

The operations of the spine (docs/spine.txt) know one algorithm each and do without this file; here
the others are added to their `ALGORITHMS`, and "auto" becomes a choice by links and bytes
(`automatic.py`).
"""

from collections.abc import Callable
from math import prod

from ..cost.auto import chooser
from ..mpi import builtin_collectives as library
from ..mpi.shared_memory import shared
from ..objects import gather_objects, gather_trace
from .all_gather import ALGORITHMS as ALL_GATHER
from .all_gather_algorithms import bruck as bruck_all_gather
from .all_gather_algorithms import recursive_doubling as doubling_all_gather
from .all_reduce import ALGORITHMS as ALL_REDUCE
from .all_reduce_algorithms import (
    blocked_ring,
    hierarchical,
    rabenseifner,
    recursive_doubling,
    tree,
)
from .all_reduce_torus import torus
from .all_to_all import ALGORITHMS as ALL_TO_ALL
from .all_to_all_algorithms import bruck as bruck_all_to_all
from .barrier import ALGORITHMS as BARRIER
from .barrier import barrier
from .broadcast import ALGORITHMS as BROADCAST
from .broadcast_algorithms import chain, pipelined_chain, scatter_all_gather
from .gather import ALGORITHMS as GATHER
from .gather import gather
from .reduce import ALGORITHMS as REDUCE
from .reduce import reduce
from .reduce_scatter import ALGORITHMS as REDUCE_SCATTER
from .reduce_scatter_algorithms import pairwise, recursive_halving
from .scan import ALGORITHMS as SCAN
from .scan import exscan, scan
from .scatter import ALGORITHMS as SCATTER
from .scatter import scatter

__all__ = ["ALGORITHMS", "NEED_REAL_RANKS", "barrier", "exscan", "gather", "gather_objects",
           "gather_trace", "reduce", "scan", "scatter"]

NEED_REAL_RANKS = {"mpi", "shared"}     # no simulated ones, and no messages that could be counted

ALGORITHMS = {      # every operation's algorithms by name
    "all_gather": ALL_GATHER, "all_reduce": ALL_REDUCE, "all_to_all": ALL_TO_ALL,
    "barrier": BARRIER, "broadcast": BROADCAST, "exscan": SCAN, "gather": GATHER,
    "reduce": REDUCE, "reduce_scatter": REDUCE_SCATTER, "scan": SCAN, "scatter": SCATTER,
}

ALL_GATHER |= {"recursive_doubling": doubling_all_gather, "bruck": bruck_all_gather}
ALL_REDUCE |= {"blocked_ring": blocked_ring, "recursive_doubling": recursive_doubling,
               "rabenseifner": rabenseifner, "tree": tree, "hierarchical": hierarchical,
               "torus": torus, "shared": shared}
ALL_TO_ALL |= {"bruck": bruck_all_to_all}
BROADCAST |= {"chain": chain, "pipelined_chain": pipelined_chain,
              "scatter_all_gather": scatter_all_gather}
REDUCE_SCATTER |= {"pairwise": pairwise, "recursive_halving": recursive_halving}
for operation in sorted({*ALGORITHMS} - {"exscan"}):
    own = getattr(library, operation, None) or ALGORITHMS[operation]["mpi"]
    ALGORITHMS[operation]["mpi"] = library.watched(operation, own)


def automatic(operation: str, num_bytes: Callable[..., int]) -> Callable:
    """The algorithm that takes the one which is best for num_bytes(p, *its arguments)."""
    def auto(comm, *args) -> None:
        name = chooser(comm, ALGORITHMS)(operation, num_bytes(comm.size, *args))
        ALGORITHMS[operation][name](comm, *args)
    return auto


def bytes_of_table(p: int, outgoing: list, incoming: list, counts) -> int:
    """What a rank sends on average in an all-to-all: a number that all ranks agree on."""
    if counts is None:
        return outgoing[0].nbytes * p
    return sum(map(sum, counts)) * outgoing[0].itemsize * prod(outgoing[0].shape[1:]) // p


for operation, num_bytes in {
        "barrier": lambda p: 0,
        "broadcast": lambda p, array, root: array.nbytes,
        "scatter": lambda p, line, bounds: line.nbytes,
        "gather": lambda p, line, bounds: line.nbytes,
        "reduce": lambda p, flat, combine: flat.nbytes,
        "all_gather": lambda p, chunks: sum(chunk.nbytes for chunk in chunks),
        "reduce_scatter": lambda p, chunks, combine: sum(chunk.nbytes for chunk in chunks),
        "all_reduce": lambda p, flat, op: flat.nbytes,
        "all_to_all": bytes_of_table,
        "scan": lambda p, mine, before, combine: mine.nbytes}.items():
    ALGORITHMS[operation]["auto"] = automatic(operation, num_bytes)
