"""ZeRO-3 as a strategy: parameters, gradients and optimizer states are sharded.

Every weight is gathered by itself when it is used (`zero3_by_autograd.py`), for each microbatch in
forward and again in backward, and its gradient is reduce-scattered.  So a rank sends 3mΨ(p-1)/p
elements for m microbatches.
`fsdp.py` gathers many weights at once, ahead of their use.  Rajbhandari et al. 2020, section 5.3.
"""

from contextlib import AbstractContextManager
from functools import partial

from ...autograd import Tensor
from ...comm import Communicator
from ...nn import Module
from ..conjugate import all_gather
from ..low_precision_wire import LowPrecisionWire, all_gather_and_reduce_scatter
from ..shards import check_not_sharded
from ..strategy import Strategy
from ..wire import UNCOMPRESSED, Wire
from .zero3_by_autograd import ShardedParameters


class ZeRO3(Strategy):
    """Everything is sharded; every weight is gathered by itself.

    With a LowPrecisionWire gradients are summed in its format.  Raises ValueError for other wires.
    """

    can_accumulate = False

    def __init__(self, model: Module, comm: Communicator, wire: Wire = UNCOMPRESSED):
        check_not_sharded(model.named_parameters())
        super().__init__(model, comm, wire)
        gather = all_gather
        if isinstance(wire, LowPrecisionWire):
            gather = partial(_gather_weight, wire=wire)
        elif wire is not UNCOMPRESSED:
            raise ValueError("ZeRO-3 sums gradients in its graph, one use of a weight at a time, "
                             f"which a {type(wire).__name__} cannot do: choose FSDP")
        self.sharded = ShardedParameters(model, comm, gather)
        self.slabs = self.sharded.slabs

    def forward_context(self) -> AbstractContextManager:
        """Context for computing a loss.

        Raises RuntimeError at its end unless all ranks used the same weights.
        """
        return self.sharded.forward_context()


def _gather_weight(leaf: Tensor, comm: Communicator, total: int, wire: LowPrecisionWire) -> Tensor:
    """The whole weight, uncompressed; its gradient is summed in the format of the wire."""
    operation, _ = all_gather_and_reduce_scatter(wire.fmt, gathers_codes=False)
    return operation.apply(leaf, comm=comm, dim=0, total=total)
