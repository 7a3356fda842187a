"""Lesson 18. 2D, 3D and topology: which axis is nearest?

Eight ranks in two nodes train one GPT in three ways at once:

    pp = 2   its layers in two stages      sends activations from stage to stage
    dp = 2   the rows of a batch           sums gradients, once a step
    tp = 2   each of its layers            sums activations, four times in every layer

Axes nest: the fastest one's ranks are neighbours, the slowest one's are in different nodes.  The
same program runs on each nesting, with the same messages; only the links under them change.

    python lessons/18_which_axis_is_nearest.py --ranks 4
    mpirun -n 4 python lessons/18_which_axis_is_nearest.py
"""

import warnings
from functools import cache
from typing import NamedTuple

import numpy as np
from kit import Lesson, Row

from minipar.comm import Cluster, Communicator, Trace
from minipar.comm.mesh import DeviceMesh
from minipar.comm.topology import Link, Links
from minipar.comm.traffic import Traffic, between_nodes, bytes_by_axis
from minipar.launch import launch, simulate
from minipar.nn import GPT, GPTConfig
from minipar.parallel.hybrid import make_hybrid
from minipar.parallel.strategy import Microbatch, Strategy, accumulate
from minipar.viz.cube import MeshTraffic, draw_mesh_traffic

SIZES = {"pp": 2, "dp": 2, "tp": 2}
NESTINGS = [("pp", "dp", "tp"), ("dp", "pp", "tp"), ("tp", "pp", "dp")]     # slowest … fastest
NODES, PER_NODE = 2, 4
WITHIN, BETWEEN = Link(1e-6, 1e11), Link(1e-5, 1e10)
V, T, D, L, B, M, SIZE = 50, 32, 64, 4, 2, 4, 8     # B rows a microbatch, M of them, of float64
CONFIG = GPTConfig(V, T, L, num_heads=4, width=D)


class Found(NamedTuple):
    """One step on one nesting; `far` are bytes between nodes."""

    shape: dict[str, int]
    traffic: Traffic
    far: int
    seconds: float
    loss: float


def microbatches(strategy: Strategy, size: int) -> list[Microbatch]:
    """This rank's rows of M microbatches of `size` rows."""
    draw = np.random.default_rng(0)
    ids = draw.integers(0, V, (M, size, T + 1))
    rows = np.array(strategy.rows(size))
    return [Microbatch(part[rows, :-1], part[rows, 1:], rows) for part in ids]


@cache
def step(nesting: tuple[str, ...]) -> Found:
    """A step on 8 simulated ranks whose axes nest so."""
    notes = {}

    def body(comm: Communicator) -> tuple[float, float]:
        mesh = DeviceMesh(comm, order=nesting, **SIZES)
        strategy = make_hybrid(GPT(CONFIG).initialize(0, np.float64), mesh)
        batches = microbatches(strategy, SIZES["dp"] * B)
        accumulate(strategy, batches)           # a first step, in which stages tell their shapes
        for slab in strategy.slabs:
            slab.zero_grad()
        begun = comm.now()
        comm.start_trace()
        loss = accumulate(strategy, batches)
        notes[comm.rank] = mesh, comm.stop_trace()
        return loss, comm.now() - begun
    cluster = Cluster(nodes=NODES, devices_per_node=PER_NODE, flops_per_second=1e13,
                      memory_bandwidth=1e13, links=Links(within=WITHIN, between=BETWEEN))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the tp group")       # spans nodes: that is the question
        results = simulate(body, cluster)[0]
    mesh, trace = notes[0][0], Trace.merged(trace for _, trace in notes.values())
    traffic = bytes_by_axis(trace, mesh)
    return Found(mesh.shape, traffic, between_nodes(traffic, mesh),
                 max(seconds for _, seconds in results), results[0][0])


def predicted() -> dict[str, int]:
    """Bytes that all ranks together send along each axis in a step.

    n = B T D is one activation.  A ring's all-reduce of n over p ranks sends 2 (p-1) n.
    """
    pp, dp, tp = SIZES.values()
    n, words, model = B * T * D, V * D, GPT(CONFIG).num_parameters()
    once = T * D + L * 6 * D + 2 * D            # positions, norms, biases of row layers: not cut
    reduces = 4 * L + 2                         # and one for the embedding, one for the head
    held = model - once + tp * once + words * (pp > 1)      # on all ranks of one dp; wte is twice
    return {"pp": dp * SIZE * (tp * 2 * M * n * (pp - 1) + 2 * words),
            "dp": SIZE * 2 * (dp - 1) * held,
            "tp": dp * M * SIZE * 2 * (tp - 1) * (reduces * n + 3 * B * T)}


def main(comm: Communicator) -> None:
    """See the module."""
    lesson = Lesson(comm, __file__, "2D, 3D and topology: which axis is nearest?")
    found = {nesting: step(nesting) for nesting in NESTINGS}
    expected, best = predicted(), found[NESTINGS[0]]
    strategy = Strategy(GPT(CONFIG).initialize(0, np.float64), comm.split(comm.rank))
    alone = accumulate(strategy, microbatches(strategy, SIZES["dp"] * B))
    rows = [Row(f"{axis} sends", expected[axis], sum(best.traffic[axis].values()), "B")
            for axis in SIZES]
    for nesting, run in found.items():
        rows.append(Row(f"{nesting[0]} slowest: bytes between nodes", expected[nesting[0]],
                        run.far, "B"))
    rows.append(Row("|loss − one process's|", 1e-10,
                    max(abs(run.loss - alone) for run in found.values()), rule="≤"))
    lesson.table(rows, "pp 2 × dp 2 × tp 2 on two simulated nodes of four")
    lesson.say("With two nodes, what is between them is what the slowest axis sends: "
               "pp sends `2·m·n` over each boundary, dp twice its gradients, tp "
               "`2·(4·layers + 2)·m·n`, n being one activation.  So tp belongs inside a node, and "
               "pp, which sends least, between them.")
    lesson.grid(["slowest axis, between nodes", "bytes there", "a step, virtual"], [
        (nesting[0], f"{run.far:,} B", f"{run.seconds * 1e6:,.0f} µs")
        for nesting, run in found.items()])
    assert best.seconds == min(run.seconds for run in found.values())
    lesson.picture(lambda path: draw_mesh_traffic(path, [
        MeshTraffic(run.shape, PER_NODE, run.traffic,
                    f"{' > '.join(nesting)}\n{run.far / 1e6:.1f} MB between nodes, "
                    f"a step {run.seconds * 1e6:,.0f} µs")
        for nesting, run in found.items()],
        "The same messages, three nestings (slowest axis > … > fastest); wider lines, more bytes"))
    lesson.takeaway("Messages do not change with the nesting, their links do: put the axis that "
                    "talks most on the nearest ranks.")
    lesson.exercises(questions=[
        "Which of the three axes sends more when the batch grows, and which does not?",
        "Give each dp rank a sixteenth of the rows: which axis belongs between the nodes now?",
        "Switch sequence_parallel on. Do the bytes of pp change? Why?"])


if __name__ == "__main__":
    launch(main)
