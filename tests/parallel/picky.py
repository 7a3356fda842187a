"""A model whose parameters are not all used: which ones depends on the rows that a rank is given.

    x (b, 4) ─┬─▶ left    rows with x₀ > 0 ──┬─▶ + ─▶ head      and `idle`, which nobody uses
              └─▶ right   the other rows ────┘
"""

import numpy as np

from minipar.autograd import Tensor, cross_entropy
from minipar.nn import Linear, Module

NUM_CLASSES = 3


class Picky(Module):
    """`apart`: left and right are members of a list, so that FSDP makes each a unit of its own."""

    def __init__(self, apart: bool = False):
        super().__init__()
        if apart:
            self.sides = [Linear(4, 5), Linear(4, 5)]
        else:
            self.left, self.right = Linear(4, 5), Linear(4, 5)
        self.apart, self.idle, self.head = apart, Linear(2, 2), Linear(5, NUM_CLASSES)

    def logits(self, x: np.ndarray) -> Tensor:
        """x (b, 4) → (b, 3)."""
        is_left = x[:, :1] > 0
        total = Tensor(np.zeros((len(x), 5), x.dtype))
        for i, rows in enumerate((is_left, ~is_left)):
            if rows.any():
                side = self.sides[i] if self.apart else (self.left, self.right)[i]
                total = total + side(Tensor(x)) * rows.astype(x.dtype)
        return self.head(total)

    def loss(self, x: np.ndarray, labels: np.ndarray, num_targets: float | None = None) -> Tensor:
        """Cross-entropy of the labels (b,), summed and divided by `num_targets`."""
        return cross_entropy(self.logits(x), labels, num_targets)
