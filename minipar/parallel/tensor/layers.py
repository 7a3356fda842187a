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

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ... import autograd as ag
from ...autograd import Tensor
from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import chunk_bounds
from ...nn import Dropout, Linear, Parameter
from ...nn.gpt import Attention
from ..conjugate import copy_to, reduce_from
from ..errors import heads_do_not_divide_error, too_narrow_error
from ..flats import gather_parameter
from .packed_weights import kind_like

AXIS = "tp"             # of the mesh


class TensorSplit:
    """How values enter and leave a pair of layers that the ranks of `tp` share."""

    ep: None = None         # no ranks with different experts

    def __init__(self, tp: Communicator):
        self.tp = tp

    def enter(self, x: Tensor) -> Tensor:
        """Megatron's f, I → R: the same x, which each rank uses with its own weights.

        The letters are the types of conjugate.py.
        """
        return copy_to(x, self.tp)

    def around_columns(self, forward: Callable, x: Tensor, *counts: Any) -> Tensor:
        """Around a layer that is cut by its outputs, the beginning of a pair: x enters."""
        return forward(self.enter(x), *counts)

    def leave(self, y: Tensor) -> Tensor:
        """Megatron's g, P → I: the sum of all ranks' y."""
        return reduce_from(y, self.tp)

    def shared(self, weight: Tensor) -> Tensor:
        """A replicated weight, used between the pairs; here all ranks use it alike.

        SequenceSplit overrides it: there each rank uses the weight for its own tokens.
        """
        return weight

    def shard(self, parameter: Parameter, dim: int, order: tuple[int, ...] | None = None) -> None:
        """Reorder the last axis by `order`, if given, then keep this rank's chunk of axis `dim`.

        Raises ValueError for an axis of length 1, which has no pieces.
        """
        box, length, p = list(parameter.box), parameter.shape[dim], self.tp.size
        if length == 1 < p:
            raise too_narrow_error(p)
        box[dim] = chunk_bounds(length, p)[self.tp.rank]
        parameter.shard(tuple(box), order, self)
        parameter.replicated = tuple(axis for axis in parameter.replicated if axis != AXIS)

    def gather(self, parameter: Parameter, values: Array) -> np.ndarray:
        """The global array; `values` are this rank's part.  Collective."""
        return gather_parameter(self.tp, parameter, values)


class RowLinear(Linear):
    """A linear layer cut by its inputs: the end of a pair."""

    split: TensorSplit

    def forward(self, x: Tensor) -> Tensor:
        """This rank's columns of x (…, in/p) → x weight + bias (…, out), after the sum."""
        # the bias is added once, to the sum
        y = self.split.leave(ag.linear(x, self.weight))
        return y + self.split.shared(self.bias) if self.has_bias else y


class PartialDropout(Dropout):
    """Dropout of a value that is cut along axis 1: this rank's part of the mask.

    The axis is cut by `chunk_bounds` of `total`, or in equal pieces.
    """

    tp: Communicator
    total: int | None

    def mask(self, x: Array, shape: tuple[int, ...], cuts: tuple[slice, ...] = ()) -> Array | None:
        """This rank's part of the mask, of this `shape`."""
        total = self.total or shape[0] * self.tp.size
        mine = slice(*chunk_bounds(total, self.tp.size)[self.tp.rank])
        return super().mask(x, (total, *shape[1:]), (mine, *cuts[1:]))


def split_columns(linear: Linear, split: TensorSplit, order: tuple[int, ...] | None = None,
                  around: Callable | None = None) -> Linear:
    """Cut a linear layer by its outputs: Megatron's ColumnParallelLinear.

    Returns the same layer.  The layer's outputs are first brought into `order`.  `around`, if
    given, is run around its calls instead of `split.around_columns`.
    """
    linear.around(around or split.around_columns, inside=True)
    own = linear._parameters            # the raw ones, before transforms
    split.shard(own["weight"], 1, order)
    if linear.has_bias:
        split.shard(own["bias"], 0, order)
    return linear


def split_rows(linear: Linear, split: TensorSplit) -> RowLinear:
    """A layer for the place of `linear`, cut by its inputs: Megatron's RowParallelLinear.

    Its bias stays whole.
    """
    split.shard(linear._parameters["weight"], 0)
    return kind_like(linear, RowLinear).replacing(linear, split=split)


def split_attention(attention: Attention, split: TensorSplit,
                    around: Callable | None = None) -> None:
    """Every rank gets some heads: their columns of q, k and v, and their rows of the projection.

    Raises ValueError if the heads, or the kv heads, do not divide.
    """
    p, heads, kv_heads = split.tp.size, attention.num_heads, attention.num_kv_heads
    if heads % p or kv_heads % p:
        raise heads_do_not_divide_error(heads, kv_heads, p)
    width = attention.c_proj._parameters["weight"].shape[0] // heads
    split_columns(attention.c_attn, split, by_rank(heads, kv_heads, width, p), around)
    attention.c_proj = split_rows(attention.c_proj, split)
    attention.num_heads, attention.num_kv_heads = heads // p, kv_heads // p


@lru_cache(64)
def by_rank(heads: int, kv_heads: int, width: int, num_ranks: int) -> tuple[int, ...]:
    """The columns of a fused [q | k | v] in the order q₀ k₀ v₀ q₁ k₁ v₁ … of the ranks' heads."""
    columns = np.arange((heads + 2 * kv_heads) * width)
    parts = np.split(columns, [heads * width, (heads + kv_heads) * width])
    return tuple(int(column) for rank in range(num_ranks) for part in parts
                 for column in np.split(part, num_ranks)[rank])
