"""Optimizers: one loop, in place and block by block, over slabs (flat arrays of parameters).

    g ← g + decay p            step = compute_step(g, states)           p ← p - step
    p ← p - lr decay p         instead, if decoupled (Loshchilov & Hutter 2019)

`compute_step` sees flat blocks, without the shapes of matrices.  Decay and learning rate may differ
from one span of a slab to the next (`groups.py`).

A block of parameters, gradients and states goes through all the passes of the update while it is
in the L2 cache.  Two scratch blocks serve all steps, so a step of SGD or Adam allocates no array.

States made inside `backend.allocating_with` may be in a file: then one block at a time is in
memory.  Or they are on the host beside a GPU: then the host takes the step.  Ren et al. 2021,
ZeRO-Offload.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np

from ..autograd.meter import current_meter
from ..backend import Array, allocate_zeros, asarray_like, l2_blocks, to_device_of
from ..backend.mapped_file import is_mapped, resident_blocks
from ..nn.parameter import mark_changed
from ..nn.slab import Buffers, FlatBuffer
from .groups import GroupSpan, ParameterGroup, add_decay, apply_groups, spans_of_blocks


class Optimizer:
    """Base of the optimizers: a subclass names its states and defines `compute_step`,
    or a `step` of its own.

    `slabs` is `model.slabs` or `strategy.slabs`.  `lr` may be set between steps.  A missing
    gradient counts as 0.  `weight_decay` holds for all parameters except those in a group of
    `groups` that has its own.
    """

    state_names: tuple[str, ...] = ()
    flops_per_parameter = 0
    # decoupled: weight decay shrinks parameters directly, not by the gradient
    # has_codes: states are codes, which have no mean
    decoupled = has_codes = False

    def __init__(self, slabs: Sequence[FlatBuffer], lr: float, weight_decay: float = 0.0,
                 groups: Sequence[ParameterGroup] = ()):
        if not slabs:
            raise no_parameters_error()
        if not 0 <= lr < math.inf:
            raise ValueError(f"a learning rate is a number >= 0, not {lr}")
        self.slabs = slabs if isinstance(slabs, Buffers) else Buffers(slabs)
        self.lr, self.num_steps = lr, 0
        self.states = [
            {name: allocate_zeros("optimizer states", slab.data) for name in self.states_of(slab)}
            for slab in slabs]
        everything = [a for slab, state in zip(slabs, self.states)
                      for a in (slab.data, slab.grad, *state.values())]
        self._blocks = resident_blocks if any(map(is_mapped, everything)) else l2_blocks
        largest = max((block.shape[0] for slab in slabs for (block,) in l2_blocks(slab.data)),
                      default=0)
        like = next(iter(self.states[0].values()), slabs[0].data)
        self._scratch = np.empty((2, largest), like.dtype, like=like)
        self._spans: Iterable[Iterable[Sequence[GroupSpan]]] = (     # of each slab, of each block
            spans_of_blocks(slabs, groups, weight_decay) if weight_decay or groups
            else repeat(repeat(())))                            # no spans for any block

    def states_of(self, slab: FlatBuffer) -> tuple[str, ...]:
        """The names of the states that the parameters of `slab` have."""
        return self.state_names

    def begin_step(self) -> None:
        """Compute what changes from step to step, once for all blocks."""

    def compute_step(self, g: Array, scratch: Array, *states: Array) -> Array:
        """The step (n,) that a block of parameters takes, computed in `scratch` (n,).

        The states change in place; the gradient `g` is only read.
        """
        raise TypeError(f"{type(self).__name__} defines no compute_step()")

    def step(self) -> None:
        """Move the parameters along their gradients."""
        self.num_steps += 1
        self.begin_step()
        meter = current_meter()
        for slab, state, spans in zip(self.slabs, self.states, self._spans):
            start = meter.start() if meter else None
            grad = slab.complete_grad()
            arrays = slab.data, grad, *state.values()
            for block, spans_here in zip(self._blocks(*arrays), spans):
                self.update_block(spans_here, *block)
            mark_changed(slab.parameters)
            if meter:
                meter.stop(start, type(self).__name__, "optimizer",
                           self.flops_per_parameter * slab.data.size, arrays)

    def update_block(self, spans: Sequence[GroupSpan], p: Array, g: Array, *states: Array) -> None:
        """Step a block where its states live: on the host, if they were made there (ZeRO-Offload).

        `spans` are the parts of the block with weight decay or a learning rate of their own.
        """
        like = states[0] if states else p
        p_at_states, g = to_device_of(p, like), to_device_of(g, like)
        scratch, decayed = self._scratch[:, :p.shape[0]]
        if spans and not self.decoupled:
            g = add_decay(spans, p_at_states, g, out=decayed)
        step = self.compute_step(g, scratch, *states)
        if spans:
            apply_groups(spans, p_at_states, step, self.lr if self.decoupled else 0.0)
        p_at_states -= step
        if p_at_states is not p:
            p[...] = to_device_of(p_at_states, p)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for slab in self.slabs:
            slab.zero_grad()

    def local_states(self) -> list[dict[str, Array]]:
        """The arrays in which this rank keeps its states, not copied: for each slab, by name."""
        return self.states

    # States by the names of parameters, for checkpoints.

    def state_dict(self) -> dict[str, np.ndarray]:
        """A host copy of every state of every parameter, as "state/parameter name".

        Collective over the ranks that share the slabs, if these are shards.
        """
        return {f"{name}/{parameter}": array for name in self.state_names
                for parameter, array in
                self.slabs.named([state[name] for state in self.states]).items()}

    def load_state_dict(self, state: dict[str, np.ndarray], num_steps: int) -> None:
        """Load the states of whole parameters after `num_steps` steps; keep this rank's part.

        Raises ValueError for a state that is missing or of a different shape, and names it.
        """
        for slab, own in zip(self.slabs, self.states):
            for name, values in own.items():
                for segment in slab.segments:
                    key = f"{name}/{segment.name}"
                    if key not in state or state[key].shape != segment.global_shape:
                        raise ValueError(f"the optimizer needs {key} of shape "
                                         f"{segment.global_shape}, which the checkpoint does not "
                                         "have: resume with the optimizer that wrote it")
                    local = segment.local_part(state[key]).astype(values.dtype)
                    values[segment.start:segment.stop] = asarray_like(local, values)
        self.num_steps = num_steps


def no_parameters_error() -> ValueError:
    """The error for an optimizer without slabs."""
    return ValueError("no parameters: call model.initialize(seed) before the optimizer, and where "
                      "a strategy has taken the model give strategy.slabs")
