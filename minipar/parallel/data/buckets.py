"""Buckets: gradients are reduced a few at a time, the last layers first, while backward goes on.

    slab        wte │ h.0 … │ h.1 … │ h.2 … │ ln_f          parameters, in the order of forward
    buckets          3      │   2   │   1   │  0            gradients come from the right

A bucket is a run of parameters, so its gradient is one stretch of the slab and one message.
Li et al. 2020 (PyTorch Distributed), section 3.2.2.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from ...backend import Array
from ...nn.slab import Segment, Slab

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


class Bucket:
    """Parameters `first_parameter` … `stop_parameter` - 1 of a slab: one stretch of its elements.

    The elements are `start` … `stop` - 1 of the slab; `layout` are the parameters' segments,
    counted from the start of the bucket.
    """

    def __init__(self, slab: Slab, first_parameter: int, stop_parameter: int):
        segments = slab.segments[first_parameter:stop_parameter]
        self.slab, self.parameters = slab, slab.parameters[first_parameter:stop_parameter]
        self.start, self.stop = segments[0].start, segments[-1].stop
        self.layout = relative(segments)

    @property
    def data(self) -> Array:
        """The parameters, flat."""
        return self.slab.data[self.start:self.stop]

    @property
    def grad(self) -> Array:
        """The gradients, flat."""
        return self.slab.grad[self.start:self.stop]


def relative(segments: Sequence[Segment]) -> list[Segment]:
    """The same segments, counted from the start of the first."""
    first = segments[0].start
    return [replace(s, start=s.start - first, stop=s.stop - first) for s in segments]


def make_buckets(slabs: Sequence[Slab], limits: Sequence[int]) -> list[Bucket]:
    """The slabs cut into buckets, in the order in which backward fills them.

    Each slab is cut by itself, so its first bucket has limits[0].
    """
    buckets = []
    for slab in reversed(slabs):
        backwards = list(range(len(slab.parameters)))[::-1]
        sizes = [slab.parameters[i].data.nbytes for i in backwards]
        for members in assign_buckets(sizes, limits):
            first_parameter = backwards[members[-1]]
            stop_parameter = backwards[members[0]] + 1
            buckets.append(Bucket(slab, first_parameter, stop_parameter))
    return buckets
