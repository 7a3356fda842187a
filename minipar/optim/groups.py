"""Parameter groups: a rule picks the parameters with a weight decay or learning rate of their own.

    AdamW(slabs, 3e-4, weight_decay=0.1, groups=[NO_DECAY_FOR_VECTORS])

    slab     [ ln_1.weight  ln_1.bias │ c_attn.weight │ c_attn.bias │ c_proj.weight │ …
    spans    [ ───────── 0.0 ──────── │ ──── 0.1 ──── │ ─── 0.0 ─── │ ──── 0.1 ──── │

A rule sees a Segment, which knows the name and the shape of the whole parameter.  So a flat piece
of a matrix counts as part of a matrix, wherever the rest is.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from ..backend import Array, l2_blocks
from ..nn.slab import FlatBuffer, Segment


class ParameterGroup(NamedTuple):
    """The parameters that `rule(segment)` picks, their weight decay and learning-rate factor."""

    rule: Callable[[Segment], bool]
    weight_decay: float | None = None       # None: the optimizer's
    lr_scale: float = 1.0                   # times the optimizer's lr


class GroupSpan(NamedTuple):
    """Elements start … stop - 1, all of one group."""

    start: int
    stop: int
    weight_decay: float
    lr_scale: float

    def view(self, array: Array) -> Array:
        """The span's elements of an array (n,)."""
        return array[self.start:self.stop]


def is_vector(segment: Segment) -> bool:
    """True for a bias (that of experts has two axes), and for the gain of a norm."""
    return len(segment.global_shape) < 2 or segment.name.endswith(".bias")


def is_hidden_matrix(segment: Segment) -> bool:
    """True for a weight, also of experts, but not for a GPT's embeddings and head (by name)."""
    return not is_vector(segment) and not segment.name.endswith(NOT_HIDDEN)


NOT_HIDDEN = ("wte.weight", "wpe.weight", "lm_head.weight")
NO_DECAY_FOR_VECTORS = ParameterGroup(is_vector, weight_decay=0.0)


def spans_of(segments: Iterable[Segment], groups: Sequence[ParameterGroup],
             weight_decay: float) -> list[GroupSpan]:
    """The spans of a slab; neighbours with equal decay and factor are one span."""
    spans: list[GroupSpan] = []
    for segment in segments:
        span = span_of(segment, groups, weight_decay)
        if spans and spans[-1].stop == span.start and spans[-1][2:] == span[2:]:
            span = span._replace(start=spans.pop().start)
        spans.append(span)
    return spans


def span_of(segment: Segment, groups: Sequence[ParameterGroup], weight_decay: float) -> GroupSpan:
    """The span of one parameter, in the first group whose rule picks it, if there is one."""
    everything = ParameterGroup(lambda segment: True)
    group = next(group for group in (*groups, everything) if group.rule(segment))
    return GroupSpan(segment.start, segment.stop, weight_decay if group.weight_decay is None else
                     group.weight_decay, group.lr_scale)


def spans_within(spans: Sequence[GroupSpan], start: int, stop: int) -> list[GroupSpan]:
    """The parts of ascending `spans` that lie in start … stop - 1, counted from start."""
    first = bisect_right(spans, start, key=lambda span: span.stop)
    last = bisect_left(spans, stop, key=lambda span: span.start)
    return [span._replace(start=max(span.start, start) - start, stop=min(span.stop, stop) - start)
            for span in spans[first:last]]


def spans_of_blocks(slabs: Sequence[FlatBuffer], groups: Sequence[ParameterGroup],
                    weight_decay: float) -> list[list[list[GroupSpan]]]:
    """For each slab, for each of its blocks: the spans with weight decay or an lr of their own.

    Raises ValueError for a weight decay or a factor of the learning rate that is negative.
    """
    for name, value in [("weight_decay", weight_decay), *(
            (name, getattr(group, name) or 0.0) for group in groups
            for name in ("weight_decay", "lr_scale"))]:
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} is a number >= 0, not {value}")
    found = []
    for slab in slabs:
        spans = [span for span in spans_of(slab.segments, groups, weight_decay)
                 if span.weight_decay or span.lr_scale != 1]
        limits = accumulate((block.shape[0] for (block,) in l2_blocks(slab.data)), initial=0)
        found.append([spans_within(spans, start, stop) for start, stop in pairwise(limits)])
    return found


def add_decay(spans: Sequence[GroupSpan], p: Array, g: Array, out: Array) -> Array:
    """g + weight_decay p, in `out`; all arrays are of one block (n,)."""
    if spans[0][:2] != (0, p.shape[0]):
        out[...] = 0
    for span in spans:
        np.multiply(span.view(p), span.weight_decay, out=span.view(out))
    return np.add(out, g, out=out)


def apply_groups(spans: Sequence[GroupSpan], p: Array, update: Array, decoupled_lr: float) -> None:
    """Scale `update`, to be subtracted from p, by each span's lr_scale; shrink p by its decay.

    `decoupled_lr` is the learning rate of decoupled decay; 0 where the gradient includes decay.
    """
    for span in spans:
        if span.lr_scale != 1:
            update_here = span.view(update)
            update_here *= span.lr_scale
        if decoupled_lr:
            p_here = span.view(p)
            p_here *= 1 - decoupled_lr * span.lr_scale * span.weight_decay
