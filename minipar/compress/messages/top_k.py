"""Top-k and DGC: of a matrix, send the k numbers that have waited longest to be large.

    g ← g · min(1, clip / (√p ‖g‖))          over the tensors of a bucket
    u ← m u + g                              momentum, before the sum          per rank
    v ← v + u                                what has not been sent             and matrix
    send the k = ⌈density · n⌉ largest |v| with their indices; there v ← 0, and with masking u ← 0
    w ← w - lr Σ of what all ranks sent      SGD without momentum does this

With momentum 0 this is top-k with error feedback: v is the debt.  Momentum after the sum would
leave out the steps during which a number waited; u is what each would have added: DGC's momentum
correction.  Masking stops the momentum of what was just sent.  With Nesterov's momentum it is
u ← m(u + g), v ← v + u + g.  Vectors go in full, with momentum after the sum, and so does all of
density 1: then it is SGD with momentum.

A rank sends (p-1) k (b + 4) bytes, for b bytes a number and 4 an index: less than the dense
2(p-1)n b/p only below the density 2b / (p(b + 4)), or 1/p for float32.  `stage_steps` warms up:
as many steps at each of the densities 25, 6.25, 1.56, … %.

Lin et al. 2018, arXiv 1712.01887 (their code clips each tensor by itself); top-k: Aji & Heafield
2017, Stich et al. 2018.
"""

import math
from typing import Any

import numpy as np

from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import all_gather
from .tensor_wire import Tensors, TensorWire, joined, parted, sum_together

INDEX = np.dtype(np.int32)


class TopK(TensorWire):
    """Sends the largest numbers of matrices, as many as `density` says."""

    momentum, nesterov, masking, clip = 0.0, False, True, 0.0

    def __init__(self, density: float = 0.01, stage_steps: int = 0):
        if not 0 < density <= 1:
            raise ValueError(f"density={density}: choose a share of the numbers, above 0, up to 1")
        super().__init__()
        self.density, self.stage_steps = density, stage_steps

    def density_at(self, step: int) -> float:
        """The density of a step, counted from 0."""
        stage = step // self.stage_steps if self.stage_steps else math.inf
        return max(self.density, 0.25**(stage + 1))

    def add_momentum(self, u: Array, g: Array) -> tuple[Array, Array]:
        """The new u, and the step that it makes of g."""
        if self.nesterov:
            u = self.momentum * (u + g)
            return u, u + g
        u = self.momentum * u + g
        return u, u

    def combine(self, comm: Communicator, tensors: Tensors, step: int) -> tuple[Tensors, Tensors]:
        """An all-gather of the largest numbers of matrices, an all-reduce of the rest."""
        density, factor = self.density_at(step), self.clip_factor(joined(tensors), comm.size)
        full, waiting, chosen, kept = {}, {}, [], {}
        for name, tensor in tensors.items():
            g = tensor * factor
            if g.ndim < 2 or density == 1:
                full[name] = g
                continue
            u, move = self.add_momentum(self.remembered(f"{name}/u", g), g)
            v = self.remembered(f"{name}/v", g) + move
            sent = largest(v.reshape(v.size), num_sent(v.size, density))
            chosen.append(sent + sum(a.size for a in waiting.values()))
            waiting[name] = v
            left = np.ones(v.size, v.dtype, like=v)
            left[sent] = 0
            left = left.reshape(v.shape)
            kept |= {f"{name}/u": u * left if self.masking else u, f"{name}/v": v * left}
        sums = sum_together(comm, full)
        for name, total in sums.items():
            u, sums[name] = self.add_momentum(
                self.remembered(f"{name}/u", total) * comm.size, total)
            kept[f"{name}/u"] = u / comm.size       # this rank's share, also if sparse steps follow
        if waiting:
            sums |= parted(sum_sparse(comm, joined(waiting), np.concatenate(chosen)), waiting)
        return sums, kept

    def clip_factor(self, gradient: Array, num_ranks: int) -> Any:
        """min(1, clip / (√p ‖g‖)); 1 without clipping."""
        if not self.clip:
            return 1.0
        norm = math.sqrt(num_ranks) * np.sqrt(np.sum(gradient * gradient))
        return np.where(norm > self.clip, self.clip / norm, 1.0).astype(gradient.dtype)


class DGC(TopK):
    """Deep gradient compression: top-k with momentum before the sum, masked, and local clipping."""

    has_momentum = True

    def __init__(self, density: float = 0.01, stage_steps: int = 0, wire_momentum: float = 0.9,
                 nesterov: bool = False, masking: bool = True, wire_clip: float = 0.0):
        super().__init__(density, stage_steps)
        self.momentum, self.nesterov, self.masking = wire_momentum, nesterov, masking
        self.clip = wire_clip


def num_sent(size: int, density: float) -> int:
    """⌈density · size⌉, without the rounding error of the product."""
    return math.ceil(round(density * size, 6))


def largest(values: Array, k: int) -> Array:
    """The indices of the k largest |values| (n,), ascending; of equal ones the first; NaN is sent.
    """
    size = np.abs(values)
    order = np.argsort(-np.where(np.isnan(size), np.inf, size), kind="stable")
    return np.sort(order[:k])


def sum_sparse(comm: Communicator, values: Array, indices: Array) -> Array:
    """The sum (n,) of what all ranks send of their `values` (n,), at `indices` (k,).  Collective.

    Every rank adds in the order of ranks, so all get the same bits.
    """
    k, own = indices.shape[0], values[indices]
    message = np.concatenate([own.view(np.uint8), indices.astype(INDEX).view(np.uint8)])
    total = np.zeros_like(values)
    for arrived in all_gather(comm, message).reshape(comm.size, message.shape[0]):
        numbers, places = np.split(arrived.copy(), [k * values.dtype.itemsize])     # aligned
        total[places.view(INDEX)] += numbers.view(values.dtype)
    return total


def sparse_bytes(sizes: list[int], density: float, num_ranks: int, itemsize: int = 4) -> int:
    """Bytes that a rank sends in the all-gather of the largest numbers of matrices."""
    return (num_ranks - 1) * sum(num_sent(n, density) for n in sizes) * (itemsize + INDEX.itemsize)
