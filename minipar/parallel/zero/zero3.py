"""ZeRO-3 as a strategy: FSDP whose every weight is a unit of its own.

Every weight is gathered by itself when it is used, for each microbatch in forward and again in
backward, and its gradient is reduce-scattered.  So a rank sends at most 3mΨ(p-1)/p elements for m
microbatches.  `zero3_by_autograd.py` is the specification; `fsdp.py` gathers many weights at once,
ahead of their use.  Rajbhandari et al. 2020, section 5.3.
"""

from typing import Any

from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ...nn import Module, Parameter
from .fsdp import FullyShardedDataParallel


class ZeRO3(FullyShardedDataParallel):
    """Everything is sharded; every weight is gathered by itself, and none ahead."""

    uses_two_at_once = True         # a weight and its bias

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, **options: Any):
        super().__init__(model, ranks, prefetch=False, **options)

    def unit_keys(self) -> dict[Parameter, int]:
        """A number of its own for each parameter."""
        return {parameter: i for i, parameter in enumerate(self.users)}
