"""The slab of a pipeline's rank: its own parameters, and where all others are.

    rank 0   [ wpe | h.0 … h.3  ]  [ wte ]      the first slab holds the rank's own parameters,
    rank 1   [ h.4 … h.7 | ln_f ]  [ wte ]      a second slab those that ranks share

The gradient norm counts a shared slab once, on the first rank that has it.
"""

from collections.abc import Sequence
from typing import Protocol

from ...backend import Array
from ...comm import Communicator
from ...nn import Parameter
from ...nn.slab import FlatBuffer, Segment
from ..state import StageSlabState

SlabLayout = Sequence[tuple[Segment, Parameter]]      # of one rank


class StageBuffer(FlatBuffer, Protocol):
    """A rank's parameters of its stages, and their gradients: a slab, or the shards of one."""

    @property
    def has_grad(self) -> bool:
        """True after a backward, until `zero_grad`."""


class StageSlab(StageSlabState):
    """A slab with the parameters of layouts[r], on rank r of `pp`; every rank knows all layouts.

    `is_copy`: another rank counts it in norms.  If `tp` is given, each parameter is this rank's box
    of the global one, and the ranks of `tp` have the other boxes.  The same holds for `ep`, whose
    ranks have other experts.  A norm is summed over `comm`: `pp`, unless the caller sets more axes.
    """

    def __init__(self, layouts: Sequence[SlabLayout], is_copy: bool, like: Array, pp: Communicator,
                 tp: Communicator | None = None, ep: Communicator | None = None):
        super().__init__([(segment.name, parameter) for segment, parameter in layouts[pp.rank]],
                         like)
        self.is_copy, self.pp, self.tp, self.ep, self.comm = is_copy, pp, tp, ep, pp
        self.segments_of = [[segment for segment, _ in layout] for layout in layouts]    # by rank

    @property
    def has_grad(self) -> bool:
        """True after a backward, until `zero_grad`."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def drop(self) -> None:
        """Free the arrays, which another object keeps in shards; the segments stay."""
        self.drop_grad()
        self.data, self._views = None, []
