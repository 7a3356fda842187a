"""Bytes by axis: who sent them, over which link, and what left a node."""

import numpy as np

from minipar.comm import Cluster, Trace
from minipar.comm.collectives import all_reduce
from minipar.comm.cost.traffic import between_nodes, bytes_by_axis
from minipar.comm.mesh import DeviceMesh


def test_each_message_belongs_to_its_axis():
    def body(comm):
        mesh = DeviceMesh(comm, pp=2, dp=2, tp=2)
        comm.start_trace()
        all_reduce(mesh["tp"], np.zeros(64), algorithm="ring")
        if mesh.coordinate("pp") == 0:
            mesh["pp"].send(np.zeros(3), 1)
        else:
            mesh["pp"].recv(np.zeros(3), 0)
        with mesh["dp"].labelled("control"):
            all_reduce(mesh["dp"], np.zeros(64))
        if comm.rank in (0, 7):                 # no two of their coordinates are the same
            comm.sendrecv(np.zeros(2), 7 - comm.rank, np.zeros(2), 7 - comm.rank)
        return mesh, comm.stop_trace()
    results = Cluster(nodes=2, devices_per_node=4).run(body)[0]
    traffic = bytes_by_axis(Trace.merged(trace for _, trace in results), results[0][0])
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert traffic == {"tp": {link: 512 for a, b in pairs for link in ((a, b), (b, a))}, "dp": {},
                       "pp": {(rank, rank + 4): 24 for rank in range(4)},
                       "pp dp tp": {(0, 7): 16, (7, 0): 16}}
    assert between_nodes(traffic, results[0][0]) == 4 * 24 + 2 * 16


def test_a_mesh_over_some_of_the_ranks():
    """Its links are between its own ranks: the world's 2, 3, 6 and 7 are 0, 1, 2 and 3."""
    def body(comm):
        part = comm.split(comm.rank % 4 // 2)
        mesh = DeviceMesh(part, pp=2, tp=2)
        comm.start_trace()
        all_reduce(mesh["tp"], np.zeros(64), algorithm="ring")
        if comm.rank in (1, 2):                 # one in the mesh, one not
            comm.sendrecv(np.zeros(2), 3 - comm.rank, np.zeros(2), 3 - comm.rank)
        return mesh, comm.stop_trace()
    results = Cluster(nodes=2, devices_per_node=4).run(body)[0]
    for rank in (0, 2):
        traffic = bytes_by_axis(Trace.merged(trace for _, trace in results), results[rank][0])
        assert traffic == {"pp": {}, "tp": dict.fromkeys(
            [(0, 1), (1, 0), (2, 3), (3, 2)], 512)}
