"""Seconds of messages: a group of ranks that share nodes goes as fast as its slowest links.

    node 0  [0]══[1]═ … ═[7]          within a node: the link
             │    │       │
    node 1  [8]══[9]═ … ═[15]         between: each of the group's ranks in a node has a NIC

Collectives are rings: an all-gather and a reduce-scatter of n bytes send n (p-1)/p each, an
all-reduce both (`comm/cost/textbook.py`).
"""

from ..cluster import ClusterSpec


def rate(cluster: ClusterSpec, size: int, stride: int) -> float:
    """Bytes per second of a ring over `size` ranks that are `stride` ranks apart."""
    near = ranks_in_node(cluster, size, stride)
    within = link(cluster)
    return within if near >= size else min(within, near * nic(cluster))


def link(cluster: ClusterSpec) -> float:
    """Bytes per second between GPUs of a node."""
    return cluster.link * cluster.software.link


def nic(cluster: ClusterSpec) -> float:
    """Bytes per second of a GPU's NIC, or of its share of a NIC that several GPUs have."""
    return cluster.nic * cluster.software.nic / cluster.nic_shared_by


def ranks_in_node(cluster: ClusterSpec, size: int, stride: int) -> int:
    """The number of ranks in one node, of `size` ranks that are `stride` ranks apart."""
    return max(1, min(size, cluster.per_node // stride))


def ring(cluster: ClusterSpec, size: int, stride: int, num_bytes: float, passes: int = 1) -> float:
    """Seconds of `passes` gathers or scatters of `num_bytes` over `size` ranks."""
    if size == 1:
        return 0.0
    sent = num_bytes * (size - 1) / size
    return passes * (sent / rate(cluster, size, stride) + latency(cluster, size))


def latency(cluster: ClusterSpec, size: int) -> float:
    """Seconds of a collective of no bytes."""
    return cluster.software.latency + cluster.software.latency_rank * size


def neighbour(cluster: ClusterSpec, num_bytes: float) -> float:
    """Seconds of a message to the next pipeline stage, in another node if there are several."""
    per_second = link(cluster) if cluster.nodes == 1 else nic(cluster)
    return num_bytes / per_second + cluster.software.latency
