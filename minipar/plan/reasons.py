"""Reasons for a layout: what binds it, and what one change would cost.

    tp 4 instead of 8      +12 % seconds     gradients +0.31 s
    microbatch 2 …         does not fit: 93 GiB of 76

An axis grows at the cost of dp; ep lies within dp.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from ..nn import GPTConfig
from .cluster import ClusterSpec
from .layout import AXES, KINDS, Layout, layout_fault
from .memory import GIB
from .search import predict
from .time.stalls import stall_share
from .time.step_time import step_time

CHANGES = (("remat", ("none", "full")), ("kind", KINDS), ("schedule", ("1f1b", "zb_h1")))


class Change(NamedTuple):
    """A layout that differs in one choice: its seconds, bytes, and why it is slower or faster."""

    what: str
    layout: Layout
    seconds: float
    num_bytes: float
    reason: str


def changes(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> list[Change]:
    """Layouts that differ in one choice, with the part that makes most of the difference."""
    before = parts(cluster, model, layout)
    made = []
    for what, other in neighbours(layout):
        if layout_fault(other, model, cluster.num_gpus):
            continue
        found = predict(cluster, model, other)
        if found.num_bytes > cluster.usable:
            reason = f"does not fit: {found.num_bytes / GIB:.0f} GiB of {cluster.usable / GIB:.0f}"
        else:
            after = parts(cluster, model, other)
            more = {name: after[name] - before[name] for name in after}
            choose = max if found.seconds > sum(before.values()) else min
            name = choose(more, key=more.__getitem__)
            reason = f"{name} {more[name]:+.2g} s"
        made.append(Change(what, other, found.seconds, found.num_bytes, reason))
    return made


def parts(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> dict[str, float]:
    """Seconds of the step by part, in the likelier case (time/stalls.py)."""
    return step_time(cluster, model, layout, stall_share(cluster, model, layout) > 0.5).parts


def neighbours(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Layouts that differ in one choice, with words for it; an axis grows at the cost of dp."""
    for axis in AXES[1:]:
        old = getattr(layout, axis)
        for new in (old // 2, old * 2):
            if axis == "ep" and new:
                yield f"{axis} {new} instead of {old}", replace(layout, ep=new)
            elif new and layout.dp * old % new == 0:
                changed = replace(layout, **{axis: new, "dp": layout.dp * old // new})
                if changed.pp == 1:
                    changed = replace(changed, schedule="1f1b", v=1)
                yield f"{axis} {new} instead of {old}", replace(changed, sp=changed.tp > 1)
    for new in (layout.microbatch // 2, layout.microbatch * 2):
        if new:
            yield (f"microbatch {new} instead of {layout.microbatch}",
                   replace(layout, microbatch=new))
    for name, values in CHANGES:
        if name == "schedule" and layout.pp == 1 or name == "kind" and layout.dp == 1:
            continue
        for value in values:
            if value != getattr(layout, name):
                other: dict[str, Any] = {name: value} | ({"v": 1} if name == "schedule" else {})
                yield f"{name} {value} instead of {getattr(layout, name)}", replace(layout, **other)


def binding(cluster: ClusterSpec, model: GPTConfig, layout: Layout, num_bytes: float) -> str:
    """A sentence on what limits a layout: the largest part that is no useful work, and memory."""
    found = step_time(cluster, model, layout, stall_share(cluster, model, layout) > 0.5)
    useful = ("products", "attention", "head and loss")
    rest = {name: part for name, part in found.parts.items() if name not in useful}
    name = max(rest, key=lambda name: rest[name])
    share = sum(found.parts[key] for key in useful) / found.seconds
    full = num_bytes / cluster.usable
    return (f"{share:.0%} of the step are products, attention, head and loss; the largest other "
            f"part is {name}, {rest[name] / found.seconds:.0%}; memory is {full:.0%} full")
