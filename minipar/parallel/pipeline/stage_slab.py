"""The slab of a pipeline's rank: its own parameters, and where all others are.

    rank 0   [ wpe | h.0 … h.3  ]  [ wte ]      the first slab holds the rank's own parameters,
    rank 1   [ h.4 … h.7 | ln_f ]  [ wte ]      a second slab those that ranks share

The gradient norm counts a shared slab once, on the first rank that has it.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from ...backend import Array, to_host
from ...comm import Communicator
from ...comm.collectives import all_gather
from ...nn import Parameter, Slab
from ...nn.slab import Segment
from ..flats import end_to_end, gather_parameter

SlabLayout = Sequence[tuple[Segment, Parameter]]      # of one rank


class StageSlab(Slab):
    """A slab with the parameters of layouts[r] on rank r of `pp`, whose values are in `slab`.

    Every rank knows all layouts.  `is_copy`: another rank counts it in norms.  If `tp` is not None,
    each parameter is this rank's box of the global one, and the ranks of `tp` have the other boxes.
    The same holds for `ep`, whose ranks have other experts.  A norm is summed over `comm`.
    """

    def __init__(self, slab: Slab, layouts: Sequence[SlabLayout], pp: Communicator,
                 is_copy: bool = False):
        if pp.size == 1:                # one stage: these are the arrays of `slab`, not copies
            self.__dict__.update(vars(slab))
        else:
            super().__init__([(segment.name, parameter)
                              for segment, parameter in layouts[pp.rank]], slab.data)
        self.pp, self.tp, self.ep, self.is_copy = pp, slab.comm, slab.ep, is_copy
        self.comm = pp
        self.segments_of = [[segment for segment, _ in layout] for layout in layouts]    # by rank

    def named(self, values: Array) -> dict[str, np.ndarray]:
        """The `values` of all ranks, an array as long as `data`, by parameter.  Collective."""
        counts = [sum(s.stop - s.start for s in segments) for segments in self.segments_of]
        with self.pp.labelled("state"):
            flat = to_host(all_gather(self.pp, values, counts=counts))
        found = {}
        for segment in end_to_end([*chain(*self.segments_of)]):
            piece = np.array(flat[segment.start:segment.stop])
            if self.tp is None and self.ep is None:
                found[segment.name] = piece.reshape(segment.shape)
            else:
                found[segment.name] = gather_parameter(self.tp, segment, piece, self.ep)
        return found
