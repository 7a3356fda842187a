"""The cost of a step on a machine: seconds of arithmetic and messages, and bytes of memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...autograd.ops.movement import Reshape, Transpose
from ..constrain import Constrain
from ..graph import Operation
from ..partitioning.program import Instruction, LocalProgram
from ..spec import Axes, all_axes, num_pieces

COPIES = 4          # of each parameter: itself, its gradient, and two of AdamW


@dataclass(frozen=True)
class Machine:
    """Speeds of a device and its links.

    A device computes `flops` a second.  A collective takes `latency` seconds, and the time of its
    bytes.  `bandwidth` has the bytes a second that a rank sends along each axis;
    `default_bandwidth` is for axes that it does not name.
    """

    flops: float = 1e14
    latency: float = 5e-6
    bandwidth: Mapping[str, float] = field(default_factory=dict)
    default_bandwidth: float = 1e11

    def seconds(self, num_bytes: float, axes: Axes) -> float:
        """The time of a collective in which a rank sends `num_bytes`."""
        if not num_bytes:
            return 0.0
        slowest = min(self.bandwidth.get(axis, self.default_bandwidth) for axis in axes)
        return self.latency + num_bytes / slowest


def num_flops(operation: Operation) -> float:
    """About the FLOPs of an operation, forward and backward: 2 for each multiply-add of a product.

    Attention has two products; other operations cost 1 for each element of their largest array.
    Backward costs twice as much as forward.
    """
    size = float(math.prod(operation.result.shape))
    name = operation.function.__name__
    if name in ("Linear", "MatMul"):
        inner = operation.inputs[0].shape[-1]
        return 6 * size * inner
    if name == "FusedAttention":
        return 12 * size * operation.inputs[0].shape[1]
    return 3 * max(size, *[float(math.prod(value.shape)) for value in operation.values])


def program_seconds(program: LocalProgram, machine: Machine) -> float:
    """The seconds of forward and backward of a local program, if nothing overlaps."""
    total = 0.0
    for each in program.instructions:
        if each.kind == "compute" and each.operation is not None:
            pieces = num_pieces(all_axes(each.cut.values()), each.result.mesh)
            total += num_flops(each.operation) / pieces / machine.flops
        total += instruction_seconds(each, machine)
    return total


def instruction_seconds(instruction: Instruction, machine: Machine) -> float:
    """The seconds of an instruction's messages, and of those of its gradient."""
    seconds = machine.seconds(instruction.num_bytes, instruction.axes)
    if instruction.result.value.needs_grad:
        seconds += machine.seconds(instruction.gradient_bytes, instruction.axes)
    return seconds


def memory_bytes(program: LocalProgram) -> float:
    """About the bytes that a rank keeps: parameters with gradients and states, and all results."""
    inputs = [local.nbytes * (COPIES if local.value.is_parameter else 1)
              for local in program.inputs.values()]
    return sum(inputs) + sum(program.homes[each.result].nbytes
                             for each in program.graph.operations if not is_view(each))


def is_view(operation: Operation) -> bool:
    """True if the result has no memory of its own."""
    return operation.function in (Reshape, Transpose, Constrain)
