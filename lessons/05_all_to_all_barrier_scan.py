"""Lesson 05. All-to-all, barrier, scan: who must talk to whom?

In an all-to-all every rank has a different piece for every other rank: the ranks transpose a matrix
together.  The pairwise algorithm sends each piece directly.  In Bruck's algorithm pieces travel in
jumps of 1, 2, 4, … ranks, and all pieces that make the same jump share one message.  A rank has n
bytes, a piece of n/p for each of the p ranks:

    pairwise         (p-1) α    + (p-1)/p n β          each round is a permutation of the ranks
    Bruck's          ⌈log₂ p⌉ α + about ⌈log₂ p⌉ n/2 β

    Bruck's, p = 8: a piece with 5 = 101₂ ranks to go      r ──1──▶ r+1 ────4────▶ r+5
                    (in rounds 0 and 2; it rests in 1)

The same jumps with empty messages are a barrier: after ⌈log₂ p⌉ rounds every rank has heard from
every other, directly or not.  With partial sums they are a scan, which tells each rank where its
part begins:

    barrier          ⌈log₂ p⌉ α               p ⌈log₂ p⌉ messages, where a tree needs 2(p-1)
    scan             ⌈log₂ p⌉ (α + n β)       n ⌈log₂ p⌉ bytes from a rank, where a chain sends n

    python lessons/05_all_to_all_barrier_scan.py      mpirun -n 4 python lessons/05_…
"""

from functools import partial

import numpy as np
from support.kit import Lesson, Row
from support.measuring import counted, crossing, links_of, path_of, rounds_of, seconds, simulated

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import all_to_all, barrier, exscan, scan, sum_over_ranks
from minipar.comm.cost import predict
from minipar.launcher import launch
from minipar.viz import draw_permutations, record_rounds, write_rounds_page

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


def arrive_late(comm: Communicator) -> float:
    """Virtual µs at which this rank leaves a barrier that rank r reaches after r · 10 µs."""
    comm.report_compute("compute", int(comm.rank * 1e-5 * Cluster(P).flops_per_second), 0, 0.0)
    barrier(comm)
    return comm.now() * 1e6


def compare() -> list[Row]:
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
    left, _ = Cluster(P).run(arrive_late)
    last = 10 * (P - 1)                 # µs after which the last rank arrives
    rows += [Row("barrier: the last rank arrives before the first leaves", min(left), last,
                 "µs", rule="≤"),
             Row(f"the last rank leaves {jumps} rounds later", last + jumps * alpha,
                 max(left), "µs")]
    return rows


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    lesson.say("Counted on these ranks; every result is compared with NumPy's result for the whole "
               "matrix.")
    lesson.table(count(comm), f"p = {comm.size}, n = {8 * comm.size * PIECE} B")
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
        lesson.table(compare(), f"{P} ranks, {links_of(Cluster(P))}", "simulated")
    lesson.picture(lambda path: draw_permutations(path, *(
        record_rounds(operation, algorithm, P) for operation, algorithm in WAYS[:3])))
    lesson.page(lambda path: write_rounds_page(
        path, *(record_rounds(operation, algorithm, min(comm.size, P),
                              None if operation == "all_to_all" else 1)
                for operation, algorithm in WAYS[:-1]),
        title=f"All-to-all, barrier and scan on {min(comm.size, P)} ranks"))
    lesson.takeaway("Jumps of 1, 2, 4, … reach all ranks in ⌈log₂ p⌉ rounds. The price: a barrier "
                    "sends more messages, a scan n ⌈log₂ p⌉ bytes from each rank, and an "
                    "all-to-all sends most pieces more than once.")
    lesson.exercises(questions=[
        "A tree barrier has fewer messages, a dissemination barrier fewer rounds. Which would you "
        "choose on 10,000 ranks, and what would change your mind?",
        "Ranks have different numbers of samples. Which single collective tells each rank where "
        "its part of a shared file begins?",
        "A mixture of experts sends each token to the rank of its expert. Why is that an "
        "all-to-all with unequal counts, and which rank decides how long it takes?"])


if __name__ == "__main__":
    launch(main)
