"""Stalls: a run loses time at each message, or it does not; the layout decides that only in part.

Stalls come on top of the bubble (step_time.py).  A pipeline that stalls loses `stall` seconds for
each microbatch and neighbouring stage.  Without a pipeline, a run that stalls launches its tp
collectives late, as runs with a pipeline do.  Runs of the same size fall into two groups, stalled
or not: the plan gives the seconds of both, and the share that stalled.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ...nn import GPTConfig
from ..cluster import ClusterSpec
from ..layout import Layout
from ..memory import memory, total
from .step_time import message_bytes, step_time

NEARLY_FULL = 0.9       # pipelines stall above this share of the usable memory


class StallRange(NamedTuple):
    """Seconds of a step without and with stalls, and the share of such runs that stalled."""

    usual: float
    stalled: float
    share: float

    @property
    def seconds(self) -> float:
        """The seconds of the likelier case."""
        return self.stalled if self.share > 0.5 else self.usual


def stall_range(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> StallRange:
    """The seconds of a step without and with stalls, and the share of such runs that stalled."""
    usual, share = step_time(cluster, model, layout).seconds, stall_share(cluster, model, layout)
    stalled = step_time(cluster, model, layout, stalls=True).seconds if share else usual
    return StallRange(usual, stalled, share)


def stall_share(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> float:
    """The share of measured runs like this layout that stalled, by the tables of the software.

        no pipeline             none without tp, or where tp spans four nodes; else a table
        no table of stalls      none
        memory is nearly full   all: the allocator empties its cache, and asks the driver again
        tp spans four nodes     as many as in the largest clusters
        DDP                     a table
        others                  a table; with small messages a third of that, except in the
                                largest clusters
    """
    software, is_wide = cluster.software, layout.tp >= 4 * cluster.per_node
    if layout.pp == 1:
        if is_wide or layout.tp == 1:
            return 0.0
        return last_share(software.stalled_alone, cluster.nodes)
    if not software.stalled:
        return 0.0
    largest, most = software.stalled[-1]
    if total(cluster, memory(cluster, model, layout)) > NEARLY_FULL * cluster.usable:
        return 1.0
    if is_wide:
        return most
    if layout.dp > 1 and layout.kind == "ddp":
        return last_share(software.stalled_ddp, cluster.nodes)
    is_small = message_bytes(model, layout) < software.stalls_from and cluster.nodes < largest
    return last_share(software.stalled, cluster.nodes) / (3 if is_small else 1)


def last_share(table: Sequence[tuple[int, float]], nodes: int) -> float:
    """The share of the last row of a table whose number of nodes is reached; 0 before the first."""
    return max((row for row in table if nodes >= row[0]), default=(0, 0.0))[1]
