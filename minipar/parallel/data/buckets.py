"""Buckets: gradients are reduced a few at a time, the last layers first, while backward goes on.

    slab        wte │ h.0 … │ h.1 … │ h.2 … │ ln_f          parameters, in the order of forward
    buckets          3      │   2   │   1   │  0            gradients come from the right

A bucket is a run of neighbours, so its gradient is one stretch of the slab and one message.
Li et al. 2020 (PyTorch Distributed), section 3.2.2.
"""

import math
from collections.abc import Sequence
from typing import Any

MB = 1 << 20            # bytes: as in PyTorch, a bucket's megabytes are MiB
BUCKET_MB = 25.0        # PyTorch's default


def assign_buckets(sizes: Sequence[int], limits: Sequence[int]) -> list[list[int]]:
    """The indices of the parameters of each bucket; `sizes` in bytes, in the order of arrival.

    PyTorch's rule: the parameter that brings a bucket to its limit or above closes it.  The first
    bucket of a slab has limits[0], the next limits[1], …, all further ones the last limit.
    """
    buckets: list[list[int]] = []
    num_bytes, is_full = 0, True
    for i, size in enumerate(sizes):
        if is_full:
            buckets.append([])
            num_bytes = 0
        buckets[-1].append(i)
        num_bytes += size
        is_full = num_bytes >= limits[min(len(buckets), len(limits)) - 1]
    return buckets


def bucket_limits(first_bucket_mb: float, bucket_mb: float) -> tuple[int, int]:
    """Both limits in bytes, the first at most the second.  Raises ValueError unless positive."""
    for name, size in (("first_bucket_mb", first_bucket_mb), ("bucket_mb", bucket_mb)):
        if not 0 < size < math.inf:
            raise ValueError(f"{name}={size}: a bucket needs room: give a number of megabytes > 0")
    return int(min(first_bucket_mb, bucket_mb) * MB), int(bucket_mb * MB)


def cut_into_buckets(sizes: Sequence[int], keys: Sequence[Any],
                     limits: Sequence[int]) -> list[list[int]]:
    """The numbers of the parameters of each bucket of a slab, in the order of the slab.

    `sizes` are in bytes.  A bucket has neighbours with one key only, such as the stages that use
    them.
    """
    last_first = range(len(sizes))[::-1]
    ends = [i for i in last_first if i + 1 == len(sizes) or keys[i] != keys[i + 1]]
    buckets = []
    for end, before in zip(ends, [*ends[1:], -1]):
        here = range(before + 1, end + 1)[::-1]
        buckets += [sorted(here[i] for i in members)
                    for members in assign_buckets([sizes[i] for i in here], limits)]
    return buckets[::-1]
