"""Links that are not all alike: fast within a node, slow between nodes, a little late at random.

    node 0  [0]══[1]──────[2]══[3]  node 1        ══ within: 1 µs, 100 GB/s
                                                  ── between: 10 µs, 10 GB/s

    cluster = Cluster(nodes=2, devices_per_node=2,
                      links=Links(within=Link(1e-6, 1e11), between=Link(1e-5, 1e10)))

A message of n bytes over a link takes latency + n / bandwidth, and one more delay, drawn anew for
each message from an exponential distribution, where `delay` says its mean.  Delays come from a
generator seeded by (seed, source, dest): the same seed gives the same run, whatever else changes.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Link(NamedTuple):
    """`latency` in seconds, `bandwidth` in bytes per second."""

    latency: float
    bandwidth: float

    def worse(self, other: "Link") -> "Link":
        """The longer latency and the lower bandwidth of both."""
        return Link(max(self.latency, other.latency), min(self.bandwidth, other.bandwidth))


@dataclass
class Links:
    """The links of a Cluster: `within` a node, `between` nodes, each the cluster's own if None.

    `special` maps (source, dest), world numbers, to the Link of that one direction.  `delay` is
    the mean of the random delay of each message in seconds, `seed` what it is drawn from.
    """

    within: Link | None = None
    between: Link | None = None
    special: dict[tuple[int, int], Link] = field(default_factory=dict)
    delay: float = 0.0
    seed: int = 0

    def begin(self, cluster: Any) -> None:
        """At the start of a run."""
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
        """(within a node, between nodes): as slow as the slowest link among ranks `members`.

        Mean random delays are part of the latency.
        """
        here, found = set(members), [self._within, self._between]
        for (source, dest), link in self.special.items():
            if source in here and dest in here:
                far = source // self._per_node != dest // self._per_node
                found[far] = found[far].worse(link)
        within, between = (Link(a + self.delay, b) for a, b in found)
        return within, between

    def carry(self, source: int, dest: int, num_bytes: int, start: float) -> tuple[float, float]:
        """(when both ports are free again, when a message that begins at `start` is there)."""
        link = self.find(source, dest)
        free = start + num_bytes / link.bandwidth
        if not self.delay:
            return free, free + link.latency
        pair = source, dest
        if pair not in self._draws:
            self._draws[pair] = random.Random(f"{self.seed} {source} {dest}").expovariate
        return free, free + link.latency + self._draws[pair](1 / self.delay)
