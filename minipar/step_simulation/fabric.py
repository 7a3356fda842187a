"""The links of a cluster file: what a message takes between two of its GPUs.

    node 0  [0]══[1]═ … ═[7]        within a node: a port for each GPU and direction
             │    │       │
             └────┴── … ──┴──       NICs to other nodes: a port for each GPU; where several GPUs
                                    have one NIC, each port has a share of its bandwidth

Messages of one collective leave a node by the NICs of all its ranks there, as NCCL's rings do.
With g ranks in the node the collective has g times the bandwidth of one NIC, but at most the
bandwidth within the node.  Exchanges along pp and ep are no rings: each rank sends by its own NIC.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..plan.cluster import ClusterSpec
from ..plan.time.messages import nic

PORTS = NEAR, FAR = 0, 1


class FabricLink(NamedTuple):
    """One direction: its port, seconds of latency, bytes per second."""

    port: int
    latency: float
    bandwidth: float


class Fabric:
    """The links of `cluster`; `slow` maps (source, dest) to the factor by which it is slower."""

    def __init__(self, cluster: ClusterSpec, slow: Mapping[tuple[int, int], float] | None = None):
        self.cluster, self.slow = cluster, slow or {}

    @property
    def shares_cores(self) -> bool:
        """True if the cluster file has cores, and fewer than a node has ranks."""
        return 0 < self.cluster.cores < self.cluster.per_node

    def node_of(self, rank: int) -> int:
        """The number of the node of a rank."""
        return rank // self.cluster.per_node

    def link(self, source: int, dest: int, members: Sequence[int],
             axes: Sequence[str]) -> FabricLink:
        """The link of a message in a collective of `members`, along `axes` of the mesh.

        The share that the software hides of tp's and pp's messages takes no time.
        """
        cluster, software = self.cluster, self.cluster.software
        within, near = cluster.link * software.link, self.node_of(source) == self.node_of(dest)
        is_pipeline = [*axes] == ["pp"]
        if near:
            bandwidth = within
        else:
            here = sum(self.node_of(member) == self.node_of(source) for member in members)
            nics = 1 if is_pipeline or [*axes] == ["ep"] else here
            bandwidth = min(within, nics * nic(cluster))
        hidden = (software.pp_overlap if is_pipeline
                  else software.tp_overlap if [*axes] == ["tp"] else 0.0)
        latency = (software.latency if is_pipeline else software.latency_rank) * (1 - hidden)
        slower = self.slow.get((source, dest), 1.0)
        return FabricLink(NEAR if near else FAR, latency, bandwidth / (1 - hidden) / slower)
