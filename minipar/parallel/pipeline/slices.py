"""Slices of a sequence of tokens, and the attention of a slice to the slices before it.

    keys          0 0 0 1 1 2          slice 2 attends to the keys and values of slices 0, 1 and 2:
    queries                 2          its own, and leaves that stand for the others

Backward through slice 2 adds up in these leaves the gradients of the earlier slices' keys and
values.  The backward of an earlier slice then begins with the gradients in its leaves.
"""

import numpy as np

from ...autograd import Tensor, concatenate
from ...autograd.ops.attention import attention_by_autograd
from ...nn import GPTConfig
from ...nn.gpt import CoreAttention, too_long_error
from .cut_points import cut_evenly


def slice_bounds(time: int, num_slices: int, config: GPTConfig) -> list[int]:
    """The bounds of slices of `time` tokens, so that the costliest is as cheap as possible.

    A token at position t costs 6d + t for width d.  Raises ValueError for too many tokens, or too
    few.
    """
    if time > config.context:
        raise too_long_error(time, config.context)
    if time < num_slices:
        raise ValueError(f"a sequence of {time} tokens has no {num_slices} slices: take fewer, or "
                         "longer sequences")
    return [0, *cut_evenly([6 * config.width + t for t in range(time)], num_slices), time]


class Slices:
    """What slices have left on a stage for later slices; `now` is the number of the one at work.

    `places[k]` has the number of the first slice of slice k's sequence, and the position at which k
    starts.  `kept[k]` has k's keys and values by the attention of each layer, and a leaf that
    stands for them in the graphs of later slices.
    """

    def __init__(self) -> None:
        self.places, self.now = [(0, 0)], 0
        self.kept: dict[int, dict[CoreAttention, tuple[Tensor, Tensor]]] = {}

    def positions(self, time: int) -> np.ndarray:
        """The positions (t,) of the slice's tokens."""
        return self.places[self.now][1] + np.arange(time)


class SlicedAttention(CoreAttention):
    """Attention of a slice's queries to the keys and values of its sequence up to itself."""

    slices: Slices

    def attend(self, qkv: Tensor, heads: int, kv_heads: int) -> Tensor:
        """The means of values for this slice, whose keys and values are kept."""
        (rows, time, _), slices = qkv.shape, self.slices
        each = qkv.reshape(rows, time, heads + 2 * kv_heads, -1).transpose(0, 2, 1, 3)
        own = each[:, heads:]                               # keys and values (b, 2 kv, t, n)
        past = [slices.kept[k][self][1] for k in range(slices.places[slices.now][0], slices.now)]
        if slices.now in slices.kept:
            slices.kept[slices.now][self] = own, Tensor(own.data, requires_grad=True)
        both = concatenate([*past, own], axis=2)
        out = attention_by_autograd(each[:, :heads], both[:, :kv_heads], both[:, kv_heads:],
                                    causal=True)
        return out.transpose(0, 2, 1, 3).reshape(rows, time, -1)
