"""The slab of a pipeline's rank: its own parameters, and where all others are.

    rank 0   [ wpe | h.0 … h.3  ]  [ wte ]      the first slab holds the rank's own parameters,
    rank 1   [ h.4 … h.7 | ln_f ]  [ wte ]      a second slab those that ranks share

The gradient norm counts a shared slab once, on the first rank that has it.
"""

from collections.abc import Sequence
from typing import Protocol

from ...backend import Array
from ...comm import Communicator
from ...nn import Parameter, Slab
from ...nn.slab import FlatBuffer, Segment
from .. import state

Row = Sequence[tuple[Segment, Parameter]]


class StageBuffer(FlatBuffer, Protocol):
    """A rank's parameters of its stages, and their gradients: a slab, or the shards of one."""

    @property
    def has_grad(self) -> bool:
        """True after a backward, until `zero_grad`."""


class StageSlab(Slab):
    """A slab of this rank's row of `layout`, which has a row for each rank of `pp`.

    `is_copy`: another rank counts it in norms.  If `tp` is given, each parameter is this rank's box
    of the global one, and the ranks of `tp` have the other boxes.  A norm is summed over `comm`:
    `pp`, unless the caller sets more axes.
    """

    named = state.named_stage_slab

    def __init__(self, layout: Sequence[Row], is_copy: bool, like: Array, pp: Communicator,
                 tp: Communicator | None = None):
        super().__init__([(segment.name, parameter) for segment, parameter in layout[pp.rank]],
                         like)
        self.is_copy, self.pp, self.tp, self.comm = is_copy, pp, tp, pp
        self.layout = [[segment for segment, _ in row] for row in layout]

    @property
    def has_grad(self) -> bool:
        """True after a backward, until `zero_grad`."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def drop(self) -> None:
        """Free the arrays, which another object keeps in shards; the layout stays."""
        self.drop_grad()
        self.data, self._views = None, []
