"""Seconds that a GPU takes for an operation, by its shapes and the numbers of a cluster file.

    product        m, n from the result, k from the FLOPs that the meter counts
    attention      fused, or by way of the scores
    loss           bytes a logit
    Adam           bytes a parameter
    all others     the bytes that the meter counts

If the cluster file has a measured line for an operation, that line gives its time instead.  A view
takes no time.  The formulas and the file are those of `minipar plan`.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from ..autograd.meter import Meter
from ..backend import Array
from ..memory.remat.recompute import is_recomputing
from ..nn import GPTConfig
from ..plan.cluster import ClusterSpec
from ..plan.time.kernels import attention, loss, product
from .offloading import HostArray

PRODUCTS = ("Linear", "MatMul", "PackedLinear", "GroupedLinear")
GROUPED_WEIGHTS = ("GroupedLinear", "weights")  # with an axis more than the biases' gradients
TABLES = ("Embedding", "PartialEmbedding")      # they read some rows, not the whole table
LOSSES = ("CrossEntropy", "VocabularyCrossEntropy")


class Device:
    """A GPU of `cluster` that computes a part of `model`: 1 / tp of its heads and logits.

    `recomputes_attention`: attention keeps no probabilities, and its backward takes the time to
    compute them again.  The GPU has `experts` of each layer, which share the rows.
    """

    def __init__(self, cluster: ClusterSpec, model: GPTConfig, tp: int = 1,
                 recomputes_attention: bool = False, experts: int = 0):
        self.cluster, self.model, self.tp, self.experts = cluster, model, tp, experts
        self.recomputes_attention = recomputes_attention
        self.known: dict[tuple, float] = {}     # by operation and shapes

    def seconds(self, name: str, phase: str, flops: int, arrays: tuple[Array, ...]) -> float:
        """Seconds of an operation that read or wrote `arrays`, the last of them its result."""
        shapes = tuple([getattr(array, "shape", ()) for array in arrays])
        key = name, phase, flops, shapes
        if key not in self.known:
            self.known[key] = self._work_out(name, phase, flops, arrays)
        return self.known[key]

    def _work_out(self, name: str, phase: str, flops: int, arrays: tuple[Array, ...]) -> float:
        cluster, out = self.cluster, arrays[-1]
        if name in LOSSES:
            return 0.0                          # `loss_seconds` has it, for both directions
        num_bytes = sum(getattr(array, "nbytes", 0) for array in arrays)
        if f"{name} {phase}" in cluster.software.operations:
            call, per_flop, per_byte = cluster.software.operations[f"{name} {phase}"]
            return call + per_flop * flops + per_byte * num_bytes
        if phase == "optimizer":
            return out.size * cluster.software.adam_bytes / self._rate
        if name == "FusedAttention":
            both = attention(cluster, self.model, out.shape[0] * out.shape[1], self.tp)
            return both.forward if phase == "forward" else both.backward
        if name in PRODUCTS and flops and out.ndim > 1 + ((name, phase) == GROUPED_WEIGHTS):
            n, m = out.shape[-1], out.size // out.shape[-1]
            each = self.experts if name == "GroupedLinear" else 1
            return each * product(cluster, m / each, n, flops // (2 * m * n))
        if name in TABLES and phase == "forward":
            num_bytes = 2 * out.nbytes
        by_memory = num_bytes * cluster.software.unfused / self._rate
        return max(by_memory, flops / (cluster.rate * cluster.software.product))

    @cached_property
    def _rate(self) -> float:
        return self.cluster.bandwidth * self.cluster.software.stream

    def loss_seconds(self, rows: int) -> float:
        """Seconds of the loss of `rows` tokens, forward and backward."""
        return loss(self.cluster, self.model, rows, self.tp)


class DeviceMeter(Meter):
    """Tells `spend(label, seconds, flops)` what each operation takes on `device`."""

    def __init__(self, device: Device, spend: Callable[[str, float, int], None]):
        super().__init__()
        self.device, self.spend = device, spend

    def stop(self, token: object, name: str, phase: str, flops: int,
             arrays: tuple[Any, ...]) -> None:
        """Report an operation."""
        if flops or any(getattr(array, "nbytes", 0) for array in arrays):
            again = phase == "forward" and is_recomputing()
            if again and name == "FusedAttention" and self.device.recomputes_attention:
                return                      # its backward's seconds include it
            seconds = self.device.seconds(name, phase, flops, arrays)
            self.spend(f"{name} {'again' if again else phase}", seconds, flops)
            if moved := sum(array.nbytes for array in arrays if isinstance(array, HostArray)):
                self.spend("states host", 2 * moved / self.device.cluster.host, 0)
