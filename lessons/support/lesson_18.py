"""Lesson 18: a GPT on a mesh of three axes: bytes and time of each nesting, the picture."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from minipar.comm import Cluster, Communicator, Trace
from minipar.comm.collectives import sum_over_ranks
from minipar.comm.cost.traffic import Traffic, between_nodes, bytes_by_axis
from minipar.comm.mesh import DeviceMesh
from minipar.comm.simulated.links import Link, Links
from minipar.launcher import simulate
from minipar.nn import GPT, GPTConfig
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.viz import MeshTraffic, draw_mesh_traffic

from .kept_trace import stop_trace
from .kit import AT_MOST, Lesson, Row

V, T, D, L, M, SIZE = 50, 16, 64, 6, 2, 8       # M microbatches; bytes of a float64
ROWS = 8                                        # of a microbatch, all ranks of dp together
CONFIG = GPTConfig(V, T, L, num_heads=8, width=D, tied=False)
SIZES = {"pp": 2, "dp": 2, "tp": 2}
NESTINGS = [("pp", "dp", "tp"), ("dp", "pp", "tp"), ("tp", "pp", "dp")]     # slowest … fastest
NODES, PER_NODE = 2, 4
WITHIN, BETWEEN = Link(1e-6, 1e11), Link(1e-5, 1e10)


class Step(NamedTuple):
    """One step on one rank: its messages and time; the loss and gradient norm of all ranks."""

    mesh: DeviceMesh | None
    trace: Trace            # until the gradients are reduced
    update: Trace           # of the optimizer's step
    seconds: float          # of `trace`
    loss: float
    norm: float


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
               "activation, each tp rank sends `2·m·n` over each boundary of pp, dp twice its "
               "gradients, and tp `2·(4·layers + 2)·m·n` and a little for the loss. So tp belongs "
               "inside a node, and pp, which sends least, between nodes. (The nodes are always "
               "simulated: within one machine no link is slow.)")
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


def step(comm: Communicator, sizes: dict[str, int] | None = None,
         nesting: tuple[str, ...] | None = None, data_parallel: str = "ddp") -> Step:
    """A step on M microbatches on a mesh; without `sizes` each rank trains the model alone."""
    model, mesh = GPT(CONFIG).initialize(0, np.float64), None
    if sizes is None:
        strategy = Strategy(model, comm.split(comm.rank))
    else:
        mesh = DeviceMesh(comm, order=nesting, **sizes)
        strategy = make_strategy(data_parallel, model, mesh)
    ids, rows = np.random.default_rng(0).integers(0, V, (M, ROWS, T + 1)), [*strategy.rows(ROWS)]
    batches = [Microbatch(part[rows, :-1], part[rows, 1:], np.array(rows)) for part in ids]
    begun = comm.now()
    comm.start_trace()
    loss = strategy.forward_backward(batches)
    seconds, trace = comm.now() - begun, stop_trace(comm)
    norm, optimizer = strategy.clip_grad_norm(np.inf), SGD(strategy.slabs, lr=0.1)
    comm.start_trace()
    strategy.step(optimizer)
    return Step(mesh, trace, comm.stop_trace(), seconds, loss, norm)


def predicted(pp: int, dp: int, tp: int, sums: int = 2) -> dict[str, int]:
    """Bytes that all ranks together send along each axis in a step.

    n = ROWS T D are the activations of a microbatch.  A ring's all-reduce of n over p ranks sends
    2 (p-1) n, a reduce-scatter or an all-gather (`sums` = 1) half of it.
    """
    n, model = ROWS * T * D, GPT(CONFIG).num_parameters()
    once = T * D + L * 6 * D + 2 * D            # positions, norms, biases of row layers: not cut
    reduces = 4 * L + 2                         # one each for the embedding and the head
    held = model - once + tp * once             # parameters on all ranks of one dp index
    return {"pp": SIZE * tp * 2 * M * n * (pp - 1), "dp": SIZE * sums * (dp - 1) * held,
            "tp": SIZE * M * 2 * (tp - 1) * (reduces * n + 3 * ROWS * T)}


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
        mesh = " × ".join(f"{axis} {size}" for axis, size in sizes.items())
        rows += [Row(f"{mesh}: {what}", halves[axis], num_bytes[axis], "B")
                 for what, axis, num_bytes in (
                     ("pp sends", "pp", sent), ("tp sends", "tp", sent),
                     ("dp: gradients", "dp", sent), ("dp: optimizer's step", "dp", update))]
        rows += [Row(f"{mesh}: {what}, difference", 1e-10, abs(mine - right), rule=AT_MOST)
                 for what, mine, right in (("loss", found.loss, alone.loss),
                                           ("gradient norm", found.norm, alone.norm))]
    lesson.say(f"Now every mesh of the {p} ranks of this run, with ZeRO-1. Its dp axis sends half "
               "of DDP's bytes to sum the gradients (a reduce-scatter), and the other half in the "
               "optimizer's step (an all-gather of the parameters). Loss and gradient norm equal "
               "those of one process.")
    lesson.counts(rows, f"bytes, loss and gradient norm of {len(rows) // 6} meshes")
