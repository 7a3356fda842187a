"""Stalls: a measured run loses time at each message, or it does not; no layout says which.

A pipeline that stalls loses `stall` seconds per microbatch and neighbour.  A run without a
pipeline, on the largest clusters, launches its tp collectives as late as if it were one.  Runs of
the same size fall into two groups: the plan says the seconds of both, and how many of them stalled.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ...nn import GPTConfig
from ..cluster import Cluster
from ..layout import Layout
from ..memory import memory, total
from .step_time import message_bytes, step_time

NEARLY_FULL = 0.9       # of the usable memory, from which pipelines stall


class StallRange(NamedTuple):
    """Seconds of a step without and with stalls, and the share of such runs that stalled."""

    usual: float
    stalled: float
    share: float

    @property
    def seconds(self) -> float:
        """The likelier one."""
        return self.stalled if self.share > 0.5 else self.usual


def stall_range(c: Cluster, model: GPTConfig, e: Layout) -> StallRange:
    """What a layout cannot tell: a large run stalls, or it does not."""
    usual, share = step_time(c, model, e).seconds, stall_share(c, model, e)
    stalled = step_time(c, model, e, stalls=True).seconds if share else usual
    return StallRange(usual, stalled, share)


def stall_share(c: Cluster, model: GPTConfig, e: Layout) -> float:
    """The share of measured runs like it that stalled, by the tables of the software.

    Small messages stall a third as often, except in the largest clusters.  Where tp reaches over
    four nodes, as many stall as there.  All pipelines stall whose memory is nearly full: the
    allocator empties its cache, and asks the driver again.
    """
    s, is_wide = c.software, e.tp >= 4 * c.per_node
    if e.pp == 1:
        return 0.0 if is_wide or e.tp == 1 else last_share(s.stalled_alone, c.nodes)
    if not s.stalled:
        return 0.0
    largest, most = s.stalled[-1]
    if is_wide:
        return most
    if total(c, memory(c, model, e)) > NEARLY_FULL * c.usable:
        return 1.0
    if e.dp > 1 and e.kind == "ddp":
        return last_share(s.stalled_ddp, c.nodes)
    is_small = message_bytes(model, e) < s.stalls_from and c.nodes < largest
    return last_share(s.stalled, c.nodes) / (3 if is_small else 1)


def last_share(table: Sequence[tuple[int, float]], nodes: int) -> float:
    """The share of the last row of a table whose number of nodes is reached; 0 before the first."""
    return max((row for row in table if nodes >= row[0]), default=(0, 0.0))[1]
