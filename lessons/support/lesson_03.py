"""Lesson 03: the library's all-gathers and reduce-scatters; times, a shared cable, pictures."""

from collections.abc import Callable
from functools import partial

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import all_gather, chunk_bounds, reduce_scatter
from minipar.comm.cost import predict
from minipar.viz import draw_rounds, record_rounds, write_rounds_page

from .auto_choice import about_auto
from .kit import Lesson, Row
from .measuring import (
    counted,
    crossing,
    links_of,
    path_of,
    rounds_of,
    seconds,
    simulated,
    total,
)

WAYS = {"all_gather": ("ring", "recursive_doubling", "bruck"),
        "reduce_scatter": ("ring", "pairwise", "recursive_halving")}
P, NOT_A_POWER = 8, 6               # ranks of the second table: a power of two, and another number
N_CROSSING = 64_000         # bytes


def run(comm: Communicator, operation: str, algorithm: str, full: np.ndarray) -> np.ndarray:
    """All-gather this rank's chunk of `full`, or reduce-scatter all of it."""
    if operation == "reduce_scatter":
        return reduce_scatter(comm, full, algorithm=algorithm)
    mine = slice(*chunk_bounds(full.size, comm.size)[comm.rank])
    return all_gather(comm, full[mine], total=full.size, algorithm=algorithm)


def count(comm: Communicator) -> list[Row]:
    """Rounds and bytes of every algorithm on these ranks, real or simulated; rows on rank 0."""
    p, n, rows = comm.size, 120 * comm.size, []
    full = np.arange(float(n))
    right = {"all_gather": full, "reduce_scatter": np.split(full, p)[comm.rank] * p}
    for operation, algorithms in WAYS.items():
        for algorithm in algorithms:
            trace, result = counted(comm, partial(run, comm, operation, algorithm, full))
            assert np.array_equal(result, right[operation]), (operation, algorithm)
            if comm.rank:
                continue
            cost = predict(operation, algorithm, p, n)
            name = f"{operation}, {algorithm}".replace("_", " ")
            rows += [Row(f"{name}: rounds", cost.rounds, rounds_of(trace, p)),
                     Row("    on the critical path", int(cost.num_bytes), path_of(trace, p), "B")]
            if algorithm in ("ring", "pairwise"):
                sent = {trace.bytes_sent(rank) for rank in range(p)}
                assert len(sent) == 1, "every rank must send as much as any other"
                rows.append(Row("    sent by each rank: (p-1)/p n", (p - 1) * 8 * n // p, *sent,
                                "B"))
    return rows


