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
    scan             ⌈log₂ p⌉ (α + n β)       up to n ⌈log₂ p⌉ bytes from a rank; in a chain n

    python lessons/05_all_to_all_barrier_scan.py      mpirun -n 4 python lessons/05_…
"""

from functools import partial

import numpy as np
from support.kit import Lesson, Row
from support.lesson_05 import compare_with_library
from support.measuring import counted, rounds_of

from minipar.comm import Communicator
from minipar.launcher import launch


def pairwise(comm: Communicator, rows: np.ndarray) -> np.ndarray:
    """Row i of mine goes to rank i; row i of the result has come from rank i."""
    p, r, got = comm.size, comm.rank, np.empty_like(rows)
    got[r] = rows[r]
    for k in range(1, p):
        comm.sendrecv(rows[(r + k) % p], (r + k) % p, got[(r - k) % p], (r - k) % p)
    return got


def bruck(comm: Communicator, rows: np.ndarray) -> np.ndarray:
    """The same in jumps of 1, 2, 4, …: a row makes those that the bits of its distance say."""
    p, r, jump = comm.size, comm.rank, 1
    rows = np.roll(rows, -r, axis=0)            # row j has j ranks to go
    while jump < p:
        moving = [j for j in range(p) if j & jump]
        arrived = np.empty_like(rows[moving])
        comm.sendrecv(rows[moving], (r + jump) % p, arrived, (r - jump) % p)
        rows[moving] = arrived                  # in the place of those that have left
        jump *= 2
    return rows[(r - np.arange(p)) % p]         # row j has come from rank r - j


def barrier(comm: Communicator) -> None:
    """Return when all ranks are here: dissemination."""
    p, r, nothing, distance = comm.size, comm.rank, np.empty(0), 1
    while distance < p:
        comm.sendrecv(nothing, (r + distance) % p, nothing, (r - distance) % p)
        distance *= 2


def scan(comm: Communicator, x: np.ndarray) -> np.ndarray:
    """The sum over ranks 0 … r: each round doubles the number of ranks that are in it."""
    p, r, total, arrived, reach = comm.size, comm.rank, x.copy(), np.empty_like(x), 1
    while reach < p:
        sends = [comm.isend(total, r + reach)] if r + reach < p else []
        if r >= reach:
            comm.recv(arrived, r - reach)
        for request in sends:
            request.wait()                      # before total changes
        if r >= reach:
            total += arrived
        reach *= 2
    return total


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, r, up, rows = comm.size, comm.rank, (comm.size - 1).bit_length(), []     # up = ⌈log₂ p⌉
    matrix = np.random.default_rng(p).integers(-99, 99, (p, p, 5))  # from rank, to rank, a piece
    for name, run, right, rounds, messages in (
            ("pairwise", partial(pairwise, comm, matrix[r]), matrix[:, r], p - 1, p * (p - 1)),
            ("Bruck's", partial(bruck, comm, matrix[r]), matrix[:, r], up, p * up),
            ("barrier", partial(barrier, comm), None, up, p * up),
            ("scan", partial(scan, comm, matrix[r]), matrix[:r + 1].sum(axis=0), up, None)):
        trace, result = counted(comm, run)
        assert np.array_equal(result, right), f"{name} must give what one process computes"
        if r == 0:
            rows.append(Row(f"{name}: rounds", rounds, rounds_of(trace, p)))
            rows += [Row("    messages of all ranks", messages, trace.num_sent())
                     ] if name in ("pairwise", "Bruck's") else []
    lesson.table(rows, f"p = {p}")
    compare_with_library(lesson, pairwise, bruck, barrier, scan)
    lesson.takeaway("Jumps of 1, 2, 4, … reach all ranks in ⌈log₂ p⌉ rounds. The price: a barrier "
                    "sends more messages, a scan up to n ⌈log₂ p⌉ bytes from a rank, and an "
                    "all-to-all sends many pieces more than once.")
    lesson.exercises(questions=[
        "A tree barrier has fewer messages, a dissemination barrier fewer rounds. Which would you "
        "choose on 10,000 ranks, and what would change your mind?",
        "In barrier, write `distance *= 3` in place of `distance *= 2`. On 8 ranks, does it hang? "
        "Is it still a barrier?",
        "Ranks have different numbers of samples. Which single collective tells each rank where "
        "its part of a shared file begins?",
        "A mixture of experts sends each token to the rank of its expert. Why is that an "
        "all-to-all with unequal counts, and which rank decides how long it takes?"])


if __name__ == "__main__":
    launch(main)
