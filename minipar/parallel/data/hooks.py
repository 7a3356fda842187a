"""Communication hooks: what is sent of a bucket of gradients, in fewer bytes than it has.

    DistributedDataParallel(model, comm, comm_hook=compress_hook(BFLOAT16))

A hook is the `comm_hook` of DistributedDataParallel, which sums one bucket over the ranks.
"""

from ...number_formats import Format
from ..wire import LowPrecisionWire
from .ddp import Reduction


def compress_hook(fmt: Format) -> Reduction:
    """A `comm_hook` for DistributedDataParallel that sends and sums codes of this format."""
    return LowPrecisionWire(fmt).all_reduce
