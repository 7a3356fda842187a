"""The bytes that each axis of a mesh sends over each link, counted from a trace.

    traffic = bytes_by_axis(trace, mesh)        {"tp": {(0, 1): 4096, (1, 0): 4096}, "dp": …}

A message belongs to the axis along which the positions of its two ranks differ.
"""

from ..mesh import DeviceMesh
from ..trace import Trace

Traffic = dict[str, dict[tuple[int, int], int]]


def bytes_by_axis(trace: Trace, mesh: DeviceMesh) -> Traffic:
    """Bytes of each axis over each link (source, dest); both are ranks of the mesh.

    Messages labelled "control", and messages from or to other ranks, do not count.  If two ranks
    differ along several axes, the names of these are joined: "pp dp".
    """
    number = {mesh.comm.world_rank_of(rank): rank for rank in range(mesh.comm.size)}
    found: Traffic = {axis: {} for axis in mesh.axes}
    for message in trace.select():
        if message.source not in number or message.dest not in number:
            continue
        link = number[message.source], number[message.dest]
        a, b = map(mesh.coordinates_of, link)
        links = found.setdefault(" ".join(axis for axis in mesh.axes if a[axis] != b[axis]), {})
        links[link] = links.get(link, 0) + message.num_bytes
    return found


def between_nodes(traffic: Traffic, mesh: DeviceMesh) -> int:
    """Bytes of all axes that cross from one node to another."""
    return sum(num_bytes for links in traffic.values() for (source, dest), num_bytes
               in links.items() if mesh.comm.node_of(source) != mesh.comm.node_of(dest))
