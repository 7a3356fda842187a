"""AdamW in mixed precision; and the memory of the host, where `--offload` keeps arrays.

    optimizer       its states come in for the step and go back, while the GPU waits
    activations     are copied out and in beside computation (memory/offload/activations.py)

As in large frameworks, states are float32 beside 16-bit weights.  Each GPU has its own link to the
host; each direction has the rate `host` of the cluster file.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend import Array, allocating_with, is_host, record_allocation
from ..backend.shape_array import ShapeArray
from ..comm.simulated.copy_stream import COPY_IN, COPY_OUT, Copy, SimulatedCopyStream
from ..comm.simulated.links import Link
from ..memory.ledger import OFFLOADED
from ..memory.offload.activations import OffloadActivations
from ..nn import FlatBuffer, Module
from ..optim import AdamW
from .folded import FoldedCommunicator

OFFLOADS = ("activations", "optimizer")


class HostArray(ShapeArray):
    """An array without numbers, in the memory of the host."""


class MixedAdamW(AdamW):
    """AdamW that keeps a float32 copy of the weights, too: 12 bytes a parameter."""

    state_names = ("first_moment", "second_moment", "master")

    def compute_step(self, g, scratch, m, v, master):
        """The step of AdamW."""
        return super().compute_step(g, scratch, m, v)


def make_adamw(slabs: Sequence[FlatBuffer], dtype: Any, offloaded: bool = False) -> AdamW:
    """AdamW for weights of `dtype`, with float32 states: two, or three beside 16-bit weights.

    The states are in the memory of the host if `offloaded`.
    """
    kind, array = (OFFLOADED, HostArray) if offloaded else ("optimizer states", ShapeArray)

    def make(like: Array, shape: Any) -> Array:
        return record_allocation(kind, array(like.shape if shape is None else shape, np.float32))
    with allocating_with({"optimizer states": make}):
        return AdamW(slabs) if np.dtype(dtype).itemsize == 4 else MixedAdamW(slabs)


class HostStream(SimulatedCopyStream):
    """Copies in one direction.  The log has the seconds that the rank waits for them."""

    comm: FoldedCommunicator

    def wait(self, copy: Copy) -> None:
        """Let time pass until `copy` is done."""
        before = self.comm.now()
        super().wait(copy)
        self.comm.log.waited(f"{self.name} over host", before, before, self.comm.now())


class OffloadShapes(OffloadActivations):
    """Offloads arrays without numbers only.  Arrays with numbers, such as ids, stay."""

    def should_offload(self, array: Array) -> bool:
        """True if this array is to be offloaded."""
        return not is_host(array) and super().should_offload(array)


def offload_activations(comm: FoldedCommunicator, model: Module) -> OffloadActivations:
    """The object that moves the activations of `model` to the host, over the link of a rank."""
    link = Link(0.0, comm.cluster.fabric.cluster.host)
    return OffloadShapes(HostArray, model.parameters(),
                         *[HostStream(comm, name, link) for name in (COPY_OUT, COPY_IN)])