def time_of(operation: str, algorithm: str, p: int, num_bytes: int) -> float:
    """Virtual µs on p simulated ranks."""
    full = np.zeros(num_bytes // 8)
    return 1e6 * simulated(p, lambda comm: run(comm, operation, algorithm, full))


def bytes_across(algorithm: str, num_bytes: int) -> int:
    """Bytes of an all-gather that go from the first half of P simulated ranks to the second."""
    cluster = Cluster(P, trace=True)
    cluster.run(lambda comm: run(comm, "all_gather", algorithm, np.zeros(num_bytes // 8)))
    return sum(m.num_bytes for m in cluster.trace.select() if m.source < P // 2 <= m.dest)


def compare() -> list[Row]:
    """Times on simulated ranks, and the size from which halving's extra bytes cost more."""
    alpha, beta = Cluster(P).latency * 1e6, 1e6 / Cluster(P).bandwidth      # µs, µs per byte
    rows = []
    for n in (640, 4_000_000):
        for algorithm, rounds in (("ring", P - 1), ("bruck", (P - 1).bit_length())):
            rows.append(Row(f"{P} ranks, {n:,} B, all-gather, {algorithm}",
                            rounds * alpha + (P - 1) / P * n * beta,
                            time_of("all_gather", algorithm, P, n), "µs"))
    ring, halving = (partial(time_of, "reduce_scatter", name, NOT_A_POWER)
                     for name in ("ring", "recursive_halving"))
    n = 1_200_000                       # bytes: 25,000 elements a rank
    costs = [predict("reduce_scatter", name, NOT_A_POWER, n // 8)
             for name in ("ring", "recursive_halving")]
    for cost, measure, name in zip(costs, (ring, halving), ("ring", "halving")):
        rows.append(Row(f"{NOT_A_POWER} ranks, {n:,} B, reduce-scatter, {name}",
                        cost.rounds * alpha + cost.num_bytes * beta, measure(n), "µs"))
    fewer, more = costs[0].rounds - costs[1].rounds, (costs[1].num_bytes - costs[0].num_bytes) / n
    rows.append(Row(f"{NOT_A_POWER} ranks: the two take equally long at",
                    fewer * alpha / (more * beta), crossing(ring, halving, 4800, 480_000), "B"))
    return rows


def compare_with_library(lesson: Lesson, ring: Callable, bruck: Callable,
                         ring_reduce_scatter: Callable) -> None:
    """Compare the lesson's functions with the library's; count and time all of the library's."""
    comm = lesson.comm
    x = np.random.default_rng(comm.rank).standard_normal((comm.size, 77))
    rows = []
    for name, way in (("ring", ring), ("bruck", bruck)):
        way(comm, found := x.copy())
        rows.append(Row(f"all-gather, {name}: numbers that differ", 0, total(comm, int(np.sum(
            found != all_gather(comm, x[comm.rank:comm.rank + 1], algorithm=name))))))
    rows.append(Row("reduce-scatter, ring: numbers that differ", 0, total(comm, int(np.sum(
        ring_reduce_scatter(comm, x.copy()) != reduce_scatter(comm, x, algorithm="ring"))))))
    lesson.counts(rows, "The library's results, beside the lesson's, on random numbers")
    lesson.say("Counted on these ranks. If p is a power of two, all algorithms send the same "
               "bytes. If not, doubling and halving first fold the surplus ranks into the others, "
               "which costs extra rounds and bytes. Bruck's algorithm takes any p, but must put "
               "its chunks in order at the end.")
    lesson.counts(count(comm), f"p = {comm.size}, n = {960 * comm.size:,} B")
    show_times(lesson)
    if comm.rank == 0:
        lesson.say("Times on simulated ranks, with a separate link between any two, and no time "
                   "for copies in memory. On such links, and only there, doubling is never slower "
                   f"if p is a power of two. With {NOT_A_POWER} ranks halving has one round less, "
                   "but more than twice the bytes.")
        lesson.table(compare(), links_of(Cluster(P)), "simulated")
        share_a_cable(lesson)
    draw(lesson)


def show_times(lesson: Lesson) -> None:
    """Time every algorithm on these ranks, for three sizes."""
    comm = lesson.comm
    lesson.say(f"Times on these ranks ({lesson.clock}, not asserted):")
    for operation, algorithms in WAYS.items():
        rows = []
        for n in (640, 40_000, 4_000_000):
            full = np.zeros(n // 8)
            times = [seconds(comm, partial(run, comm, operation, algorithm, full))
                     for algorithm in algorithms]
            rows.append((f"{n:,} B", *(f"{t * 1e6:,.0f} µs" for t in times),
                         comm.choose(operation, n).replace("_", " ")))
        lesson.grid([operation.replace("_", "-"), *(name.replace("_", " ") for name in algorithms),
                     "auto chooses"], rows)
    lesson.say(about_auto(comm))


def share_a_cable(lesson: Lesson) -> None:
    """Count the bytes on one cable that joins the two halves of the ranks."""
    lesson.say("**Where messages share a cable, that changes.** In a ring all messages go to a "
               f"neighbour. In the last round of doubling all partners are {P // 2} ranks "
               "apart, and all of them send n/2 at once. If one cable joins the two halves of "
               "the ranks, it carries:")
    lesson.table([Row(f"{name.replace('_', ' ')}: {formula} n", int(factor * N_CROSSING),
                      bytes_across(name, N_CROSSING), "B")
                  for name, formula, factor in (
                      ("ring", "(p-1)/p", (P - 1) / P), ("recursive_doubling", "p/4", P / 4))],
                 f"from ranks 0 … {P // 2 - 1} to the others, n = {N_CROSSING:,} B")


def draw(lesson: Lesson) -> None:
    """Draw both rings on 4 ranks; make a page of all algorithms on up to P ranks."""
    p = min(lesson.comm.size, P)
    lesson.picture(lambda path: draw_rounds(path, record_rounds("all_gather", "ring", 4),
                                            record_rounds("reduce_scatter", "ring", 4)))
    lesson.page(lambda path: write_rounds_page(
        path, *(record_rounds(operation, algorithm, p)
                for operation, algorithms in WAYS.items() for algorithm in algorithms),
        title=f"All-gather and reduce-scatter on {p} ranks"))
