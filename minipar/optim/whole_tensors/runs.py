"""Runs: neighbouring parameters of a slab that an optimizer treats alike, with states of their own.

    slab     [ wte │ ln_1 … │ c_attn.weight │ c_attn.bias │ c_proj.weight │ …
    runs     [ ── others ── │ ── matrix ─── │ ── others ─ │ ── matrix ─── │ …
    states      2                1               2              1            arrays of that length

So Muon keeps one number for each element of a matrix, and AdamW two for each of the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from ...backend import Array, to_device_of
from ...nn.slab import Buffers, FlatBuffer, Segment


class SegmentRun:
    """Neighbouring segments of a slab, or of a piece, as a FlatBuffer; `alone` if a rule chose it.

    The first run stands for the slab: it completes the gradient, and has all `parameters`.
    """

    def __init__(self, slab: FlatBuffer, segments: Sequence[Segment], alone: bool):
        self.slab, self.alone = slab, alone
        start, stop = (segments[0].start, segments[-1].stop) if segments else (0, 0)
        self.place, self.parameters = slice(start, stop), () if start else slab.parameters
        self.segments = [replace(s, start=s.start - start, stop=s.stop - start) for s in segments]
        self.norm_comm, self.is_copy, self.zero_grad = slab.norm_comm, slab.is_copy, slab.zero_grad

    data = property(lambda self: self.slab.data[self.place])
    grad = property(lambda self: self.slab.grad[self.place])

    def complete_grad(self) -> Array:
        """The gradient, complete once the first run's is."""
        return self.grad if self.place.start else self.slab.complete_grad()[self.place]


class Runs(Buffers):
    """The runs of slabs; a segment that the rule `alone` picks is a run by itself."""

    def __init__(self, slabs: Sequence[FlatBuffer], alone: Callable[[Segment], bool]):
        self.whole, self.alone = slabs if isinstance(slabs, Buffers) else Buffers(slabs), alone
        for slab in slabs:
            groups = groupby(slab.segments, lambda segment: segment.name if alone(segment) else "")
            self += [SegmentRun(slab, [*segments], bool(name)) for name, segments in groups] \
                or [SegmentRun(slab, [], False)]

    def named_state(self, name: str, states: Sequence[dict[str, Array]],
                    alone: bool) -> dict[str, np.ndarray]:
        """Collective.  A host copy of one state of the parameters `alone`, or of the rest."""
        values = {slab: np.zeros_like(slab.data) for slab in self.whole}
        for run, state in zip(self, states):
            if name in state:
                values[run.slab][run.place] = to_device_of(state[name], run.data)
        return {key: array for key, array in self.whole.named([*values.values()]).items()
                if alone == self.alone(Segment(key, 0, array.size, (), array.shape))}
