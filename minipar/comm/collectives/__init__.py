"""Collectives made of point-to-point messages: one file per operation, with all its algorithms.

    every rank → every rank    all_reduce, reduce_scatter, all_gather, all_to_all, barrier
    one rank ↔ the others      broadcast, scatter, gather, reduce
    rank r ← ranks 0 … r       scan, exscan (both in scan.py)
    all of them by name        operations.py

Call operation(comm, array, …, algorithm="auto") on all ranks of `comm`.  "auto" takes the algorithm
that the communicator chooses (`comm.choose`), by default the operation's first in
`comm/algorithms.py`.  That table has all algorithms by name, each with its cost.  It is one folder
up, because the cost model reads it too; these files look a function up there when they are called.

The docstring of an algorithm begins with its cost for p ranks: the rounds, and the bytes that
travel one after the other (the critical path).  n is the bytes of the whole vector: what a rank
gives to an all-reduce, or gets from an all-gather (`cost.predict` has the list).
"""

from ..arguments import chunk_bounds
from .all_gather import all_gather
from .all_reduce import all_reduce, sum_over_ranks
from .all_to_all import all_to_all
from .barrier import barrier
from .broadcast import broadcast
from .gather import gather, gather_object, gather_trace
from .reduce import reduce
from .reduce_scatter import reduce_scatter
from .scan import exscan, scan
from .scatter import scatter

__all__ = ["sum_over_ranks", "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast",
           "chunk_bounds", "exscan", "gather", "gather_object", "gather_trace", "reduce",
           "reduce_scatter", "scan", "scatter"]
