"""Links that differ: fast within a node, slow between nodes, and random delays on request.

    node 0  [0]══[1]──────[2]══[3]  node 1        ══ within: 1 µs, 100 GB/s
                                                  ── between: 10 µs, 10 GB/s

    cluster = Cluster(nodes=2, devices_per_node=2,
                      links=Links(within=Link(1e-6, 1e11), between=Link(1e-5, 1e10)))

A message of n bytes over a link takes latency + n / bandwidth.  If `delay` is given, each message
takes an additional random time from an exponential distribution with this mean.  The generator of
each link is seeded by (seed, source, dest), so the same seed gives the same run.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


def count_ranks(num_ranks: int | None, nodes: int | None,
                devices_per_node: int | None) -> tuple[int, int]:
    """(ranks, devices per node) of a cluster, from the arguments given; one node by default."""
    if num_ranks is None:
        num_ranks = (nodes or 1) * (devices_per_node or 1)
    if num_ranks < 1:
        raise ValueError(f"a cluster has at least 1 rank, not {num_ranks}")
    if devices_per_node is None:
        devices_per_node = max(1, num_ranks // (nodes or 1))
    if num_ranks != (nodes or num_ranks // devices_per_node) * devices_per_node:
        raise ValueError(f"{num_ranks} ranks do not fill {nodes or 'whole'} nodes of "
                         f"{devices_per_node} devices: choose Cluster(nodes=n, "
                         "devices_per_node=d), which has n * d ranks")
    return num_ranks, devices_per_node


class Link(NamedTuple):
    """`latency` in seconds, `bandwidth` in bytes per second."""

    latency: float
    bandwidth: float

    def worse(self, other: "Link") -> "Link":
        """The higher latency and the lower bandwidth of both."""
        return Link(max(self.latency, other.latency), min(self.bandwidth, other.bandwidth))


@dataclass
class Links:
    """The links of a Cluster: `within` a node, `between` nodes, each the cluster's own if None.

    `special` maps (source, dest), world numbers, to the Link of that one direction.  `delay` is
    the mean of the random delay of each message in seconds, `seed` the seed of these delays.
    """

    within: Link | None = None
    between: Link | None = None
    special: dict[tuple[int, int], Link] = field(default_factory=dict)
    delay: float = 0.0
    seed: int = 0

    def begin(self, cluster: Any) -> None:
        """Begin a run on `cluster`, whose latency and bandwidth are the defaults."""
        common = Link(cluster.latency, cluster.bandwidth)
        self._within, self._between = self.within or common, self.between or common
        self._per_node = cluster.devices_per_node
        self._draws: dict[tuple[int, int], Callable[[float], float]] = {}

    def find(self, source: int, dest: int) -> Link:
        """The link from rank `source` to rank `dest` of a cluster that runs."""
        if self.special and (source, dest) in self.special:
            return self.special[source, dest]
        near = source // self._per_node == dest // self._per_node
        return self._within if near else self._between

    def slowest(self, members: Iterable[int]) -> tuple[Link, Link]:
        """(within a node, between nodes): the slowest links among the world ranks `members`.

        Their latency includes the mean of the random delays.
        """
        here, found = set(members), [self._within, self._between]
        for (source, dest), link in self.special.items():
            if source in here and dest in here:
                far = source // self._per_node != dest // self._per_node
                found[far] = found[far].worse(link)
        within, between = (Link(a + self.delay, b) for a, b in found)
        return within, between

    def carry(self, source: int, dest: int, num_bytes: int, start: float) -> tuple[float, float]:
        """(time when both ports are free again, time when the message has arrived)."""
        link = self.find(source, dest)
        free = start + num_bytes / link.bandwidth
        if not self.delay:
            return free, free + link.latency
        pair = source, dest
        if pair not in self._draws:
            self._draws[pair] = random.Random(f"{self.seed} {source} {dest}").expovariate
        return free, free + link.latency + self._draws[pair](1 / self.delay)
