"""Collectives from point-to-point messages alone: one file per operation.

Operations (comm, array, …, algorithm="auto"), each called by all ranks of `comm`: barrier;
broadcast, scatter, gather, reduce; all_gather, reduce_scatter, all_reduce, all_to_all; scan,
exscan.
"""

from importlib import import_module

from ..chunks import chunk_bounds
from .all_gather import all_gather
from .all_reduce import agree_on_sum, all_reduce
from .all_to_all import all_to_all
from .broadcast import broadcast
from .reduce_scatter import reduce_scatter

# Loaded like a plug-in: the spine is complete without it (tests/repository/test_spine.py).
further = import_module(".further", __name__)
barrier, exscan, gather = further.barrier, further.exscan, further.gather
gather_objects, gather_trace = further.gather_objects, further.gather_trace
reduce, scan, scatter = further.reduce, further.scan, further.scatter

__all__ = ["agree_on_sum", "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast",
           "chunk_bounds", "exscan", "gather", "gather_objects", "gather_trace", "reduce",
           "reduce_scatter", "scan", "scatter"]
