"""Collectives from point-to-point messages alone: one file per operation."""

from .all_gather import all_gather
from .all_reduce import agree_on_sum, all_reduce
from .all_to_all import all_to_all
from .broadcast import broadcast
from .chunks import chunk_bounds
from .objects import gather_objects
from .reduce_scatter import reduce_scatter

__all__ = ["agree_on_sum", "all_gather", "all_reduce", "all_to_all", "broadcast", "chunk_bounds",
           "gather_objects", "reduce_scatter"]
