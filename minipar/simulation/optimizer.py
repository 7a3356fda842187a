"""AdamW in mixed precision, as large frameworks have it: float32 states beside 16-bit weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend import Array, allocating_with, record_allocation
from ..nn import FlatBuffer
from ..optim import AdamW


class MixedAdamW(AdamW):
    """AdamW that keeps a float32 copy of the weights, too: 12 bytes a parameter."""

    state_names = ("first_moment", "second_moment", "master")

    def compute_step(self, g, scratch, m, v, master):
        """The step of AdamW."""
        return super().compute_step(g, scratch, m, v)


def make_adamw(slabs: Sequence[FlatBuffer], dtype: Any) -> AdamW:
    """AdamW of weights of that dtype; with float32 states, if they have 16 bits."""
    if np.dtype(dtype).itemsize == 4:
        return AdamW(slabs)

    def wide(like: Array, shape: Any) -> Array:
        return record_allocation("optimizer states", np.zeros_like(
            like, np.float32, shape=like.shape if shape is None else shape))
    with allocating_with({"optimizer states": wide}):
        return MixedAdamW(slabs)
