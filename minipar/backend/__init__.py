"""Arrays: NumPy or CuPy, arrays without numbers, and where their memory comes from."""

from .array_module import (
    Array,
    add_at,
    allocated,
    beside,
    blocks,
    check_ids,
    flat_view,
    is_gpu,
    is_host,
    keep_freed_memory,
    like,
    making,
    observing_allocations,
    place_in,
    scatter_add,
    storage,
    to_host,
    view_of,
    zeros,
)

__all__ = [
    "Array", "add_at", "allocated", "beside", "blocks", "check_ids", "flat_view", "is_gpu",
    "is_host", "keep_freed_memory", "like", "making", "observing_allocations", "place_in",
    "scatter_add", "storage", "to_host", "view_of", "zeros",
]
