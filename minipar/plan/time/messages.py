"""Seconds of messages: a group of ranks that share nodes goes as fast as its slowest links.

    node 0  [0]══[1]═ … ═[7]          within a node: the link
             │    │       │
    node 1  [8]══[9]═ … ═[15]         between: each of the group's ranks in a node has a NIC

Collectives are rings: an all-gather and a reduce-scatter of n bytes send n (p-1)/p each, an
all-reduce both (`comm/cost/textbook.py`).
"""

from ..cluster import Cluster


def rate(c: Cluster, size: int, stride: int) -> float:
    """Bytes per second of a ring over `size` ranks that are `stride` ranks apart."""
    near = ranks_in_node(c, size, stride)
    within = c.link * c.software.link
    return within if near >= size else min(within, near * nic(c))


def nic(c: Cluster) -> float:
    """Bytes per second of a GPU's NIC, of its share of one that several GPUs have."""
    return c.nic * c.software.nic / c.nic_shared_by


def ranks_in_node(c: Cluster, size: int, stride: int) -> int:
    """The ranks of such a group that share a node."""
    return max(1, min(size, c.per_node // stride))


def ring(c: Cluster, size: int, stride: int, num_bytes: float, passes: int = 1) -> float:
    """Seconds of `passes` gathers or scatters of `num_bytes` over `size` ranks."""
    if size == 1:
        return 0.0
    sent = num_bytes * (size - 1) / size
    return passes * (sent / rate(c, size, stride) + latency(c, size))


def latency(c: Cluster, size: int) -> float:
    """Seconds of a collective of no bytes."""
    return c.software.latency + c.software.latency_rank * size


def neighbour(c: Cluster, num_bytes: float) -> float:
    """Seconds of a message to the next pipeline stage, in another node if there are several."""
    return num_bytes / (c.link * c.software.link if c.nodes == 1 else nic(c)) + c.software.latency
