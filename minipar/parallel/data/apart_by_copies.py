"""Ranks that train apart, specified: copies of a model in one process, without a message.

    copy 0   rows 0 … 3   w₀ ─ step ─ step ─┐
                                            ├─ e.g. mean ─▶ w₀ = w₁ ─ step ─ …
    copy 1   rows 4 … 7   w₁ ─ step ─ step ─┘

`local_sgd.py`, `diloco.py`, `gossip.py`, `elastic_averaging.py` and `delayed_averaging.py` give the
same with a copy on each rank.  The papers are named there.
"""

import copy
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import chunk_bounds
from ...nn import Module
from ...nn.slab import Buffers
from ...optim import Optimizer
from ..strategy import Microbatch, Strategy


class Copies(Strategy):
    """Trains `num_copies` copies of `model` on one rank; `slabs` are the slabs of all copies.

    `rule` are the options of the method; a subclass exchanges them, or gradients, in `update`.
    """

    def __init__(self, model: Module, comm: Communicator, num_copies: int, **rule: Any):
        self.copies = [model, *(copy.deepcopy(model) for _ in range(num_copies - 1))]
        super().__init__(model, comm)
        self.slabs = Buffers(slab for each in self.copies for slab in each.slabs)
        self.rule = rule
        self.centres: Sequence[Array] = self.means()    # for each slab, θ or the centre

    def of_slabs(self, arrays: Sequence[Array]) -> list[Sequence[Array]]:
        """`arrays`, one for each of `slabs`, in groups: a group has the copies of one slab."""
        return [arrays[i::len(self.model.slabs)] for i in range(len(self.model.slabs))]

    def weights(self) -> list[Sequence[Array]]:
        """For each slab the parameters of all copies."""
        return self.of_slabs([slab.data for slab in self.slabs])

    def means(self) -> list[Array]:
        """For each slab the mean of the copies."""
        return [sum(copies) / len(copies) for copies in self.weights()]

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0, step: int = 0,
                         scale: float = 1.0) -> float:
        """Each copy's gradients, of its part of every microbatch; the mean of their losses."""
        losses = []
        for i, each in enumerate(self.copies):
            self.model = each
            mine = [Microbatch(*(array[slice(*chunk_bounds(len(m.inputs), len(self.copies))[i])]
                                 for array in m)) for m in microbatches]
            losses.append(super().forward_backward(mine, seed, step, scale))
        self.model = self.copies[0]
        return sum(losses) / len(losses)

    def clip_grad_norm(self, max_norm: float) -> float:
        """Clip each copy by its own norm; return the first copy's norm."""
        slabs, norms = self.slabs, []
        for each in self.copies:
            self.slabs = each.slabs
            norms.append(super().clip_grad_norm(max_norm))
        self.slabs = slabs
        return norms[0]

    def consensus(self) -> Sequence[Array]:
        """For each slab the parameters that the run gives."""
        return self.means()

    def state_dict(self) -> dict[str, np.ndarray]:
        """The parameters that the run gives, by name."""
        return self.model.slabs.named(self.consensus())


def set_all(copies: Sequence[Array], value: Array | float) -> None:
    """Write `value` into each copy."""
    for array in copies:
        array[...] = value


class LocalSGDByCopies(Copies):
    """Every `every` steps the copies become their mean.

    `local_states` says whether their optimizer states are kept, averaged too, or set to 0.
    """

    def update(self, optimizer: Optimizer) -> None:
        """Step; average when it is time."""
        optimizer.step()
        if optimizer.num_steps % self.rule["every"]:
            return
        for copies, mean in zip(self.weights(), self.means()):
            set_all(copies, mean)
        how = self.rule.get("local_states", "kept")
        for name in optimizer.state_names if how != "kept" else ():
            for copies in self.of_slabs([state[name] for state in optimizer.states]):
                set_all(copies, sum(copies) / len(copies) if how == "averaged" else 0)


class DiLoCoByCopies(Copies):
    """Every `every` steps θ takes a Nesterov step along θ - mean, and all copies become θ."""

    velocities: Sequence[Array] = ()

    def outer_step(self) -> Iterator[tuple[Array, Array]]:
        """θ and v of each slab after an outer step."""
        lr, momentum = self.rule.get("outer_lr", 0.7), self.rule.get("outer_momentum", 0.9)
        for mean, theta, velocity in zip_longest(self.means(), self.centres, self.velocities,
                                                 fillvalue=0.0):
            delta = theta - mean
            velocity = momentum * velocity + delta
            yield theta - lr * (delta + momentum * velocity), velocity

    def update(self, optimizer: Optimizer) -> None:
        """Step; take the outer step when it is time."""
        optimizer.step()
        self.is_over = optimizer.num_steps % self.rule["every"] == 0
        if self.is_over:
            self.centres, self.velocities = zip(*self.outer_step())
            for copies, theta in zip(self.weights(), self.centres):
                set_all(copies, theta)

    def consensus(self) -> Sequence[Array]:
        """θ, after an early outer step if steps are left over."""
        return self.centres if self.is_over else [theta for theta, _ in self.outer_step()]


class GossipByCopies(Copies):
    """Each copy steps, and moves as far as it was from the mean of it and its neighbours."""

    def update(self, optimizer: Optimizer) -> None:
        """Step from the old parameters, and move to the mean."""
        p = len(self.copies)
        moves = []
        for copies in self.weights():
            near = [{(r - 1) % p, r, (r + 1) % p} for r in range(p)]
            moves.append([sum(copies[j] for j in js) / len(js) - copies[r]
                          for r, js in enumerate(near)])
        optimizer.step()
        for copies, by_copy in zip(self.weights(), moves):
            for array, move in zip(copies, by_copy):
                array += move


class ElasticByCopies(Copies):
    """In every `every`-th step each copy and the centre pull each other."""

    def update(self, optimizer: Optimizer) -> None:
        """Step; pull when it is time."""
        pulls = []
        if (optimizer.num_steps + 1) % self.rule["every"] == 0:
            pull = self.rule.get("pull") or 0.9 / len(self.copies)
            pulls = [[pull * (array - centre) for array in copies]
                     for copies, centre in zip(self.weights(), self.centres)]
        optimizer.step()
        for copies, centre, by_copy in zip(self.weights(), self.centres, pulls):
            centre += sum(by_copy)
            for array, pulled in zip(copies, by_copy):
                array -= pulled

    def consensus(self) -> Sequence[Array]:
        """The centre."""
        return self.centres


class DelayedByCopies(Copies):
    """Each step is by g - g′ + the mean of g′ over the copies; g′ is the g of `delay` steps ago."""

    past: Sequence[list[Array]] = ()        # gradients of the last steps, for each of `slabs`

    def update(self, optimizer: Optimizer) -> None:
        """Add the correction of the gradients of `delay` steps ago to the current ones; step."""
        self.past = [*self.past, [slab.complete_grad().copy() for slab in self.slabs]]
        if len(self.past) > self.rule["delay"]:
            before, *self.past = self.past
            gradients = self.of_slabs([slab.grad for slab in self.slabs])
            for copies, old in zip(gradients, self.of_slabs(before)):
                for grad, own in zip(copies, old):
                    grad += sum(old) / len(old) - own
        optimizer.step()
