"""AdamW in mixed precision, as large frameworks have it: float32 states beside 16-bit weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend import Array, allocating_with, record_allocation
from ..backend.shape_array import ShapeArray
from ..nn import FlatBuffer
from ..optim import AdamW
from .host import host_array


class MixedAdamW(AdamW):
    """AdamW that keeps a float32 copy of the weights, too: 12 bytes a parameter."""

    state_names = ("first_moment", "second_moment", "master")

    def compute_step(self, g, scratch, m, v, master):
        """The step of AdamW."""
        return super().compute_step(g, scratch, m, v)


def make_adamw(slabs: Sequence[FlatBuffer], dtype: Any, offloaded: bool = False) -> AdamW:
    """AdamW of weights of that dtype, with float32 states: of three kinds, if they have 16 bits.

    They are in the memory of the host, if `offloaded`.
    """
    def make(like: Array, shape: Any) -> Array:
        shape = like.shape if shape is None else shape
        return host_array(shape, np.float32) if offloaded else record_allocation(
            "optimizer states", ShapeArray(shape, np.float32))
    with allocating_with({"optimizer states": make}):
        return AdamW(slabs) if np.dtype(dtype).itemsize == 4 else MixedAdamW(slabs)
