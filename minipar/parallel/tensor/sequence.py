"""Sequence parallelism: between the pairs of layers each rank has a part of the tokens.

    x₀ ──all_gather──▶ x ─▶ x A ─▶ gelu ─▶ y B ──reduce_scatter──▶ z₀      tokens of rank 0

Without it, tensor parallelism gives every rank the same x between the pairs.  Here f becomes an
all-gather of the tokens and g a reduce-scatter.  They are the two halves of an all-reduce, and send
as many bytes.  Layer norms, dropouts and the activations that they save are split.  The norms'
weights meet different tokens on every rank, so they pass through `copy_to`.  Korthikanti et al.
2022, figure 5.

    forward    x₀ ──all_gather──▶ x ─▶ x A      keeps x₀, a p-th of x
    backward   x₀ ──all_gather──▶ x ─▶ dA = xᵀ g

The inputs of the column layers are the last activations that are as large as without tensor
parallelism.  `regather` gathers them again in backward, so that a layer keeps exactly 1/p of its
activations, for one more all-gather: 5/4 of the bytes.  Section 4.2.2 of the same paper.
"""

from collections.abc import Callable

from ... import autograd as ag
from ...autograd import Tensor
from ...backend import Array
from ...comm import collectives
from ..conjugate import all_gather, copy_to, reduce_scatter
from .layers import TensorSplit

TOKENS = 1              # the axis of x (batch, tokens, width) that is split


class SequenceSplit(TensorSplit):
    """A TensorSplit that splits the tokens between the pairs of layers over the ranks."""

    def enter(self, x: Tensor) -> Tensor:
        """V → R: all tokens, which each rank uses with its own weights."""
        return all_gather(x, self.tp, TOKENS)

    def leave(self, y: Tensor) -> Tensor:
        """P → V: this rank's tokens of the sum."""
        return reduce_scatter(y, self.tp, TOKENS)

    def shared(self, weight: Tensor) -> Tensor:
        """I → R: each rank uses it on its tokens, so its gradient is a sum over the ranks."""
        return copy_to(weight, self.tp)

    def regather(self, forward: Callable, x: Tensor) -> Tensor:
        """As `around_columns`, but of the x that enters, save only this rank's tokens."""
        whole = self.enter(x)

        def keep(array: Array) -> Array:
            return x.data if array is whole.data else array

        def bring_back(array: Array) -> Array:
            if array.ndim != x.ndim:            # the weight
                return array
            return collectives.all_gather(self.tp, array, TOKENS)
        with ag.saved_tensors_hooks(keep, bring_back):
            return forward(whole)
