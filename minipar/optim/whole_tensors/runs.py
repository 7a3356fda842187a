"""Runs: neighbouring parameters of a slab that an optimizer treats alike, with states of their own.

    slab     [ wte │ ln_1 … │ c_attn.weight │ c_attn.bias │ c_proj.weight │ …
    runs     [ ─ vectors ── │ ── matrix ─── │ ─ vectors ─ │ ── matrix ─── │ …
    states      2                1               2              1            arrays of that length

So Muon keeps one number for each element of a matrix, and AdamW two for each of the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from ...backend import Array, to_device_of
from ...nn.slab import Buffers, FlatBuffer, Segment


class Run:
    """Segments of a slab, or of a piece, seen like a slab; `alone` if a rule picked this one."""

    parameters = ()             # the optimizer marks all those of the slab

    def __init__(self, slab: FlatBuffer, segments: Sequence[Segment], alone: bool):
        self.slab, self.alone = slab, alone
        start, stop = (segments[0].start, segments[-1].stop) if segments else (0, 0)
        self.place = slice(start, stop)
        self.segments = [replace(s, start=s.start - start, stop=s.stop - start) for s in segments]
        self.norm_comm, self.is_copy, self.zero_grad = slab.norm_comm, slab.is_copy, slab.zero_grad

    data = property(lambda self: self.slab.data[self.place])
    grad = property(lambda self: self.slab.grad[self.place])

    def complete_grad(self) -> Array:
        """The gradient, once that of the slab is complete."""
        return self.grad


class Runs(Buffers):
    """The runs of slabs; a segment that the rule `alone` picks is a run by itself."""

    def __init__(self, slabs: Sequence[FlatBuffer], alone: Callable[[Segment], bool]):
        self.whole = slabs if isinstance(slabs, Buffers) else Buffers(slabs)
        for slab in slabs:
            groups = groupby(slab.segments, lambda segment: segment.name if alone(segment) else "")
            self += [Run(slab, [*segments], bool(name)) for name, segments in groups] \
                or [Run(slab, [], False)]

    def named_state(self, name: str, states: Sequence[dict[str, Array]]) -> dict[str, np.ndarray]:
        """A host copy of one state by parameter name, 0 for runs without it.  Collective."""
        values = {slab: np.zeros_like(slab.data) for slab in self.whole}
        for run, state in zip(self, states):
            if name in state:
                values[run.slab][run.place] = to_device_of(state[name], run.data)
        return self.whole.named([*values.values()])
