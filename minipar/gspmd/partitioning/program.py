"""The local program: what every rank runs, as data that can be read, drawn and executed.

    Local         a rank's piece of a value, in one layout
    Instruction   an operation on pieces, or a collective

It is the same program on every rank; only the indices of a rank's pieces differ.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...autograd.ops.movement import GetItem
from ...autograd.ops.reductions import Max
from ..graph import Graph, Operation, Value
from ..propagate import Shardings
from ..spec import Axes, all_axes, local_shape, num_pieces
from .reshard import ShardedLayout, ShardMove

Cut = dict[str, Axes]           # the axes of each factor of an operation


@dataclass(eq=False)
class Local:
    """A rank's piece of a value, in one layout."""

    value: Value
    layout: ShardedLayout
    mesh: Mapping[str, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the padded piece."""
        return local_shape(self.value.shape, self.layout.dims, self.mesh)

    @property
    def nbytes(self) -> int:
        """The bytes of the padded piece."""
        return math.prod(self.shape) * self.value.dtype.itemsize

    @property
    def mean_bytes(self) -> float:
        """The bytes of a piece without padding, the mean over the ranks."""
        whole = math.prod(self.value.shape) * self.value.dtype.itemsize
        return whole / num_pieces(all_axes(self.layout.dims), self.mesh)


@dataclass(eq=False)
class Instruction:
    """One step of the local program: an operation on pieces, or a collective.

    `kind` is "compute", "add bias", "copy", "all-gather", "gather", or another kind of ShardMove.
    A copy is an identity whose gradient is summed over `axes`.  The gradient of an all-gather is
    reduce-scattered, that of a gather is sliced.
    """

    kind: str
    inputs: list[Any]
    result: Local
    axes: Axes = ()
    operation: Operation | None = None
    cut: Cut = field(default_factory=dict)
    move: ShardMove | None = None
    inner_bytes: float = 0.0        # of messages within the operation

    @property
    def num_bytes(self) -> float:
        """The bytes that a rank sends in forward, the mean over the ranks."""
        return self.move.num_bytes if self.move else self.inner_bytes

    @property
    def gradient_bytes(self) -> float:
        """The bytes that a rank sends in backward, if the value needs a gradient."""
        if not isinstance(self.inputs[0], Local):
            return 0.0
        p = num_pieces(self.axes, self.result.mesh)
        if self.kind == "copy":
            return 2 * self.result.nbytes * (p - 1) / p
        if self.kind in ("slice", "reduce-scatter"):
            return (p - 1) * self.result.nbytes
        if self.operation is not None and self.operation.function in (Max, GetItem):
            return self.inner_bytes         # the count of maxima, or rows sent back
        return self.num_bytes if self.kind in ("all-gather", "all-to-all", "permute") else 0.0


@dataclass
class LocalProgram:
    """The instructions that every rank runs, from pieces of inputs to pieces of outputs."""

    graph: Graph
    shardings: Shardings
    instructions: list[Instruction]
    inputs: dict[str, Local]
    constants: list[Local]
    outputs: list[Local]
    homes: dict[Value, Local]           # where each value lies, once it is summed

    @property
    def collectives(self) -> list[Instruction]:
        """The instructions that send messages in forward."""
        return [each for each in self.instructions if each.num_bytes]

    @property
    def num_bytes(self) -> float:
        """The bytes that a rank sends in forward, the mean over the ranks."""
        return sum(each.num_bytes for each in self.instructions)

    @property
    def gradient_bytes(self) -> float:
        """The bytes that a rank sends in backward, the mean over the ranks."""
        return sum(each.gradient_bytes for each in self.instructions
                   if each.result.value.needs_grad)
