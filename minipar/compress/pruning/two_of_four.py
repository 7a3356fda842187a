"""2:4 sparsity: of every 4 neighbouring inputs of an output, 2 weights are kept.

    weights     .3 −2 .1 .9 │ 1. .2 −.4 .1        by magnitude:
    kept         ·  −2 ·  .9 │ 1. ·  −.4 ·        values −2 .9 1. −.4, places 1 3 0 2 in 2 bits each

Half the weights go, in a pattern that is regular enough for hardware.  PyTorch calls it
semi-structured.  Mishra et al. 2021, Accelerating sparse deep neural networks.
"""

import numpy as np

from ...autograd import Tensor
from ...backend import to_host
from ...nn import Linear, Module
from ...number_formats import pack, unpack
from .sparse import INDEX, GatherMatmul, bias_of

PLACE_BITS = 2          # for one of 4 places


def n_of_m(scores: np.ndarray, n: int = 2, m: int = 4) -> np.ndarray:
    """Keep n of every m neighbours along the inputs: scores (in, out) → mask (in, out).

    Among equal scores the first is dropped first.  Raises ValueError unless m divides `in`.
    """
    num_in, num_out = scores.shape
    if not 0 < n < m or num_in % m:
        raise ValueError(f"{n} of {m} needs a multiple of {m} inputs, not {num_in}: choose other "
                         "sizes, or another pattern" if 0 < n < m else
                         f"{n} of {m} is no pattern: keep fewer than there are, and at least one")
    order = np.argsort(scores.reshape(num_in // m, m, num_out), axis=1, kind="stable")
    mask = np.ones((num_in // m, m, num_out), bool)
    np.put_along_axis(mask, order[:, :m - n], False, axis=1)
    return mask.reshape(num_in, num_out)


class TwoOfFourLinear(Module):
    """A linear layer that stores 2 of every 4 weights of each output: values, and 2-bit places.

    Raises ValueError for a weight with more than 2 nonzero values in 4.
    """

    def __init__(self, layer: Linear):
        super().__init__()
        weight = to_host(layer.weight.data)
        kept = n_of_m(np.abs(weight))
        if np.any(weight[~kept]):
            raise ValueError("a weight keeps more than 2 of 4: prune it with n_of_m first")
        num_in, num_out = weight.shape
        groups = kept.reshape(num_in // 4, 4, num_out)
        places = np.argsort(~groups, axis=1, kind="stable")[:, :2]          # (in/4, 2, out)
        self.values = np.take_along_axis(weight.reshape(groups.shape), places, 1
                                         ).reshape(num_in // 2, num_out)
        self.starts = np.arange(num_out + 1) * (num_in // 2)
        self.packed = pack(places.astype(np.uint8).ravel(), PLACE_BITS)
        self.bias = bias_of(layer)
        self.rows = self.unpacked()

    def unpacked(self) -> np.ndarray:
        """The input of each value, from its place: (in/2, out)."""
        num_pairs, num_out = self.values.shape[0] // 2, self.values.shape[1]
        places = unpack(self.packed, PLACE_BITS, self.values.size).reshape(num_pairs, 2, num_out)
        start = 4 * np.arange(num_pairs)[:, None, None]
        return (start + places).reshape(self.values.shape).astype(INDEX)

    @property
    def nbytes(self) -> int:
        """The bytes of the weight as stored."""
        return self.values.nbytes + self.packed.nbytes

    def forward(self, x: Tensor) -> Tensor:
        return GatherMatmul.apply(x, self.values.T.ravel(), self.rows.T.ravel(), self.starts,
                                  self.bias)
