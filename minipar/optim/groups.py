"""Parameter groups: a rule picks parameters, for which weight decay or learning rate differ.

    AdamW(slabs, 3e-4, weight_decay=0.1, groups=[NO_DECAY_FOR_VECTORS])

    slab     [ ln_1.weight  ln_1.bias │ c_attn.weight │ c_attn.bias │ c_proj.weight │ …
    spans    [ ───────── 0.0 ──────── │ ──── 0.1 ──── │ ─── 0.0 ─── │ ──── 0.1 ──── │

A rule sees a Segment, which knows the name and the shape of the whole parameter.  So a shard that
holds a flat piece of a matrix treats it as part of a matrix, wherever the rest is.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..backend import Array
from ..nn.slab import Segment


class ParameterGroup(NamedTuple):
    """The parameters that `rule(segment)` picks, their weight decay and learning-rate factor."""

    rule: Callable[[Segment], bool]
    weight_decay: float | None = None       # None: the optimizer's
    lr_scale: float = 1.0                   # times the optimizer's lr


class Span(NamedTuple):
    """Elements start … stop - 1, all of one group."""

    start: int
    stop: int
    weight_decay: float
    lr_scale: float

    def view(self, array: Array) -> Array:
        """The span's elements of an array (n,)."""
        return array[self.start:self.stop]


def is_vector(segment: Segment) -> bool:
    """True if a parameter has at most one axis: a bias, or the gain of a norm."""
    return len(segment.global_shape) < 2


NO_DECAY_FOR_VECTORS = ParameterGroup(is_vector, weight_decay=0.0)


def spans_of(segments: Iterable[Segment], groups: Sequence[ParameterGroup],
             weight_decay: float) -> list[Span]:
    """The spans of a slab, neighbours of one group joined; the first group that picks wins."""
    everything = ParameterGroup(lambda segment: True)
    spans: list[Span] = []
    for segment in segments:
        group = next(group for group in (*groups, everything) if group.rule(segment))
        decay = weight_decay if group.weight_decay is None else group.weight_decay
        span = Span(segment.start, segment.stop, decay, group.lr_scale)
        if spans and spans[-1].stop == span.start and spans[-1][2:] == span[2:]:
            span = span._replace(start=spans.pop().start)
        spans.append(span)
    return spans


def within(spans: Sequence[Span], start: int, stop: int) -> list[Span]:
    """The parts of the ascending spans in elements start … stop - 1, counted from start."""
    first = bisect_right(spans, start, key=lambda span: span.stop)
    last = bisect_left(spans, stop, key=lambda span: span.start)
    return [span._replace(start=max(span.start, start) - start, stop=min(span.stop, stop) - start)
            for span in spans[first:last]]
