"""Tensor parallelism: a pair of layers is cut so that only its two ends need a message.

            columns of A          rows of B
    x ──f──▶ x A₀ ─▶ gelu ─▶ y₀ ─▶ y₀ B₀ ──┐
     │                                     g = Σ ─▶ z = y B, on every rank
     └──f──▶ x A₁ ─▶ gelu ─▶ y₁ ─▶ y₁ B₁ ──┘

    z = gelu(x [A₀ A₁]) [B₀; B₁] = gelu(x A₀) B₀ + gelu(x A₁) B₁

f is `copy_to`: nothing forward, an all-reduce of dx backward, since every rank used x in its own
way.  g is `reduce_from`: an all-reduce forward, nothing backward.  Attention is such a pair as
well, its columns cut by heads.  So a transformer layer costs 2 all-reduces of b t d elements in
forward, and 2 in backward.
Shoeybi et al. 2019 (Megatron-LM), figure 3.
"""

from typing import Any

import numpy as np

from ... import autograd as ag
from ...autograd import Tensor
from ...comm import Communicator
from ...comm.collectives import chunk_bounds
from ...nn import Linear, Module, Parameter
from ...nn.gpt import Attention
from ..conjugate import copy_to, reduce_from
from ..errors import heads_do_not_divide_error, too_narrow_error

AXIS = "tp"             # of the mesh


class TensorSplit:
    """Values enter and leave a pair of layers that the ranks of `tp` share."""

    def __init__(self, tp: Communicator):
        self.tp = tp

    def enter(self, x: Tensor) -> Tensor:
        """Megatron's f, I → R: the same x, which each rank uses with its own weights.

        The letters are the types of conjugate.py.
        """
        return copy_to(x, self.tp)

    def leave(self, y: Tensor) -> Tensor:
        """Megatron's g, P → I: the sum of all ranks' y."""
        return reduce_from(y, self.tp)

    def shared(self, weight: Tensor) -> Tensor:
        """A replicated weight, used between the pairs; here all ranks use it alike.

        SequenceSplit overrides it: there each rank uses the weight for its own tokens.
        """
        return weight


class ColumnLinear(Linear):
    """A linear layer cut by its outputs: the beginning of a pair."""

    split: TensorSplit

    def forward(self, x: Tensor) -> Tensor:
        """x (…, in) → this rank's columns of x weight + bias (…, out/p)."""
        return ag.linear(self.split.enter(x), self.weight, self.bias if self.has_bias else None)


class RowLinear(Linear):
    """A linear layer cut by its inputs: the end of a pair."""

    split: TensorSplit

    def forward(self, x: Tensor) -> Tensor:
        """This rank's columns of x (…, in/p) → x weight + bias (…, out), after the sum."""
        # the bias is added once, to the sum
        y = self.split.leave(ag.linear(x, self.weight))
        return y + self.split.shared(self.bias) if self.has_bias else y


def retype(module: Module, kind: type, **attributes: Any) -> None:
    """Let `module` be a `kind` from now on: the same parameters under the same names."""
    module.__class__ = kind
    module.__dict__.update(attributes)


def shard_parameter(parameter: Parameter, dim: int, tp: Communicator,
                    order: tuple[int, ...] | None = None) -> None:
    """Reorder the last axis by `order`, if given, then keep this rank's chunk of axis `dim`.

    Raises ValueError for an axis of length 1, which has no pieces.
    """
    box, length = list(parameter.box), parameter.shape[dim]
    if length == 1 < tp.size:
        raise too_narrow_error(tp.size)
    box[dim] = chunk_bounds(length, tp.size)[tp.rank]
    parameter.shard(tuple(box), order)
    parameter.replicated = tuple(axis for axis in parameter.replicated if axis != AXIS)


def split_columns(linear: Linear, split: TensorSplit, order: tuple[int, ...] | None = None) -> None:
    """Cut a linear layer by its outputs, which are first brought into `order`."""
    retype(linear, ColumnLinear, split=split)
    own = linear._parameters            # the raw ones, before transforms
    shard_parameter(own["weight"], 1, split.tp, order)
    if linear.has_bias:
        shard_parameter(own["bias"], 0, split.tp, order)


def split_rows(linear: Linear, split: TensorSplit) -> None:
    """Cut a linear layer by its inputs; its bias stays whole."""
    retype(linear, RowLinear, split=split)
    shard_parameter(linear._parameters["weight"], 0, split.tp)


def split_attention(attention: Attention, split: TensorSplit) -> None:
    """Every rank gets some heads: their columns of q, k and v, and their rows of the projection.

    Raises ValueError if the heads, or those of keys and values, do not divide.
    """
    p, heads, kv_heads = split.tp.size, attention.num_heads, attention.num_kv_heads
    if heads % p or kv_heads % p:
        raise heads_do_not_divide_error(heads, kv_heads, p)
    width = attention.c_proj.weight.shape[0] // heads
    split_columns(attention.c_attn, split, by_rank(heads, kv_heads, width, p))
    split_rows(attention.c_proj, split)
    attention.num_heads, attention.num_kv_heads = heads // p, kv_heads // p


def by_rank(heads: int, kv_heads: int, width: int, num_ranks: int) -> tuple[int, ...]:
    """The columns of a fused [q | k | v] in the order q₀ k₀ v₀ q₁ k₁ v₁ … of the ranks' heads."""
    columns = np.arange((heads + 2 * kv_heads) * width)
    parts = np.split(columns, [heads * width, (heads + kv_heads) * width])
    return tuple(int(column) for rank in range(num_ranks) for part in parts
                 for column in np.split(part, num_ranks)[rank])
