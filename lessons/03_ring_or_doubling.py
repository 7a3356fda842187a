"""Lesson 03. All-gather, reduce-scatter: a ring or doubling?

Every rank has one chunk and needs all p chunks, n bytes together.  So each rank must receive
(p-1)/p n bytes, whatever the algorithm.  A ring takes p - 1 rounds for that, doubling ⌈log₂ p⌉:

    ring                           (p-1) α    + (p-1)/p n β        one chunk in each round
    doubling, halving, Bruck's     ⌈log₂ p⌉ α + (p-1)/p n β        1, 2, 4, … chunks

    ring       0 ─0▶ 1 ─1▶ 2 ─2▶ 3 ─3▶ 0       then 0 ─3▶ 1 ─0▶ 2 …: pass on what came last
    doubling   0 ◀─▶ 1   2 ◀─▶ 3               then 0 ◀─▶ 2, 1 ◀─▶ 3: swap all that you have
    Bruck's    0 ◀── 1 ◀── 2 ◀── 3 ◀── 0       then the same to the rank 2 before: for any p

A reduce-scatter is an all-gather run backwards: an all-gather copies chunks, a reduce-scatter adds
them.  The library's: minipar/comm/collectives/all_gather.py and reduce_scatter.py.

    python lessons/03_ring_or_doubling.py          mpirun -n 4 python lessons/03_ring_or_doubling.py
"""

from functools import partial

import numpy as np
from support.kit import Lesson, Row
from support.lesson_03 import compare_with_library
from support.measuring import counted, path_of, rounds_of

from minipar.comm import Communicator
from minipar.launcher import launch

# All of them work on a matrix with a row, the chunk, for each rank.  Index -1 is the last row.


def ring(comm: Communicator, rows: np.ndarray) -> None:
    """All-gather: row r is mine; afterwards all rows are there."""
    p, r = comm.size, comm.rank
    for i in range(p - 1):
        comm.sendrecv(rows[r - i], (r + 1) % p, rows[r - i - 1], (r - 1) % p)


def doubling(comm: Communicator, rows: np.ndarray) -> None:
    """All-gather on p = 2^k ranks: swap all rows so far with a rank twice as far away."""
    r, have = comm.rank, 1
    while have < comm.size:
        peer = r ^ have                         # ^ flips a bit: 5 ^ 2 = 101₂ ^ 010₂ = 111₂ = 7
        mine, theirs = r // have * have, peer // have * have
        comm.sendrecv(rows[mine:mine + have], peer, rows[theirs:theirs + have], peer)
        have *= 2


def bruck(comm: Communicator, rows: np.ndarray) -> None:
    """All-gather on any p: send all rows so far to the rank that lacks them."""
    p, r, have = comm.size, comm.rank, 1
    turned = np.roll(rows, -r, axis=0)          # my row first, then that of rank r + 1, …
    while have < p:
        more = min(have, p - have)              # the last round brings what is still missing
        comm.sendrecv(turned[:more], (r - have) % p, turned[have:have + more], (r + have) % p)
        have += more
    rows[:] = np.roll(turned, r, axis=0)


def ring_reduce_scatter(comm: Communicator, rows: np.ndarray) -> np.ndarray:
    """Row r of the sum of all ranks' rows: each partial sum goes around, to its owner."""
    p, r, arrived = comm.size, comm.rank, np.empty_like(rows[0])
    for i in range(1, p):
        comm.sendrecv(rows[r - i], (r + 1) % p, arrived, (r - 1) % p)
        rows[r - i - 1] += arrived
    return rows[r]


def halving(comm: Communicator, rows: np.ndarray) -> np.ndarray:
    """The same on p = 2^k ranks: give away half of the rows, and add to those that you keep."""
    half = comm.size // 2
    while half:
        is_upper, peer = comm.rank & half > 0, comm.rank ^ half
        keep, give = (rows[half:], rows[:half]) if is_upper else (rows[:half], rows[half:])
        arrived = np.empty_like(keep)
        comm.sendrecv(give, peer, arrived, peer)
        keep += arrived
        rows, half = keep, half // 2
    return rows[0]


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, r, up = comm.size, comm.rank, (comm.size - 1).bit_length()       # up = ⌈log₂ p⌉
    full, paths, rows = np.arange(5.0 * p).reshape(p, 5), [], []
    for name, way, rounds in (("ring", ring, p - 1), ("doubling", doubling, up),
                              ("Bruck's", bruck, up), ("ring, adding", ring_reduce_scatter, p - 1),
                              ("halving", halving, up)):
        if way in (doubling, halving) and p != 2**up:
            continue
        adds = way in (ring_reduce_scatter, halving)
        given = full.copy() if adds else full * (np.arange(p) == r)[:, None]
        trace, result = counted(comm, partial(way, comm, given))
        assert np.array_equal(*((result, p * full[r]) if adds else (given, full))), name
        if r == 0:
            rows.append(Row(f"{name}: rounds", rounds, rounds_of(trace, p)))
            paths.append(path_of(trace, p))
    if r == 0:
        assert len({*paths}) == 1, "all of them carry as many bytes"
        rows.append(Row("    on the critical path of each", (p - 1) * 40, paths[0], "B"))
    lesson.table(rows, f"p = {p}, n = {40 * p} B")
    compare_with_library(lesson, ring, bruck, ring_reduce_scatter)
    lesson.takeaway("Every algorithm brings each rank (p-1)/p n bytes, so rounds decide for short "
                    "arrays. For long ones the ring is as good as any, for every p, and crowds no "
                    "link.")
    lesson.exercises(questions=[
        "Step through the page on 6 ranks (--ranks 6): which ranks stand aside in recursive "
        "doubling, and what do they get at the end?",
        "In doubling, write `peer = (r + have) % comm.size` in place of `peer = r ^ have`. What "
        "happens on 2 ranks, and on 4?",
        "In a ring reduce-scatter, in which order are the p parts of chunk 0 added? Is it the same "
        "order for chunk 1? Does it matter in floating point?",
        "What would a ring cost if each rank had two links, one to each neighbour?"])


if __name__ == "__main__":
    launch(main)
