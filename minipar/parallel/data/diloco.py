"""DiLoCo: an optimizer over optimizers; each rank trains alone for H steps, then all step together.

    rank 0   θ ─ step ─ … ─ step ─ w₀ ─┐
                                       ├─ Δ = mean(θ - wᵣ) ─ outer step ─ θ ─ step ─ …
    rank 1   θ ─ step ─ … ─ step ─ w₁ ─┘

    v ← μ v + Δ            θ ← θ - η (Δ + μ v)            wᵣ ← θ        (old minus new: a gradient)

H steps of each rank's own optimizer, whose states are never averaged, make one gradient for an
outer Nesterov step with learning rate η and momentum μ.  A rank sends 2Ψ(p-1)/p elements every H
steps, and keeps 3Ψ more: θ, v and Δ.  With η = 1 and μ = 0 it is local SGD.

Streaming: the parameters are cut into P fragments that take their outer steps in turn, one every
H/P steps.  Δ is taken `delay` steps before it is used, and its sum travels meanwhile:

    step        1      2      3      4      5      6             every=6, fragments=2, delay=1
    fragment 0            send ∙ use
    fragment 1                                 send ∙ use        wᵣ ← (1 - mix) θ + mix wᵣ

So a message has Ψ/P elements, and all messages together are as long as without streaming.  After
the last step, a fragment that has trained since its last outer step takes the next one early
(`consensus`).  Douillard et al. 2023, arXiv 2311.08105; streaming: Douillard et al. 2025, arXiv
2501.18512.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import all_reduce, chunk_bounds
from ...comm.mesh import DeviceMesh
from ...comm.work import Work, start_work, wait_all
from ...nn import Module
from ...optim import Optimizer
from .trained_apart import TrainedApart


class DiLoCo(TrainedApart):
    """Takes an outer step every `every` steps; each of the `fragments` takes its own in turn."""

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, every: int = 4,
                 outer_lr: float = 0.7, outer_momentum: float = 0.9, fragments: int = 1,
                 delay: int = 0, mix: float = 0.0, **options: Any):
        if min(every, fragments) < 1 or every % fragments or not 0 <= delay < every // fragments:
            raise ValueError(f"every={every}, fragments={fragments}, delay={delay}: choose a "
                             "number of fragments that divides every, and a delay below "
                             "every / fragments")
        self.num_fragments, self.period, self.delay = fragments, every // fragments, delay
        if not 0 <= mix <= 1:
            raise ValueError(f"mix={mix}: choose a share of a rank's own parameters, 0 to 1")
        self.lr, self.momentum, self.mix, self.num_steps = outer_lr, outer_momentum, mix, 0
        self.sums: list[Work] = []                  # of pseudo-gradients, under way
        super().__init__(model, ranks, **options)
        theta = [slab.data.copy() for slab in self.slabs]
        self.outer = {"theta": theta, "velocity": [*map(np.zeros_like, theta)],
                      "delta": [*map(np.zeros_like, theta)]}

    def fragment(self, step: int, *more: Sequence[Array]) -> Iterator[tuple[Array, ...]]:
        """The part of each slab that is used after `step` steps: of w, θ, v, Δ, and of `more`."""
        k = (step // self.period - 1) % self.num_fragments
        for arrays in zip([slab.data for slab in self.slabs], *self.outer.values(), *more):
            part = slice(*chunk_bounds(arrays[0].shape[0], self.num_fragments)[k])
            yield tuple(array[part] for array in arrays)

    def update(self, optimizer: Optimizer) -> None:
        """Step; send the Δ of the fragment that is due `delay` steps later; use what is due now."""
        optimizer.step()
        self.num_steps = optimizer.num_steps
        if (self.num_steps + self.delay) % self.period == 0:
            for w, theta, _, delta in self.fragment(self.num_steps + self.delay):
                delta[...] = (theta - w) / self.dp.size         # so their sum is the mean
                self.sums.append(start_work(all_reduce, self.dp, delta, out=delta))
        if self.num_steps % self.period == 0:
            wait_all(self.sums)
            for w, theta, velocity, delta in self.fragment(self.num_steps):
                theta[...], velocity[...] = self.outer_step(theta, velocity, delta)
                w[...] = (1 - self.mix) * theta + self.mix * w

    def outer_step(self, theta: Array, velocity: Array, delta: Array) -> tuple[Array, Array]:
        """θ and v after a step of SGD with Nesterov's momentum along Δ."""
        velocity = self.momentum * velocity + delta
        return theta - self.lr * (delta + self.momentum * velocity), velocity

    def consensus(self) -> list[Array]:
        """θ, after an early outer step of the fragments that have trained since their last one."""
        found = [self.outer_step(theta, velocity, self.mean(theta - slab.data))[0]
                 for slab, theta, velocity, _ in zip(self.slabs, *self.outer.values())]
        if self.num_steps % self.period == 0:
            for _, theta, _, _, whole in self.fragment(self.num_steps, found):
                whole[...] = theta
        return found

    def rank_state(self, optimizer: Optimizer) -> dict[str, Array]:
        """The base's state, and θ, v and Δ, once the sums under way have arrived."""
        wait_all(self.sums)
        self.num_steps = optimizer.num_steps
        return super().rank_state(optimizer) | {
            f"{i}/{name}": array for name in self.outer for i, array in enumerate(self.outer[name])}
