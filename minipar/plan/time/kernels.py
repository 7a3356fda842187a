"""Seconds of what one GPU computes: products, attention, element-wise kernels.

    product      2 m n k FLOPs at a share of the peak, slower for short sums, in waves of tiles;
                 never faster than its operands come from memory
    attention    fused: the causal half of the pairs, forward, and 2.5 times as much backward
                 (Dao 2023); otherwise two batched products, and passes over scores in memory
    element-wise the bytes that they move
"""

import math
from typing import NamedTuple

from ...nn import GPTConfig
from ..cluster import ClusterSpec
from ..models import active_ratio, head_width, mlp_matrices, mlp_width

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.97), (128, 64, 0.85))    # and their rate
SHORT = 128             # a sum over k numbers reaches k / (k + SHORT) of the rate


class Seconds(NamedTuple):
    """Seconds of a forward and of its backward."""

    forward: float
    backward: float

    def plus(self, other: "Seconds") -> "Seconds":
        """The sum with `other`, forward and backward by themselves."""
        return Seconds(self.forward + other.forward, self.backward + other.backward)

    @property
    def both(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


def stream(cluster: ClusterSpec) -> float:
    """Bytes per second of element-wise kernels."""
    return cluster.bandwidth * cluster.software.stream


def product(cluster: ClusterSpec, m: float, n: float, k: float) -> float:
    """Seconds of (m, k) @ (k, n) in 16 bits."""
    software = cluster.software
    rate = cluster.rate * software.product * k / (k + SHORT)
    if software.waves:
        rate *= full_waves(cluster.units, m, n)
    return max(2 * m * n * k / rate,
               2 * (m * n + m * k + n * k) / stream(cluster)) + software.kernel


def full_waves(units: int, m: float, n: float) -> float:
    """The share of the rate that is left where the last wave of tiles is not full."""
    best = 0.0
    for rows, columns, rate in TILES:
        waves = math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / units)
        best = max(best, rate * min(1.0, m * n / (waves * units * rows * columns)))
    return best


def linear(cluster: ClusterSpec, rows: float, n: float, k: float) -> Seconds:
    """Seconds of x (rows, k) @ w (k, n), and of both gradients."""
    return Seconds(product(cluster, rows, n, k),
                   product(cluster, rows, k, n) + product(cluster, k, n, rows))


def attention(cluster: ClusterSpec, model: GPTConfig, rows: float, tp: int) -> Seconds:
    """Seconds of one layer's softmax(q kᵀ) v for `rows` tokens, on one of tp ranks."""
    software, heads = cluster.software, model.num_heads / tp
    flops = 2 * rows * model.context * heads * head_width(model)        # the causal half of 4
    if software.flash is not None:
        forward, backward = software.flash
        return Seconds(flops / (cluster.rate * forward),
                       2.5 * flops / (cluster.rate * backward))
    memory, scores = stream(cluster), rows * model.context * heads
    once = max(flops / (cluster.rate * software.product * 0.7), 2 * scores / memory)
    return Seconds(2 * once + 9 * scores / memory,      # softmax and dropout: 4 + 5 bytes, 6 + 5
                   4 * once + 11 * scores / memory)


def elementwise(cluster: ClusterSpec, model: GPTConfig, rows: float, tp: int, sp: bool) -> Seconds:
    """Seconds of one layer's norms, dropout, residuals and activations.

    The forward moves these bytes of a token, for each width.  Norms and residuals: 2 (2 + 2) +
    2 (2 + 2 + 2 + 1), which tp cuts only with sequence parallelism.  q, k, v: 12.  Activation of
    an MLP of 4 widths: 16, with SwiGLU 20.
    """
    software, width = cluster.software, model.width
    shared = tp if sp else 1
    inner = mlp_width(model) / (4 * width) * active_ratio(model)
    gate = 20 if mlp_matrices(model) == 3 else 16
    unit = software.unfused * rows * width / stream(cluster)
    return Seconds(unit * (22 / shared + (12 + gate * inner) / tp),
                   unit * (32 / shared + (12 + 24 * inner) / tp))


def loss(cluster: ClusterSpec, model: GPTConfig, rows: float, tp: int) -> float:
    """Seconds of the cross-entropy, which moves `loss` bytes a logit."""
    return cluster.software.loss * rows * model.vocab_size / tp / stream(cluster)
