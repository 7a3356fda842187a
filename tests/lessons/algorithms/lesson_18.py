"""Lesson 18: on meshes of all ranks; `size` is unused."""

from types import SimpleNamespace

import numpy as np

from minipar.comm import Cluster
from minipar.comm.collectives import all_gather
from minipar.comm.cost.traffic import between_nodes
from minipar.comm.mesh import DeviceMesh
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from tests.lessons.algorithms import Case, says

AXES, SENT, WIDTH, ROWS = ("pp", "dp", "cp"), {"pp": 3, "dp": 40, "cp": 500}, 12, 10


def shapes(comm):
    """Meshes of three axes, whose sizes multiply to the number of ranks."""
    halves = (2, comm.size // 2) if comm.size % 2 == 0 else (1, comm.size)
    return [dict(zip(AXES, sizes)) for sizes in ((*halves, 1), (1, *halves), (halves[1], 1,
                                                                             halves[0]))]


def values(places):
    return [np.array([place[axis] for axis in AXES]) for place in places]


def members(comm, axis_comm):
    """The ranks of comm that are in a communicator, in its order."""
    return all_gather(axis_comm, np.array([comm.rank]))


def by_links(comm, per_node):
    """Bytes between nodes of `per_node` ranks, for each shape, link by link."""
    found = []
    for shape in shapes(comm):
        mesh = DeviceMesh(comm, order=AXES, **shape)
        traffic = {axis: {} for axis in AXES}
        for axis in AXES:
            for ring in mesh.ranks_along(axis):
                for a, b in zip(ring, [*ring[1:], ring[0]]):
                    traffic[axis][a, b] = SENT[axis]
        on_nodes = SimpleNamespace(comm=SimpleNamespace(node_of=lambda rank: rank // per_node))
        found.append(np.array(between_nodes(traffic, on_nodes)))
    return found


def data(comm):
    rng = np.random.default_rng(0)
    return (rng.normal(0, .3, (4, WIDTH, WIDTH)), rng.random((ROWS, WIDTH)),
            rng.integers(0, WIDTH, ROWS))


def halves(comm):
    tp = 2 - comm.size % 2
    return {"dp": comm.size // tp, "tp": tp}


def own_step(dp_and_tp, comm, size, names):
    shape = halves(comm)
    return dp_and_tp(*(names["along"](comm, axis, shape) for axis in shape), *data(comm))


def library_step(comm, size):
    from support.plain_mlp import mlp_of
    weights, x, labels = data(comm)
    model, mesh = mlp_of(weights), DeviceMesh(comm, **halves(comm))
    strategy = make_strategy("ddp", model, mesh)
    rows = np.array(strategy.rows(ROWS), int)
    strategy.forward_backward([Microbatch(x[rows], labels[rows], rows)])
    grads = strategy.slabs.named([slab.grad for slab in strategy.slabs])
    return [np.array_split(grads[f"{2 * i}.weight"], mesh["tp"].size, axis=1 - i % 2)[
        mesh.coordinate("tp")] for i in range(4)]


CASES = [
    Case("coordinates", lambda own, comm, size, names: values(
        own(rank, shape) for shape in shapes(comm) for rank in range(comm.size)),
        lambda comm, size: values(
            DeviceMesh(comm, order=AXES, **shape).coordinates_of(rank) for shape in shapes(comm)
            for rank in range(comm.size)), (1,)),
    Case("rank_of", lambda own, comm, size, names: [
        np.array(own(dict(zip(AXES, place)), shape)) for shape in shapes(comm)
        for place in np.ndindex(*shape.values())],
        lambda comm, size: [rank for shape in shapes(comm)
                            for rank in DeviceMesh(comm, order=AXES, **shape).grid.ravel()], (1,)),
    Case("along", lambda own, comm, size, names: [
        members(comm, own(comm, axis, shape)) for shape in shapes(comm) for axis in AXES],
        lambda comm, size: [members(comm, DeviceMesh(comm, order=AXES, **shape)[axis])
                            for shape in shapes(comm) for axis in AXES], (1,)),
    Case("bytes_between_nodes", lambda own, comm, per_node, names: [
        np.array(own(SENT, shape, per_node)) for shape in shapes(comm)], by_links, (1, 2, 3)),
    Case("dp_and_tp", own_step, library_step, (1,), 1e-13),
]
PARTS = {"best_nesting"}                        # a minimum; checked with the bytes of a GPT


def check_change(names):
    """On 2 × 2 the axes change names; on three axes four ranks meet."""
    def body(comm):
        square, cube = {"dp": 2, "tp": 2}, {"pp": 2, "dp": 2, "tp": 2}
        if comm.size == 4:
            mesh = DeviceMesh(comm, **square)
            for axis, other in (("dp", "tp"), ("tp", "dp")):
                assert np.array_equal(members(comm, names["along"](comm, axis, square)),
                                      members(comm, mesh[other]))
        else:
            return members(comm, names["along"](comm, "pp", cube)).tolist()
    Cluster(4).run(body)
    assert Cluster(8).run(body)[0][0] == [0, 1, 2, 3]
    says("18", "dp gets the ranks 0 1 and 2 3", "pp gets 0 1 2 3, which are a whole stage")
