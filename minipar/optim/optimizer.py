"""Optimizers: one loop over flat slabs, in place, a cache-sized block at a time.

    g ← g + decay p            step = update(g, states)            p ← p - step
    p ← p - lr decay p         instead, if decoupled (Loshchilov & Hutter 2019)

Decay and learning rate may differ from one span of a slab to the next (`groups.py`).

A block of parameters, gradients and states goes through all the passes of the update while it is
in the L2 cache; a scratch block serves every step, so a step allocates nothing.

States made inside `backend.allocating_with` may be in a file, of which one block at a time is
resident, or on the host beside a GPU, where the step is then taken: ZeRO-Offload, Ren et al. 2021.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from ..autograd.meter import current_meter
from ..backend import Array, allocate_zeros, cache_blocks, to_device_of
from ..backend.mapped_file import resident_blocks
from ..nn.slab import FlatBuffer
from .groups import ParameterGroup, Span, spans_of, within
from .state import load_state_dict, state_dict


class Optimizer:
    """Base of the optimizers: a subclass names its states and defines `update`.

    `slabs` is `model.slabs`, or a strategy's.  `lr` may be set between steps.  A parameter without
    a gradient counts as gradient 0.  `weight_decay` is that of the parameters for which no group
    says otherwise.
    """

    state_dict, load_state_dict = state_dict, load_state_dict       # of state.py
    state_names: tuple[str, ...] = ()
    flops_per_parameter = 0
    decoupled = False           # whether decay shrinks parameters, beside the gradient

    def __init__(self, slabs: Sequence[FlatBuffer], lr: float, weight_decay: float = 0.0,
                 groups: Sequence[ParameterGroup] = ()):
        if not slabs:
            raise ValueError("no parameters: call model.initialize(seed) before the optimizer, "
                             "and where a strategy has taken the model give strategy.slabs")
        if not 0 <= lr < math.inf:
            raise ValueError(f"a learning rate is a number >= 0, not {lr}")
        for name, value in [("weight_decay", weight_decay), *(
                (name, getattr(group, name) or 0.0) for group in groups
                for name in ("weight_decay", "lr_scale"))]:
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is a number >= 0, not {value}")
        self.slabs, self.lr, self.num_steps = list(slabs), lr, 0
        self.states: list[dict[str, Array]] = [
            {name: allocate_zeros("optimizer states", slab.data) for name in self.state_names}
            for slab in slabs]
        sizes = [[block.shape[0] for (block,) in cache_blocks(slab.data)] for slab in slabs]
        self._scratch = np.empty_like(next(iter(self.states[0].values()), slabs[0].data),
                                      shape=(2, max(max(of, default=0) for of in sizes)))
        self._spans: list[list[list[Span]]] = []        # of each slab, of each block
        for slab, of in zip(slabs, sizes):
            spans = [span for span in spans_of(slab.segments, groups, weight_decay)
                     if span.weight_decay or span.lr_scale != 1]
            self._spans.append([within(spans, *bounds)
                                for bounds in pairwise([0, *accumulate(of)])])

    def begin_step(self) -> None:
        """Compute what changes from step to step, once for all blocks."""

    def update(self, g: Array, scratch: Array, *states: Array) -> Array:
        """The step (n,) that a block of parameters takes, computed in `scratch` (n,).

        The states change in place; the gradient `g` is only read.
        """
        raise TypeError(f"{type(self).__name__} defines no update()")

    def step(self) -> None:
        """Move the parameters along their gradients."""
        self.num_steps += 1
        self.begin_step()
        meter = current_meter()
        for slab, state, spans in zip(self.slabs, self.states, self._spans):
            start = meter.start() if meter else None
            grad = slab.complete_grad()
            arrays = slab.data, grad, *state.values()
            for block, spans_here in zip(resident_blocks(*arrays), spans):
                self._update_block(spans_here, *block)
            if meter:
                meter.stop(start, type(self).__name__, "optimizer",
                           self.flops_per_parameter * slab.data.size, arrays)

    def _update_block(self, spans: Sequence[Span], p: Array, g: Array, *states: Array) -> None:
        """Step a block where its states live: on the host, if they were made there (ZeRO-Offload).

        `spans` are the parts of the block with weight decay or a learning rate of their own.
        """
        place = states[0] if states else p
        here, g = to_device_of(p, place), to_device_of(g, place)
        scratch, decayed = self._scratch[:, :p.shape[0]]
        if spans and not self.decoupled:
            if spans[0][:2] != (0, p.shape[0]):
                decayed[...] = 0
            for span in spans:
                np.multiply(span.view(here), span.weight_decay, out=span.view(decayed))
            g = np.add(decayed, g, out=decayed)
        step = self.update(g, scratch, *states)
        for span in spans:
            if span.lr_scale != 1:
                step_here = span.view(step)
                step_here *= span.lr_scale
            if self.decoupled:
                p_here = span.view(here)
                p_here *= 1 - self.lr * span.lr_scale * span.weight_decay
        here -= step
        if here is not p:
            p[...] = to_device_of(here, p)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for slab in self.slabs:
            slab.zero_grad()
