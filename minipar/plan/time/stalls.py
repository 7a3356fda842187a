"""Stalls: a measured pipeline loses time at each message, or it does not; no layout says which.

Runs of the same size fall into two groups.  The plan says the seconds of both, and how many of the
measured runs stalled.
"""

from typing import NamedTuple

from ...nn import GPTConfig
from ..cluster import Cluster
from ..layout import Layout
from .step_time import message_bytes, step_time


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
    """What a layout cannot tell: a large pipeline stalls, or it does not."""
    usual, share = step_time(c, model, e).seconds, stall_share(c, model, e)
    stalled = step_time(c, model, e, stalls=True).seconds if share else usual
    return StallRange(usual, stalled, share)


def stall_share(c: Cluster, model: GPTConfig, e: Layout) -> float:
    """The share of measured pipelines of that size that stalled.

    The software's table says it by the number of nodes.  Small messages stall a third as often,
    except in the largest clusters.  Where tp reaches over four nodes, as many stall as there.
    """
    table = c.software.stalled
    if e.pp == 1 or not table:
        return 0.0
    if e.tp >= 4 * c.per_node:
        return table[-1][1]
    share = max((share for nodes, share in table if c.nodes >= nodes), default=0.0)
    small = message_bytes(model, e) < c.software.stalls_from and c.nodes < table[-1][0]
    return share / 3 if small else share
