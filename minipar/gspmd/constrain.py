"""constrain: an annotation within the program.

    y = constrain(x, P("dp", "tp"))         the same numbers; a partitioned program cuts them so

JAX calls it jax.lax.with_sharding_constraint.
"""

from ..autograd import Function, Tensor
from .spec import PartitionSpec


class Constrain(Function):
    """The array itself, cut as `spec` says where the program is partitioned;  dx = g."""

    metered = False

    @staticmethod
    def forward(ctx, x, spec):
        return x[...]               # another array object: a value of its own

    @staticmethod
    def backward(ctx, g):
        return [lambda: g]


def constrain(x: Tensor, spec: PartitionSpec) -> Tensor:
    """x, cut along the axes of `spec` where the program is partitioned; otherwise a view of x."""
    return Constrain.apply(x, spec=spec)
