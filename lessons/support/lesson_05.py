"""Lesson 05: the library's all-to-alls, barriers and scans; times, pictures."""

from collections.abc import Callable
from functools import partial

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import all_to_all, barrier, exscan, scan, sum_over_ranks
from minipar.comm.cost import predict
from minipar.viz import draw_permutations, record_rounds, write_rounds_page

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

WAYS = [("all_to_all", "pairwise"), ("all_to_all", "bruck"), ("barrier", "dissemination"),
        ("barrier", "tree"), ("scan", "linear"), ("scan", "recursive_doubling"),
        ("exscan", "recursive_doubling")]
P, PIECE = 8, 5             # ranks of the picture and the second table; numbers in a piece


def num_wrong(comm: Communicator, operation: str, algorithm: str) -> int:
    """Run `operation` on this rank's row of a matrix (p, p · PIECE); count the wrong numbers."""
    p, r = comm.size, comm.rank
    matrix = np.random.default_rng(p).integers(-99, 99, (p, p * PIECE))
    if operation == "barrier":
        barrier(comm, algorithm)
        return 0
    if operation == "all_to_all":
        result = all_to_all(comm, matrix[r], algorithm=algorithm)
        right = matrix[:, r * PIECE:(r + 1) * PIECE].ravel()    # piece r of every rank's row
    elif operation == "scan":
        result, right = scan(comm, matrix[r], algorithm=algorithm), np.cumsum(matrix, axis=0)[r]
    else:
        result, right = exscan(comm, matrix[r], algorithm=algorithm), matrix[:r].sum(axis=0)
    return int(np.sum(result != right))


def count(comm: Communicator) -> list[Row]:
    """Rounds and bytes of every algorithm on these ranks, and its errors; rows on rank 0."""
    p, rows = comm.size, []
    for operation, algorithm in WAYS:
        trace, wrong = counted(comm, partial(num_wrong, comm, operation, algorithm))
        all_wrong = int(sum_over_ranks(comm, wrong))
        if comm.rank == 0:
            cost = predict(operation, algorithm, p, 0 if operation == "barrier" else p * PIECE)
            name = f"{operation.replace('_', '-')}, {algorithm.replace('_', ' ')}"
            rows += [Row(f"{name}: rounds", cost.rounds, rounds_of(trace, p)),
                     Row("    messages of all ranks", cost.messages, trace.num_sent()),
                     Row("    on the critical path", int(cost.num_bytes), path_of(trace, p), "B")]
            if operation != "barrier":
                rows.append(Row("    numbers that differ from NumPy's", 0, all_wrong))
    return rows


def time_of(algorithm: str, num_bytes: int) -> float:
    """Virtual µs of an all-to-all of `num_bytes` from each of P simulated ranks."""
    array = np.zeros(num_bytes // 8)
    return 1e6 * simulated(P, lambda comm: all_to_all(comm, array, algorithm=algorithm))


def arrive_late(own_barrier: Callable, comm: Communicator) -> float:
    """Virtual µs at which this rank leaves a barrier that rank r reaches after r · 10 µs."""
    comm.report_compute("compute", int(comm.rank * 1e-5 * Cluster(P).flops_per_second), 0, 0.0)
    own_barrier(comm)
    return comm.now() * 1e6


def compare(own_barrier: Callable) -> list[Row]:
    """Times on P simulated ranks: of both all-to-alls, and of a barrier."""
    alpha, beta = Cluster(P).latency * 1e6, 1e6 / Cluster(P).bandwidth      # µs, µs per byte
    jumps, rows = (P - 1).bit_length(), []                  # ⌈log₂ P⌉
    pairwise, bruck = partial(time_of, "pairwise"), partial(time_of, "bruck")
    for n in (640, 4_000_000):
        rows += [Row(f"all-to-all of {n:,} B, pairwise", (P - 1) * (alpha + n / P * beta),
                     pairwise(n), "µs"),
                 Row(f"all-to-all of {n:,} B, Bruck's", jumps * (alpha + n / 2 * beta), bruck(n),
                     "µs")]
    for name, predicted in (("pairwise", P * (P - 1)), ("bruck", P * jumps)):
        cluster = Cluster(P, trace=True)
        cluster.run(partial(all_to_all, array=np.zeros(P), algorithm=name))
        rows.append(Row(f"messages of all ranks, {name}", predicted, cluster.trace.num_sent()))
    equal_at = (P - 1 - jumps) * alpha / ((jumps / 2 - (P - 1) / P) * beta)
    rows.append(Row("they are equally fast at", equal_at,
                    crossing(pairwise, bruck, 6400, 640_000), "B"))
    left, _ = Cluster(P).run(partial(arrive_late, own_barrier))
    last = 10 * (P - 1)                 # µs after which the last rank arrives
    rows += [Row("barrier: the last rank arrives before the first leaves", min(left), last,
                 "µs", rule="≤"),
             Row(f"the last rank leaves {jumps} rounds later", last + jumps * alpha,
                 max(left), "µs")]
    return rows


def compare_with_library(lesson: Lesson, pairwise: Callable, bruck: Callable,
                         own_barrier: Callable, own_scan: Callable) -> None:
    """Compare the lesson's functions with the library's; count and time all of the library's."""
    comm = lesson.comm
    x = np.random.default_rng(comm.rank).standard_normal((comm.size, 77))
    lesson.counts(
        [Row(f"{name}: numbers that differ", 0, total(comm, int(np.sum(own != theirs))))
         for name, own, theirs in (
            ("pairwise", pairwise(comm, x), all_to_all(comm, x, algorithm="pairwise")),
            ("bruck", bruck(comm, x), all_to_all(comm, x, algorithm="bruck")),
            ("scan", own_scan(comm, x), scan(comm, x, algorithm="recursive_doubling")))],
        "The library's results, beside the lesson's, on random numbers")
    lesson.say("Counted on these ranks; every result is compared with NumPy's result for the whole "
               "matrix.")
    lesson.counts(count(comm), f"p = {comm.size}, n = {8 * comm.size * PIECE} B")
    rows = []
    for n in (100, 100_000):                    # numbers for each rank
        array = np.zeros(n * comm.size)
        rows.append((f"{8 * n:,} B for each", *(
            f"{seconds(comm, partial(all_to_all, comm, array, algorithm=name)) * 1e6:,.0f} µs"
            for name in ("pairwise", "bruck"))))
    lesson.say(f"The time of an all-to-all on these ranks ({lesson.clock}, not asserted):")
    lesson.grid(["", "pairwise", "Bruck's"], rows)
    if comm.rank == 0:
        lesson.say(f"Times on {P} simulated ranks. In Bruck's algorithm a piece is sent once for "
                   "each binary 1 in the distance that it travels: fewer rounds, more bytes.")
        lesson.table(compare(own_barrier), f"{P} ranks, {links_of(Cluster(P))}", "simulated")
    lesson.picture(lambda path: draw_permutations(path, *(
        record_rounds(operation, algorithm, P) for operation, algorithm in WAYS[:3])))
    lesson.page(lambda path: write_rounds_page(
        path, *(record_rounds(operation, algorithm, min(comm.size, P),
                              None if operation == "all_to_all" else 1)
                for operation, algorithm in WAYS[:-1]),
        title=f"All-to-all, barrier and scan on {min(comm.size, P)} ranks"))
