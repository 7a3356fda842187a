"""Lesson 28: programs on a simulated cluster of their own; `size` is its number of ranks."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce
from minipar.comm.simulated.links import Link, Links
from minipar.step_simulation.rank_classes import find_classes
from tests.lessons.algorithms import Case, says

NEAR, FAR = (1e-6, 1e11), (1e-5, 1e10)


def link(source, dest):
    return NEAR if source // 4 == dest // 4 else FAR


def cluster(p):
    return Cluster(nodes=p // 4, devices_per_node=4, links=Links(Link(*NEAR), Link(*FAR)))


def mixed(rank, p):
    """All send to rank 0, which answers one after the other: ports and waits are contended."""
    yield 1e-5 * (rank % 3)
    if rank:
        sent = yield "send", 0, 1000 * rank
        came = yield "recv", 0, 500
        yield came
        yield sent
    else:
        halves = []
        for other in range(1, p):
            halves.append((yield "recv", other, 1000 * other))
            halves.append((yield "send", other, 500))
        yield from halves


def own_clocks(simulate, comm, p, names):
    clock = simulate({i: mixed(i, p) for i in range(p)}, link, range(p))
    return np.array([clock[i] for i in range(p)])


def library_clocks(comm, p):
    from support.lesson_28 import play
    return np.array(cluster(p).run(lambda comm: play(comm, mixed(comm.rank, p)))[0])


def own_ring(ring, comm, p, names):
    """Of 8 numbers a rank."""
    return max(names["simulate"]({i: ring(i, range(p), 64 * p) for i in range(p)}, link,
                                 range(p)).values())


def library_ring(comm, p):
    return cluster(p).run(lambda comm: all_reduce(comm, np.ones(8 * p), algorithm="ring"))[1]


def mesh_of(p):
    """A mesh of p ranks, in which one is slow if there are 24 of them."""
    from support.lesson_28 import Mesh
    return Mesh(p // 8, 8, slow=(11,) if p == 24 else ())


M, GRADIENTS = 3, 64_000


def folded_clocks(classes, comm, p, names):
    """A step of a mesh whose first rank of each class stands for all."""
    from support.lesson_28 import step
    mesh = mesh_of(p)
    first = classes(mesh.colours(), mesh.meets, mesh.link)
    clock = names["simulate"]({i: step(mesh, i, names["ring"], M, GRADIENTS) for i in {*first}},
                              mesh.link, first)
    assert len(clock) == (p if mesh.slow else p // 2), "4 classes in each stage"
    return np.array([clock[i] for i in first])


def whole_clocks(comm, p):
    """By the library's cluster: all ranks, and its own all-reduce."""
    from support.lesson_28 import library_cluster, play, step
    mesh = mesh_of(p)

    def body(comm):
        stage = comm.split(comm.rank // mesh.dp)
        play(comm, step(mesh, comm.rank, None, M))
        all_reduce(stage, np.ones(GRADIENTS // 8), algorithm="ring")
        return comm.now()
    return np.array(library_cluster(mesh).run(body)[0])


def own_firsts(classes, comm, p, names):
    mesh = mesh_of(p)
    return np.array(classes(mesh.colours(), mesh.meets, mesh.link))


def library_firsts(comm, p):
    mesh = mesh_of(p)
    return np.array(find_classes(
        {"pp": mesh.pp, "dp": mesh.dp}, mesh.colours(),
        lambda sources, dests: sources // 4 != dests // 4, [("pp",), ("dp",)]))


def own_rings(in_nodes, comm, p, names):
    return [np.array(in_nodes(p, folded)[1]) for folded in (False, True)]


def library_rings(comm, p):
    return [1e6 * np.array(cluster(p).run(lambda comm: all_reduce(
        comm, np.ones(1250 * p), algorithm="ring"))[1])] * 2


CASES = [
    Case("simulate", own_clocks, library_clocks, (4, 8, 12)),
    Case("classes", folded_clocks, whole_clocks, (8, 16, 24, 32)),
    Case("classes", own_firsts, library_firsts, (8, 16, 24, 32)),
    Case("ring", own_ring, library_ring, (4, 12)),
    Case("in_nodes", own_rings, library_rings, (8, 16)),
]
PARTS = {"Request"}


def gather(rank, p):
    """All send 1 MB to rank 0."""
    if rank:
        yield (yield "send", 0, 10**6)
    else:
        halves = []
        for other in range(1, p):
            halves.append((yield "recv", other, 10**6))
        yield from halves


def check_change(names):
    """Three messages arrive at once; the ring's do not meet."""
    def gathered(simulate):
        return max(simulate({i: gather(i, 4) for i in range(4)}, lambda i, j: FAR,
                            range(4)).values())
    right, changed = 3 * 1e-4 + 1e-5, 1e-4 + 1e-5
    assert gathered(names["simulate"]) == pytest.approx(changed)
    assert library_gather() == pytest.approx(right)
    assert own_ring(names["ring"], None, 12, names) == library_ring(None, 12)
    says("28", f"{changed * 1e6:.0f} µs instead of {right * 1e6:.0f} µs", "The ring stays as it is")


def library_gather():
    from support.lesson_28 import play
    return Cluster(4, latency=FAR[0], bandwidth=FAR[1]).run(
        lambda comm: play(comm, gather(comm.rank, 4)))[1]
