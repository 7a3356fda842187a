"""The memory of the host, and the link to it: what `--offload` keeps there.

    optimizer       its states come in for the step and go back, which nothing hides
    activations     are copied out and in beside computation (memory/offload/activations.py)

Each GPU has a link of its own; each direction has the rate `host` of the cluster file.
"""

from typing import Any

from ..backend import Array, is_host, record_allocation
from ..backend.shape_array import ShapeArray
from ..comm.simulated.copy_stream import COPY_IN, COPY_OUT, Copy, SimulatedCopyStream
from ..comm.simulated.links import Link
from ..memory.ledger import OFFLOADED
from ..memory.offload.activations import OffloadActivations
from ..nn import Module
from .folded import FoldedCommunicator

OFFLOADS = ("activations", "optimizer")


class HostArray(ShapeArray):
    """An array without numbers, in the memory of the host."""


def host_array(shape: Any, dtype: Any) -> Array:
    """A new one.  A ledger counts it apart from the memory of the GPU."""
    return record_allocation(OFFLOADED, HostArray(shape, dtype))


class HostStream(SimulatedCopyStream):
    """Copies in one direction.  The log has the seconds that the rank waits for them."""

    comm: FoldedCommunicator

    def wait(self, copy: Copy) -> None:
        """Let time pass until `copy` is done."""
        before = self.comm.now()
        super().wait(copy)
        self.comm.log.waited(f"{self.name} over host", before, before, self.comm.now())


class OffloadShapes(OffloadActivations):
    """It offloads arrays without numbers.  The program itself needs those with numbers: ids."""

    def should_offload(self, array: Array) -> bool:
        """True if this array is to be offloaded."""
        return not is_host(array) and super().should_offload(array)


def offload_activations(comm: FoldedCommunicator, model: Module) -> OffloadActivations:
    """What moves the activations of `model` over the link of a rank."""
    link = Link(0.0, comm.cluster.fabric.cluster.host)
    return OffloadShapes(HostArray, model.parameters(),
                         *[HostStream(comm, name, link) for name in (COPY_OUT, COPY_IN)])
