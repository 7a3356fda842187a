"""Arrays: NumPy or CuPy, arrays without numbers, and where their memory comes from.

    arrays.py         the seam between NumPy and CuPy
    allocation.py     how arrays that live long are made, and who is told of memory
    views.py          the storage behind a view
    malloc.py         a setting of the C library
    mapped_file.py    arrays in a file; only the pages in use are in memory
    copy_stream.py    copies between memories, beside what a GPU computes
    shape_array.py    arrays without numbers (their views in shape_layout.py, NumPy's functions of
                      them in shape_rules.py)
"""

from .allocation import allocate_zeros, allocating_with, observing_allocations, record_allocation
from .arrays import (
    Array,
    add_at,
    as_rows,
    asarray_like,
    check_ids,
    is_gpu,
    is_host,
    keep_where,
    l2_blocks,
    row_dot,
    row_sum,
    scatter_add,
    to_device_of,
    to_float,
    to_host,
)

__all__ = [
    "Array", "add_at", "allocate_zeros", "allocating_with", "as_rows", "asarray_like", "check_ids",
    "is_gpu", "is_host", "keep_where", "l2_blocks", "observing_allocations", "record_allocation",
    "row_dot", "row_sum", "scatter_add", "to_device_of", "to_float", "to_host",
]
