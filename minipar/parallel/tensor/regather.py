"""Sequence parallelism that keeps only its own tokens, and gathers the others again in backward.

    forward    x₀ ──all_gather──▶ x ─▶ x A      keeps x₀, a p-th of x
    backward   x₀ ──all_gather──▶ x ─▶ dA = xᵀ g

The inputs of the column layers are the last activations that are as large as without tensor
parallelism.  Without them a layer keeps exactly 1/p of what one process keeps, for one all-gather
more of each: 5/4 of the bytes.  Korthikanti et al. 2022, section 4.2.2.
"""

from ... import autograd as ag
from ...autograd import Tensor
from ...backend import Array
from ...comm import collectives
from .layers import TOKENS, ColumnLinear


class RegatheringColumnLinear(ColumnLinear):
    """A column layer that keeps this rank's tokens of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        tp, whole = self.split.tp, self.split.enter(x)

        def keep(array: Array) -> Array:
            return x.data if array is whole.data else array

        def bring_back(array: Array) -> Array:
            if array.ndim != x.ndim:            # the weight
                return array
            return collectives.all_gather(tp, array, TOKENS)
        with ag.saved_tensors_hooks(keep, bring_back):
            return ag.linear(whole, self.weight, self.bias if self.has_bias else None)
