"""Communication hooks: what is sent of a bucket of gradients, in fewer bytes than it has.

    DistributedDataParallel(model, comm, reduce=compressed(BFLOAT16))

A hook is the `reduce` of DistributedDataParallel, which sums one bucket over the ranks.
"""

from ...number_formats import Format
from ..wire import Narrow
from .ddp import Reduction


def compressed(fmt: Format) -> Reduction:
    """A `reduce` for DistributedDataParallel that sends and sums codes of this format."""
    return Narrow(fmt).all_reduce
