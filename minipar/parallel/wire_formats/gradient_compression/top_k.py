"""Top-k and DGC: of all that waits in a matrix, send the k largest numbers.

    g ← g · min(1, clip / (√p ‖g‖))          over all tensors of the rank
    u ← m u + g                              momentum, before the sum          per rank
    v ← v + u                                what waits: it was not sent yet    and matrix
    send the k = ⌈density · n⌉ largest |v| with their indices; there v ← 0, and with masking u ← 0
    w ← w - lr Σ of what all ranks sent      SGD without momentum does this

With momentum 0 this is top-k with error feedback, and v is the error.  Momentum after the sum would
leave out the steps during which a number waited.  Here v adds up what each of these steps would
have added, u: this is DGC's momentum correction.  Masking stops the momentum of what was just sent.
With Nesterov's momentum, u ← m(u + g) and v ← v + u + g.  Vectors are sent in full, with momentum
after the sum.  At density 1 matrices are sent in full too, and the method is SGD with momentum.

A rank sends (p-1) k (b + 4) bytes for a matrix: b bytes a number and 4 an index.  That is less than
the dense 2(p-1)n b/p only below the density 2b / (p(b + 4)), or 1/p for float32.  With
`stage_steps`, training begins with that many steps at each of the densities 25, 6.25, 1.56, … %,
until `density` is reached.

The norm ‖g‖ is known when backward ends.  So with `wire_clip` no sum begins before that; without
clipping, sums overlap with backward.  Lin et al. 2018, arXiv 1712.01887 (their code clips each
tensor by itself); top-k: Aji & Heafield 2017, Stich et al. 2018.
"""

import math
from collections.abc import Sequence

import numpy as np

from ....backend import Array, to_float
from ....comm import Communicator
from ....nn import Slab
from ....optim.clip import grad_norm
from .sparse_sum import largest, num_sent, sum_sparse
from .tensor_wire import Tensors, TensorWire, joined, parted, sum_together


class TopK(TensorWire):
    """Sends the largest numbers of matrices, as many as `density` says."""

    momentum, nesterov, masking, factor = 0.0, False, True, 1.0

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
        """(the new u, what this step adds to v)."""
        u = self.momentum * (u + g) if self.nesterov else self.momentum * u + g
        return u, u + g if self.nesterov else u

    def combine(self, comm: Communicator, tensors: Tensors, step: int) -> tuple[Tensors, Tensors]:
        """An all-reduce of what is sent in full, an all-gather of the largest numbers of matrices.
        """
        density = self.density_at(step)
        full, waiting, chosen, kept = {}, Tensors(), [], Tensors()
        for name, tensor in tensors.items():
            g = tensor * self.factor
            if g.ndim < 2 or density == 1:
                full[name] = g
                continue
            v, sent, new = self.choose(name, g, num_sent(g.size, density))
            chosen.append(sent + sum(a.size for a in waiting.values()))
            waiting[name], kept = v, kept | new
        sums = sum_together(comm, full)
        for name, total in sums.items():
            u, sums[name] = self.add_momentum(
                self.remembered(f"{name}/u", total) * comm.size, total)
            kept[f"{name}/u"] = u / comm.size       # this rank's share, also if sparse steps follow
        if waiting:
            sums |= parted(sum_sparse(comm, joined(waiting), np.concatenate(chosen)), waiting)
        return sums, {name: array for name, array in kept.items()
                      if self.momentum or name.endswith("/v")}

    def choose(self, name: str, g: Array, k: int) -> tuple[Array, Array, Tensors]:
        """(v before k of its numbers are sent, their indices in v as a vector, the new u and v)."""
        u, move = self.add_momentum(self.remembered(f"{name}/u", g), g)
        v = self.remembered(f"{name}/v", g) + move
        waiting = v.reshape(v.size)
        sent, stays = largest(waiting, k), np.ones_like(waiting)
        stays[sent] = 0
        stays = stays.reshape(v.shape)
        return v, sent, {f"{name}/u": u * stays if self.masking else u, f"{name}/v": v * stays}


class DGC(TopK):
    """Deep gradient compression: top-k with momentum before the sum, masked, and local clipping."""

    has_momentum = True

    def __init__(self, density: float = 0.01, stage_steps: int = 0, wire_momentum: float = 0.9,
                 nesterov: bool = False, masking: bool = True, wire_clip: float = 0.0):
        super().__init__(density, stage_steps)
        self.momentum, self.nesterov, self.masking = wire_momentum, nesterov, masking
        self.clip, self.waits_for_all = wire_clip, bool(wire_clip)

    def see_all(self, slabs: Sequence[Slab], num_ranks: int) -> None:
        """Set the factor of this rank's gradients: min(1, clip / (√p ‖g‖))."""
        norm = math.sqrt(num_ranks) * to_float(grad_norm(slabs)) / self.scale
        self.factor = min(1.0, self.clip / norm) if norm else 1.0
