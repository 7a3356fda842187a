"""Communication hooks: what is sent of a bucket of gradients, in fewer bytes than it has.

    DistributedDataParallel(model, comm, reduce=compressed(BFLOAT16))

The sum is rounded in every round of the ring, so gradients are no longer those of one process: to a
relative error of about p · 2⁻⁸ in bfloat16, p · 2⁻¹¹ in float16, whose sums overflow above 65504.
(Nothing is divided by the number of ranks here: the loss was divided before.)
"""

from ..backend import Array
from ..comm import Communicator
from ..comm.collectives import all_reduce
from ..formats import Format
from .ddp import Reduction


def compressed(fmt: Format) -> Reduction:
    """A `reduce` for DistributedDataParallel that sends and sums codes of this format."""
    def reduce(comm: Communicator, flat: Array) -> Array:
        codes = fmt.encode(flat)
        all_reduce(comm, codes, op=fmt.add, algorithm="ring", out=codes)
        flat[...] = fmt.decode(codes)
        return flat
    return reduce
