"""AdamW with states of 8 bits: 2 bytes a parameter and 8 a block of 2048, not 8 a parameter.

    m, v ← decode(codes)        AdamW's step        codes ← encode(m, v)        a chunk at a time

`moment_codes.py` defines the codes.  Blocks are cut from a slab (a flat array of parameters), or
from a rank's piece of one, so the results of two layouts differ by rounding.  A checkpoint has the
decoded moments, and the scale of each element, so that a run on the same layout goes on exactly.
Dettmers et al. 2022, arXiv 2110.02861.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend import Array
from ..nn.parameter import mark_changed
from ..nn.slab import FlatBuffer
from .adam import AdamW
from .groups import ParameterGroup, spans_of, spans_within
from .moment_codes import BLOCK, Moment

CHUNK = 16 * BLOCK          # elements that are decoded at once


class AdamW8bit(AdamW):
    """AdamW whose moments are codes; `moments` has them for each slab."""

    state_names = ("first_moment", "second_moment", "first_scale", "second_scale")
    has_codes = True

    def __init__(self, slabs: Sequence[FlatBuffer], lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8,
                 weight_decay: float = 0.01, groups: Sequence[ParameterGroup] = ()):
        super().__init__(slabs, lr, betas, epsilon, weight_decay, groups)
        self.spans = [spans_of(slab.segments, groups, weight_decay) for slab in slabs]
        self.moments = [(Moment(slab.data, True), Moment(slab.data, False)) for slab in slabs]
        self._scratch = np.empty((2, CHUNK), slabs[0].data.dtype, like=slabs[0].data)

    def states_of(self, slab: FlatBuffer) -> tuple[str, ...]:
        """No names: `states` is empty, except while a checkpoint is written or read."""
        return ()

    def step(self) -> None:
        """Move the parameters along their gradients."""
        self.num_steps += 1
        self.begin_step()
        for slab, moments, spans in zip(self.slabs, self.moments, self.spans):
            n, grad = slab.data.shape[0], slab.complete_grad()
            for start in range(0, n, CHUNK):
                stop = min(start + CHUNK, n)
                m, v = (moment.decode(start, stop) for moment in moments)
                self.update_block(spans_within(spans, start, stop), slab.data[start:stop],
                                  grad[start:stop], m, v)
                for moment, values in zip(moments, (m, v)):
                    moment.encode(start, values)
            mark_changed(slab.parameters)

    def local_states(self) -> list[dict[str, Array]]:
        """The codes and scales of each slab, by name."""
        return [{f"{name}_{kind}": getattr(moment, kind) for kind in ("codes", "scales")
                 for name, moment in zip(("first", "second"), moments)} for moments in self.moments]

    def decoded(self) -> list[dict[str, Array]]:
        """The moments and scales of all elements, for each slab."""
        return [dict(zip(self.state_names, (
            *(moment.decode(0, moment.codes.size) for moment in moments),
            *(moment.scale(0, moment.codes.size) for moment in moments))))
            for moments in self.moments]

    def state_dict(self) -> dict[str, np.ndarray]:
        """Decoded moments and scales, as "state/parameter name"."""
        self.states = self.decoded()
        found = super().state_dict()
        self.states = [{} for _ in self.states]
        return found

    def load_state_dict(self, state: dict[str, Any], num_steps: int) -> None:
        """Encode the moments and scales of a `state_dict`."""
        self.states = self.decoded()
        super().load_state_dict(state, num_steps)
        for moments, states in zip(self.moments, self.states):
            for moment, name in zip(moments, ("first", "second")):
                moment.encode(0, states[f"{name}_moment"], states[f"{name}_scale"])
        self.states = [{} for _ in self.states]
