"""Experts whose layers are also cut over tp: columns, then rows, as any MLP of Megatron.

    rows ──f──▶ rows W₁[e] columns ─▶ gelu ─▶ · W₂[e] rows ──g──▶ Σ + bias[e]

Every rank of tp routes the same tokens in the same way.  So the routers' weights and gates are the
same on all of them, and f and g (layers.py) stand around the experts alone.  With sequence
parallelism a layer with experts first gathers the tokens of the other ranks.  Of the result a rank
keeps its own tokens.
"""

import numpy as np

from ... import autograd as ag
from ...autograd import Tensor
from ...backend import asarray_like
from ...comm import Communicator
from ...nn import MoE
from ...nn.moe import Experts
from ...nn.moe.layer import GroupedLinear
from ...nn.moe.rows import grouped_linear
from ..conjugate import gather_from, scatter_to
from .layers import TensorSplit


class RowGroupedLinear(GroupedLinear):
    """The layers of experts, cut by their inputs: the end of a pair."""

    split: TensorSplit

    def forward(self, x: Tensor, counts: tuple[int, ...]) -> Tensor:
        """This rank's columns of x (rows, in/p) → (rows, out), after the sum."""
        y = self.split.leave(grouped_linear(x, self.weight, None, counts))
        if not self.has_bias:
            return y
        experts = asarray_like(np.repeat(np.arange(len(counts)), counts), x.data)
        return y + ag.embedding(self.bias, experts)         # once, to the sum


def split_experts(experts: Experts, split: TensorSplit) -> None:
    """Cut every expert over the ranks of `split.tp`."""
    for linear in [experts.c_fc, experts.c_gate] if experts.is_gated else [experts.c_fc]:
        linear.around(split.around_columns, inside=True)
        split.shard(linear._parameters["weight"], 2)
        if linear.has_bias:
            split.shard(linear._parameters["bias"], 1)
    split.shard(experts.c_proj._parameters["weight"], 1)
    experts.c_proj = RowGroupedLinear.replacing(experts.c_proj, split=split)


def gather_tokens(layer: MoE, tp: Communicator) -> None:
    """Let a layer that gets this rank's tokens of each sequence (b, t/p, d) route all of them."""
    layer.around(lambda forward, x: scatter_to(forward(gather_from(x, tp, 1)), tp, 1), inside=True)
