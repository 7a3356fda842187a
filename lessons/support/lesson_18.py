"""Lesson 18: a GPT on a mesh of three axes: bytes and time of each nesting, the picture."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from minipar.comm import Cluster, Communicator, Trace
from minipar.comm.collectives import sum_over_ranks
from minipar.comm.cost.traffic import Traffic, between_nodes, bytes_by_axis
from minipar.comm.mesh import DeviceMesh
from minipar.comm.simulated.topology import Link, Links
from minipar.launcher import simulate
from minipar.viz.mesh_traffic import MeshTraffic, draw_mesh_traffic

from .kit import Lesson, Row, number
from .mesh_step import Step, predicted, step

SIZES = {"pp": 2, "dp": 2, "tp": 2}
NESTINGS = [("pp", "dp", "tp"), ("dp", "pp", "tp"), ("tp", "pp", "dp")]     # slowest … fastest
NODES, PER_NODE = 2, 4
WITHIN, BETWEEN = Link(1e-6, 1e11), Link(1e-5, 1e10)


def compare_with_library(lesson: Lesson, coordinates: Callable, bytes_between_nodes: Callable,
                         best_nesting: Callable) -> None:
    """Compare the lesson's functions with a mesh, and train a GPT on each nesting of it."""
    comm = lesson.comm
    mesh = DeviceMesh(comm, pp=comm.size, dp=1)
    assert mesh.coordinates_of(comm.rank) == coordinates(comm.rank, mesh.shape)
    lesson.say("Now a GPT with all three axes, by the library's mesh. A rank sends an eighth of "
               "the bytes of an axis, so the lesson's function predicts what crosses:")
    found = {nesting: simulated(nesting) for nesting in NESTINGS}
    expected, best, alone = predicted(**SIZES), found[NESTINGS[0]], step(lesson.comm)
    each = {axis: num_bytes // 8 for axis, num_bytes in expected.items()}
    assert best_nesting(each, SIZES, PER_NODE)[0] == NESTINGS[0][0]
    rows = [Row(f"{axis} sends", expected[axis], sum(best.traffic[axis].values()), "B")
            for axis in SIZES]
    for nesting, run in found.items():
        rows.append(Row(f"{nesting[0]} slowest: bytes between nodes",
                        bytes_between_nodes(each, run.shape, PER_NODE), run.bytes_between_nodes,
                        "B"))
    assert all(abs(run.loss - alone.loss) < 1e-10 for run in found.values()), "not one process's"
    lesson.table(rows, "pp 2 × dp 2 × tp 2 on two simulated nodes of four")
    lesson.say("With two nodes, only the slowest axis sends bytes between them. With n for one "
               "activation, pp sends `2·m·n` over each boundary, dp twice its gradients, tp "
               "`2·(4·layers + 2)·m·n`. So tp belongs inside a node, and pp, which sends least, "
               "between nodes. (The nodes are always simulated: within one machine no link is "
               "slow.)")
    lesson.grid(["slowest axis, between nodes", "bytes there", "a step, virtual"], [
        (nesting[0], f"{run.bytes_between_nodes:,} B", f"{run.seconds * 1e6:,.0f} µs")
        for nesting, run in found.items()])
    assert best.seconds == min(run.seconds for run in found.values())
    if lesson.comm.size in (2, 4, 8):
        every_mesh(lesson, lesson.comm, alone)
    else:
        lesson.say("With 2, 4 or 8 ranks, simulated or real, this lesson also runs every mesh of "
                   "that size.")
    lesson.picture(lambda path: draw_mesh_traffic(path, [
        MeshTraffic(run.shape, PER_NODE, run.traffic,
                    f"{' > '.join(nesting)}\n{run.bytes_between_nodes / 1e6:.1f} MB between nodes, "
                    f"a step {run.seconds * 1e6:,.0f} µs")
        for nesting, run in found.items()],
        "The same messages, three nestings (slowest axis > … > fastest); wider lines, more bytes"))


class NestedStep(NamedTuple):
    """A step on one nesting of the axes."""

    shape: dict[str, int]
    traffic: Traffic
    bytes_between_nodes: int
    seconds: float
    loss: float


@cache
def simulated(nesting: tuple[str, ...]) -> NestedStep:
    """A step on 8 simulated ranks, with the axes nested from slowest to fastest."""
    cluster = Cluster(nodes=NODES, devices_per_node=PER_NODE, flops_per_second=1e13,
                      memory_bandwidth=1e13, links=Links(within=WITHIN, between=BETWEEN))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the tp group")       # spans nodes: that is the question
        steps = simulate(lambda comm: step(comm, SIZES, nesting), cluster)[0]
    mesh = steps[0].mesh
    traffic = bytes_by_axis(Trace.merged(each.trace for each in steps), mesh)
    return NestedStep(mesh.shape, traffic, between_nodes(traffic, mesh),
                 max(each.seconds for each in steps), steps[0].loss)


def every_mesh(lesson: Lesson, comm: Communicator, alone: Step) -> None:
    """Run every mesh of these ranks; assert that each equals one process."""
    p, rows = comm.size, []
    for pp, dp in ((pp, dp) for pp in (1, 2, 4, 8) for dp in (1, 2, 4, 8) if p % (pp * dp) == 0):
        sizes = {"pp": pp, "dp": dp, "tp": p // (pp * dp)}
        found = step(comm, sizes, data_parallel="zero1")
        sent, update = ({axis: int(sum_over_ranks(comm, sum(links.values()))) for axis, links in
                         bytes_by_axis(trace, found.mesh).items()}
                        for trace in (found.trace, found.update))
        halves = predicted(**sizes, sums=1)
        assert sent == halves and update == {"pp": 0, "dp": halves["dp"], "tp": 0}, sizes
        assert sent["dp"] + update["dp"] == predicted(**sizes)["dp"], "not what DDP sends"
        off = max(abs(found.loss - alone.loss), abs(found.norm - alone.norm))
        assert off < 1e-10, sizes
        rows.append((" × ".join(f"{axis} {size}" for axis, size in sizes.items()),
                     *(f"{size:,} B" for size in (sent["pp"], sent["tp"], sent["dp"],
                                                  update["dp"])), number(off)))
    lesson.say(f"Now every mesh of the {p} ranks of this run, with ZeRO-1. Its dp axis sends half "
               "of DDP's bytes to sum the gradients (a reduce-scatter), and the other half in the "
               "optimizer's step (an all-gather of the parameters). All bytes are as predicted; "
               "loss and gradient norm equal those of one process.")
    lesson.grid(["mesh", "pp sends", "tp sends", "dp: gradients", "dp: step", "off by"], rows)
