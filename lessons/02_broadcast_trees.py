"""Lesson 02. Broadcast, scatter, gather, reduce: a tree or a chain?

One rank has n bytes for all p ranks.  In each round of a binomial tree every rank that has the
array passes it on, so the tree needs only ⌈log₂ p⌉ rounds; but every round carries all n bytes:

    binomial tree          ⌈log₂ p⌉ (α + n β)
    chain of k segments    (p + k - 2) (α + n β / k)                  all links busy at once
    scatter + all-gather   (⌈log₂ p⌉ + p - 1) α + 2 (p-1)/p n β       every byte moves about twice

A reduce runs the tree backwards.  A scatter is a tree whose messages get smaller.

    python lessons/02_broadcast_trees.py          mpirun -n 4 python lessons/02_broadcast_trees.py
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from support.auto_choice import about_auto
from support.kit import Lesson, Row
from support.measuring import counted, crossing, links_of, path_of, rounds_of, seconds, simulated

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import broadcast, chunk_bounds, gather, reduce, scatter
from minipar.comm.collectives.broadcast import pipelined_chain
from minipar.comm.cost import predict
from minipar.launcher import launch
from minipar.viz import draw_rounds, record_rounds

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


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    lesson.say("Counted from the messages of these ranks: the **rounds**, messages that must "
               "follow one another, and the **bytes on the critical path**. To count each, the "
               "recorded messages are replayed on links that charge only for it.")
    lesson.table(count(comm), f"p = {comm.size}, n = {960 * comm.size:,} B, k = {SEGMENTS}")
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
    lesson.takeaway("A tree has the fewest rounds, so use it for short arrays. Cut long arrays "
                    "into pieces, so that all links carry different bytes at once.")
    lesson.exercises(questions=[
        "Which number of segments k minimizes (p + k - 2)(α + n β / k)? What remains of the time "
        "for very large n?",
        "From the root a linear scatter sends exactly as many bytes as a binomial one. Why is the "
        "tree still faster, and when does that not matter?",
        "A reduce by the tree adds n (p - 1) numbers in all. Which rank adds how many, and when?"])


if __name__ == "__main__":
    launch(main)
