"""Rounding as an operation: numbers of a narrow format, kept in float32 for the arithmetic.

    forward    y = the number of the format `there` that is nearest to x
    backward   dx = the number of the format `back` that is nearest to dy

The derivative of a staircase is 0 or infinite.  So the gradient passes as if through the identity
("straight through", Bengio et al. 2013, arXiv 1308.3432), and is rounded in its turn.  A gradient
below half of the smallest number of `back` becomes 0; one above its largest number overflows as the
format says.
"""

from ...number_formats import Format
from ..function import Function
from ..tensor import Node, Tensor


class Round(Function):
    """y = x rounded to `there`;  dx = g rounded to `back`.  x may be codes of `there`."""

    metered = False     # part of the operation before it

    def forward(ctx, x, there, back):
        ctx.formats = there, back
        return there.round(x) if x.dtype.kind == "f" else there.decode(x)

    def backward(ctx, g):
        _, back = ctx.formats
        return [lambda: back.round(g)]


def round_to(x: Tensor, there: Format, back: Format) -> Tensor:
    """x rounded to `there`, its gradient to `back`; x itself if it was made so."""
    node = x.grad_target
    if isinstance(node, Node) and node.function is Round and node.ctx.formats == (there, back):
        return x
    return Round.apply(x, there=there, back=back)
