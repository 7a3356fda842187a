"""Reasons for a layout: what binds it, and what one change would cost.

    tp 4 instead of 8      +12 % seconds     most of it: gradients
    microbatch 2 …         does not fit: 93 GiB of 76

An axis grows at the cost of dp.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from ..nn import GPTConfig
from .cluster import Cluster
from .layout import AXES, KINDS, Layout, find_fault
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


def changes(c: Cluster, model: GPTConfig, e: Layout) -> list[Change]:
    """Layouts that differ in one choice, with the part that makes most of the difference."""
    before = parts(c, model, e)
    made = []
    for what, other in neighbours(e):
        if find_fault(other, model, c.num_gpus):
            continue
        found = predict(c, model, other)
        if found.num_bytes > c.usable:
            reason = f"does not fit: {found.num_bytes / GIB:.0f} GiB of {c.usable / GIB:.0f}"
        else:
            after = parts(c, model, other)
            more = {name: after[name] - before[name] for name in after}
            choose = max if found.seconds > sum(before.values()) else min
            name = choose(more, key=more.__getitem__)
            reason = f"{name} {more[name]:+.2g} s"
        made.append(Change(what, other, found.seconds, found.num_bytes, reason))
    return made


def parts(c: Cluster, model: GPTConfig, e: Layout) -> dict[str, float]:
    """Seconds of the step that is expected, by part."""
    return step_time(c, model, e, stall_share(c, model, e) > 0.5).parts


def neighbours(e: Layout) -> Iterator[tuple[str, Layout]]:
    """Layouts that differ in one choice, an axis at the cost of dp."""
    for axis in AXES[1:]:
        old = getattr(e, axis)
        for new in (old // 2, old * 2):
            if axis == "ep" and new:
                yield f"{axis} {new} instead of {old}", replace(e, ep=new)
            elif new and e.dp * old % new == 0:
                changed = replace(e, **{axis: new, "dp": e.dp * old // new})
                if changed.pp == 1:
                    changed = replace(changed, schedule="1f1b", v=1)
                yield f"{axis} {new} instead of {old}", replace(changed, sp=changed.tp > 1)
    for new in (e.microbatch // 2, e.microbatch * 2):
        if new:
            yield f"microbatch {new} instead of {e.microbatch}", replace(e, microbatch=new)
    for name, values in CHANGES:
        if name == "schedule" and e.pp == 1 or name == "kind" and e.dp == 1:
            continue
        for value in values:
            if value != getattr(e, name):
                other: dict[str, Any] = {name: value} | ({"v": 1} if name == "schedule" else {})
                yield f"{name} {value} instead of {getattr(e, name)}", replace(e, **other)


def binding(c: Cluster, model: GPTConfig, e: Layout, num_bytes: float) -> str:
    """A sentence on what limits a layout: the largest part beside the products, and memory."""
    found = step_time(c, model, e, stall_share(c, model, e) > 0.5)
    useful = ("products", "attention", "head and loss")
    rest = {name: part for name, part in found.parts.items() if name not in useful}
    name = max(rest, key=lambda name: rest[name])
    share = sum(found.parts[key] for key in useful) / found.seconds
    return (f"{share:.0%} of the step are products and attention; the largest other part is "
            f"{name}, {rest[name] / found.seconds:.0%}; memory is {num_bytes / c.usable:.0%} full")
