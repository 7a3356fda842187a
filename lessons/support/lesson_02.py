"""Lesson 02: the library's broadcasts, scatters, gathers and reduces; times, picture."""

from collections.abc import Callable
from functools import partial

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import broadcast, chunk_bounds, gather, reduce, scatter
from minipar.comm.collectives.broadcast import pipelined_chain
from minipar.comm.cost import predict
from minipar.viz import draw_rounds, record_rounds

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

SEGMENTS, P = 4, 8          # of the pipelined chain; ranks of the picture and the second table
COUNTED = [                 # operation, algorithm, rounds
    ("broadcast", "binomial", "⌈log₂ p⌉"), ("broadcast", "chain", "p - 1"),
    ("broadcast", "pipelined_chain", "p + k - 2"),
    ("broadcast", "scatter_all_gather", "⌈log₂ p⌉ + p - 1"),
    ("scatter", "binomial", "⌈log₂ p⌉"), ("scatter", "linear", "p - 1"),
    ("gather", "binomial", "⌈log₂ p⌉"), ("reduce", "binomial", "⌈log₂ p⌉"),
    ("reduce", "rabenseifner", "2 ⌊log₂ p⌋, + 1 if p is no 2ᵏ")]


def run(comm: Communicator, operation: str, algorithm: str, n: int) -> None:
    """Run the operation on n float64 with root 0, and assert that the result is right."""
    full = np.arange(float(n))
    mine = slice(*chunk_bounds(n, comm.size)[comm.rank])
    given = full if comm.rank == 0 else np.zeros(n)
    if algorithm == "pipelined_chain":
        pipelined_chain(comm, given, 0, SEGMENTS)       # in place
        result, right = given, full
    elif operation == "broadcast":
        result, right = broadcast(comm, given, algorithm=algorithm), full
    elif operation == "scatter":
        result, right = scatter(comm, given, algorithm=algorithm), full[mine]
    elif operation == "gather":
        result, right = gather(comm, full[mine], algorithm=algorithm), full
    else:
        result, right = reduce(comm, full, algorithm=algorithm), full * comm.size
    assert result is None and comm.rank or np.array_equal(result, right), (operation, algorithm)


def count(comm: Communicator) -> list[Row]:
    """Rounds and bytes of every algorithm on these ranks, real or simulated; rows on rank 0."""
    p, n, rows = comm.size, 120 * comm.size, []
    for operation, algorithm, formula in COUNTED:
        trace, _ = counted(comm, partial(run, comm, operation, algorithm, n))
        if comm.rank == 0:
            cost = predict(operation, algorithm, p, n, num_segments=SEGMENTS)
            name = f"{operation}, {algorithm.replace('_', ' ')}"
            rows += [Row(f"{name}: {formula}", cost.rounds, rounds_of(trace, p), "rounds"),
                     Row("    on the critical path", int(cost.num_bytes), path_of(trace, p), "B")]
    return rows


def time_of(algorithm: str | Callable, num_bytes: int) -> float:
    """Virtual µs of a broadcast on P simulated ranks."""
    def program(comm: Communicator) -> None:
        array = np.empty(num_bytes // 8)
        if callable(algorithm):
            algorithm(comm, array, 0)
        else:
            broadcast(comm, array, algorithm=algorithm)
    return simulated(P, program) * 1e6


def compare() -> list[Row]:
    """Times on P simulated ranks, and the size from which the tree is slower."""
    alpha, beta = Cluster(P).latency * 1e6, 1e6 / Cluster(P).bandwidth      # µs, µs per byte
    up, k, rows = (P - 1).bit_length(), 20, []
    tree, two_steps = (partial(time_of, name) for name in ("binomial", "scatter_all_gather"))
    for n in (640, 4_000_000):
        rows += [
            Row(f"{n:,} B, binomial tree", up * (alpha + n * beta), tree(n), "µs"),
            Row(f"{n:,} B, scatter + all-gather", (up + P - 1) * alpha + 2 * n * (P - 1) / P * beta,
                two_steps(n), "µs")]
    rows.append(Row(f"{n:,} B, chain of {k} segments", (P + k - 2) * (alpha + n * beta / k),
                    time_of(partial(pipelined_chain, num_segments=k), n), "µs"))
    even = (P - 1) * alpha / (up - 2 * (P - 1) / P) / beta
    rows.append(Row("the tree and scatter + all-gather take equally long at", even,
                    crossing(tree, two_steps, 6400, 640_000), "B"))
    assert tree(int(even) // 2) < two_steps(int(even) // 2), "below, the tree must win"
    assert tree(int(even) * 2) > two_steps(int(even) * 2), "above, it must lose"
    return rows


def compare_with_library(lesson: Lesson, tree: Callable, chain: Callable,
                         scatter_all_gather: Callable, own_gather: Callable) -> None:
    """Compare the lesson's functions with the library's; count and time all of the library's."""
    comm = lesson.comm
    x = np.random.default_rng(comm.rank).standard_normal(1001)
    bounds = chunk_bounds(x.size, comm.size)
    mine, counts = slice(*bounds[comm.rank]), [stop - start for start, stop in bounds]
    rows = []
    for name, way, theirs in (
            ("tree", tree, broadcast(comm, x, algorithm="binomial")),
            ("chain", partial(chain, num_segments=SEGMENTS), broadcast(comm, x, algorithm="chain")),
            ("scatter_all_gather", scatter_all_gather,
             broadcast(comm, x, algorithm="scatter_all_gather")),
            ("gather", own_gather, gather(comm, x[mine], counts=counts, algorithm="binomial"))):
        way(comm, found := x.copy())
        rows.append(Row(f"{name}: numbers that differ", 0, total(
            comm, 0 if theirs is None else int(np.sum(found != theirs)))))
    lesson.counts(rows, "The library's results, beside the lesson's, on random numbers")
    lesson.say("Counted from the messages of these ranks: the **rounds**, messages that must "
               "follow one another, and the **bytes on the critical path**. To count each, the "
               "recorded messages are replayed on links that charge only for it.")
    lesson.counts(count(comm), f"p = {comm.size}, n = {960 * comm.size:,} B, k = {SEGMENTS}")
    names, rows = ("binomial", "chain", "pipelined_chain", "scatter_all_gather"), []
    for n in (640, 40_000, 4_000_000):
        array = np.zeros(n // 8)
        times = [seconds(comm, partial(broadcast, comm, array, algorithm=name)) for name in names]
        rows.append((f"{n:,} B", *(f"{t * 1e6:,.0f} µs" for t in times),
                     comm.choose("broadcast", n).replace("_", " ")))
    lesson.say(f"The time of a broadcast on these ranks ({lesson.clock}, not asserted):")
    lesson.grid(["n", *(name.replace("_", " ") for name in names), "auto chooses"], rows)
    lesson.say(about_auto(comm))
    if comm.rank == 0:
        lesson.say(f"What that means in time, on {P} simulated ranks: for a short array the rounds "
                   "decide, and the tree wins; for a long one the bytes decide, and the tree "
                   "loses.")
        lesson.table(compare(), f"{P} ranks, {links_of(Cluster(P))}", "simulated")
    lesson.picture(lambda path: draw_rounds(
        path, record_rounds("broadcast", "binomial", P, SEGMENTS),
        record_rounds("broadcast", "pipelined_chain", P, SEGMENTS, num_segments=SEGMENTS)))
