"""Lesson 28: the same programs on the library's cluster; a step of a mesh, and what breaks it."""

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import all_reduce
from minipar.comm.simulated.links import Link, Links
from minipar.viz import draw_rank_map

from .kit import Lesson, Row
from .measuring import counted

NEAR, FAR, PER_NODE = (1e-6, 1e11), (1e-5, 1e10), 4     # latency, bandwidth
# A mesh has microbatches, seconds of a forward, bytes of an activation and of a rank's gradients.
M, FORWARD, ACTIVATION, GRADIENTS = 16, 1e-3, 1_000_000, 64_000_000
SMALL, LARGE = (8, 32), (16, 640)       # pp, dp


class Mesh(NamedTuple):
    """pp stages of dp ranks each, the ranks of a stage in a row; some ranks and links are slow.

    `slow` are ranks that compute 30 % longer, `bad` are links (source, dest) at a quarter of their
    rate.
    """

    pp: int
    dp: int
    slow: tuple[int, ...] = ()
    bad: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        """Ranks."""
        return self.pp * self.dp

    def stage(self, rank: int) -> range:
        """The ranks that sum gradients with this one."""
        return range(rank // self.dp * self.dp, (rank // self.dp + 1) * self.dp)

    def link(self, source: int, dest: int) -> tuple[float, float]:
        """Latency and bandwidth."""
        near = source // PER_NODE == dest // PER_NODE
        latency, bandwidth = NEAR if near else FAR
        return latency, bandwidth / (4 if (source, dest) in self.bad else 1)

    def forward(self, rank: int) -> float:
        """Seconds that this rank takes for a microbatch."""
        return FORWARD * (1.3 if rank in self.slow else 1)

    def meets(self, rank: int) -> list[int]:
        """The ranks that this one has messages with: before and after, right and left."""
        stage = self.stage(rank)
        place, across = stage.index(rank), (rank - self.dp, rank + self.dp)
        return [*(other for other in across if 0 <= other < self.size),
                stage[(place + 1) % self.dp], stage[place - 1]]

    def colours(self) -> list[tuple[int, float]]:
        """The stage of each rank, and the seconds of its forward."""
        return [(rank // self.dp, self.forward(rank)) for rank in range(self.size)]


def step(mesh: Mesh, rank: int, ring: Callable | None, m: int = M, gradients: int = GRADIENTS
         ) -> Generator:
    """Lesson 12's 1F1B as a generator; then the lesson's ring, if it is given, sums gradients."""
    ahead, sends = min(mesh.pp - rank // mesh.dp - 1, m), []

    def pass_on(source: int, dest: int, seconds: float) -> Generator:
        if 0 <= source < mesh.size:
            yield (yield "recv", source, ACTIVATION)
        yield seconds
        if 0 <= dest < mesh.size:
            sends.append((yield "send", dest, ACTIVATION))
    for i in range(m + ahead):
        if i < m:
            yield from pass_on(rank - mesh.dp, rank + mesh.dp, mesh.forward(rank))
        if i >= ahead:
            yield from pass_on(rank + mesh.dp, rank - mesh.dp, 2 * mesh.forward(rank))
    yield from sends
    if ring is not None:
        yield from ring(rank, mesh.stage(rank), gradients)


def play(comm: Communicator, program: Generator) -> float:
    """Run a generator on a rank of the library; return the rank's clock.

    Only a simulated rank spends the seconds that it asks for.
    """
    answer = None
    while True:
        try:
            event = program.send(answer)
        except StopIteration:
            return comm.now()
        answer = None
        if isinstance(event, float):
            if comm.is_simulated:
                comm.spend("compute", event)
        elif isinstance(event, tuple):
            way, peer, num_bytes = event
            begin = comm.isend if way == "send" else comm.irecv
            answer = begin(np.empty(num_bytes, np.uint8), peer)
        else:
            event.wait()


def library_cluster(mesh: Mesh) -> Cluster:
    """The library's cluster with the links of a mesh."""
    special = {pair: Link(*mesh.link(*pair)) for pair in mesh.bad}
    return Cluster(nodes=mesh.size // PER_NODE, devices_per_node=PER_NODE, trace=True,
                   links=Links(Link(*NEAR), Link(*FAR), special))


def compare_with_library(lesson: Lesson, simulate: Callable, classes: Callable,
                         ring: Callable) -> None:
    """Play the same generators on this run's ranks and on 16 of a cluster; break a large step."""
    play_here(lesson, ring)
    compare_clocks(lesson, simulate, ring)
    rows: list[tuple] = []
    maps: dict[str, np.ndarray] = {}
    if lesson.comm.rank == 0:               # the others would only use the cores
        rows, maps = break_symmetry(simulate, classes, ring)
    lesson.say(f"A step of pp {SMALL[0]} × dp {SMALL[1]}: 1F1B with {M} microbatches, then the "
               "ring, in nodes of 4. All ranks are equal by their places in a node, until one is "
               "slower. The picture shows whom it makes wait: in the pipeline those of its own "
               "place in dp, in the ring all others of their stages.")
    lesson.grid(["the mesh", "ranks simulated", "of", "a step", ""], rows)
    lesson.picture(lambda path: draw_rank_map(
        path, maps, f"pp {SMALL[0]} × dp {SMALL[1]}: milliseconds until each rank has …"))


def play_here(lesson: Lesson, ring: Callable) -> None:
    """The ring on the ranks of this run: messages and bytes."""
    comm, p = lesson.comm, lesson.comm.size
    trace, _ = counted(comm, lambda: play(comm, ring(comm.rank, range(p), 1000 * p)))
    here = comm.rank == 0                   # where the trace of all ranks is
    lesson.say(f"The same generator runs on the {p} ranks of this lesson, for which `play` sends "
               "and receives what it asks for:")
    lesson.table([Row("messages, 2 p (p − 1)", 2 * p * (p - 1) * here, trace.num_sent()),
                  Row("bytes", 2000 * p * (p - 1) * here, trace.bytes_sent(), "B")], "", "counted")


def compare_clocks(lesson: Lesson, simulate: Callable, ring: Callable) -> None:
    """On 16 ranks the lesson's simulator has the clocks of the library's cluster, to the last bit.
    """
    mesh, n, m = Mesh(4, 4), 16 * 4000, 4
    cluster, ranks = library_cluster(mesh), range(mesh.size)
    clocks = cluster.run(lambda comm: play(comm, step(mesh, comm.rank, ring, m, 10 * n)))[0]
    own = simulate({i: step(mesh, i, ring, m, 10 * n) for i in ranks}, mesh.link, ranks)
    sums = library_cluster(mesh).run(lambda comm: all_reduce(
        comm, np.ones(n // 8), algorithm="ring"))[1]
    alone = simulate({i: ring(i, ranks, n) for i in ranks}, mesh.link, ranks)
    hops = 2 * m * (mesh.pp - 1) * mesh.dp + mesh.pp * 2 * mesh.dp * (mesh.dp - 1)
    lesson.say("On 16 ranks of the library's cluster, in nodes of 4: the library's own all-reduce "
               "of numbers, and a step of pp 4 × dp 4, 1F1B and a ring.")
    lesson.table([
        Row("all-reduce: µs", 1e6 * max(alone.values()), 1e6 * sums, "µs"),
        Row("a step: ms", 1e3 * max(own.values()), 1e3 * max(clocks), "ms"),
        Row("    largest difference of a rank's clock", 0, max(
            abs(own[i] - clocks[i]) for i in ranks), "s"),
        Row("    messages, 2 m (pp − 1) dp + pp 2 dp (dp − 1)", hops,
            cluster.trace.num_sent())], "the lesson's, and the library's", "library")


WHOLE = Mesh(*SMALL)
MIDDLE = WHOLE.size // 2 + WHOLE.dp // 2 + PER_NODE - 1         # the last one of a node
SLOW, RING = "one rank computes 30 % longer", "one link of a ring at a quarter of its rate"
MESHES = {
    "all alike": WHOLE, SLOW: WHOLE._replace(slow=(MIDDLE,)),
    "one link to the next stage at a quarter of its rate": WHOLE._replace(
        bad=((MIDDLE, MIDDLE + WHOLE.dp),)),
    RING: WHOLE._replace(bad=((MIDDLE, MIDDLE + 1),)),
    f"pp {LARGE[0]} × dp {LARGE[1]}, all alike": Mesh(*LARGE)}


def folded(mesh: Mesh, simulate: Callable, classes: Callable, ring: Callable | None,
           ) -> tuple[list[int], dict[int, float]]:
    """The first rank of each one's class, and the clocks of these."""
    first = classes(mesh.colours(), mesh.meets, mesh.link)
    return first, simulate({i: step(mesh, i, ring) for i in {*first}}, mesh.link, first)


def break_symmetry(simulate: Callable, classes: Callable, ring: Callable
                   ) -> tuple[list[tuple], dict[str, np.ndarray]]:
    """Rows of a table of MESHES, each folded as far as it goes; and milliseconds of some by rank.
    """
    rows, maps = [], {}
    for name, mesh in MESHES.items():
        first, clock = folded(mesh, simulate, classes, ring)
        seconds = max(clock.values())
        if mesh == WHOLE:
            usual, every = seconds, simulate({i: step(mesh, i, ring) for i in range(mesh.size)},
                                             mesh.link, range(mesh.size))
            assert all(every[i] == clock[first[i]] for i in every), "folded is not the whole"
        rows.append((name, f"{len(clock):,}", f"{mesh.size:,}", f"{seconds * 1e3:.1f} ms",
                     f"{seconds / usual - 1:+.0%}" if seconds != usual else ""))
        if mesh == WHOLE or name == SLOW:
            maps[f"its gradients, {name}"] = by_rank(mesh, *folded(mesh, simulate, classes, None))
        if name in (SLOW, RING):
            maps[f"their sum, {name}"] = by_rank(mesh, first, clock)
    return rows, maps


def by_rank(mesh: Mesh, first: list[int], clock: dict[int, float]) -> np.ndarray:
    """Milliseconds of each rank (pp, dp), from the clocks of the first ranks of classes."""
    return 1e3 * np.array([clock[i] for i in first]).reshape(mesh.pp, mesh.dp)
