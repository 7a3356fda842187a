"""Lesson 02. Broadcast, scatter, gather, reduce: a tree or a chain?

Rank 0 has n bytes for all p ranks.  In each round of a binomial tree every rank that has the array
passes it on to one without.  So ⌈log₂ p⌉ rounds are enough, but each message has all n bytes:

    binomial tree          ⌈log₂ p⌉ (α + n β)                         0 ─▶ 1, 0 ─▶ 2 and 1 ─▶ 3, …
    chain of k segments    (p + k - 2) (α + n β / k)                  0 ─c▶ 1 ─b▶ 2 ─a▶ 3
    scatter + all-gather   (⌈log₂ p⌉ + p - 1) α + 2 (p-1)/p n β       less than 2 n bytes, for any p

A scatter is a tree whose messages get smaller.  A gather runs it backwards; a reduce runs the first
tree backwards, and adds.  The library's: minipar/comm/collectives/broadcast.py and its neighbours.

    python lessons/02_broadcast_trees.py          mpirun -n 4 python lessons/02_broadcast_trees.py
"""

from functools import partial

import numpy as np
from micro import all_gather
from support.kit import Lesson, Row
from support.lesson_02 import compare_with_library
from support.measuring import counted, rounds_of

from minipar.comm import Communicator
from minipar.launcher import launch


def tree(comm: Communicator, x: np.ndarray) -> None:
    """Everyone's x becomes rank 0's.  `have` ranks have it: 1, 2, 4, …"""
    p, r, have = comm.size, comm.rank, 1
    while have < p:
        if r < have and r + have < p:
            comm.send(x, r + have)
        elif have <= r < 2 * have:
            comm.recv(x, r - have)
        have *= 2


def chain(comm: Communicator, x: np.ndarray, num_segments: int) -> None:
    """The same: each rank passes a segment on while the next one comes."""
    p, r, sends = comm.size, comm.rank, []
    for segment in np.array_split(x, num_segments):     # views of x
        if r > 0:
            comm.recv(segment, r - 1)
        if r < p - 1:
            sends.append(comm.isend(segment, r + 1))
    for request in sends:
        request.wait()


def pieces(comm: Communicator, x: np.ndarray, first: int, count: int) -> np.ndarray:
    """The pieces of ranks first … first + count - 1 (at most p - 1), as one view of x."""
    sizes = [len(piece) for piece in np.array_split(x, comm.size)]
    return x[sum(sizes[:first]):sum(sizes[:first + count])]


def scatter(comm: Communicator, x: np.ndarray) -> None:
    """Piece r of rank r's x becomes that of rank 0.  First halves travel, then quarters, …"""
    p, r = comm.size, comm.rank
    distance = 2**(p - 1).bit_length() // 2
    while distance:
        if r % (2 * distance) == 0 and r + distance < p:
            comm.send(pieces(comm, x, r + distance, distance), r + distance)
        elif r % (2 * distance) == distance:
            comm.recv(pieces(comm, x, r, distance), r - distance)
        distance //= 2


def scatter_all_gather(comm: Communicator, x: np.ndarray) -> None:
    """Everyone's x becomes rank 0's."""
    scatter(comm, x)
    x[:] = all_gather(comm, pieces(comm, x, comm.rank, 1), x.size)


def gather(comm: Communicator, x: np.ndarray) -> None:
    """Rank 0's x gets piece r from rank r: the scatter backwards.

    (A reduce sends all of x every time, and adds what arrives to it.)
    """
    p, r, distance = comm.size, comm.rank, 1
    while distance < p and r % distance == 0:           # who has sent is done
        if r % (2 * distance) == distance:
            comm.send(pieces(comm, x, r, distance), r - distance)
        elif r + distance < p:
            comm.recv(pieces(comm, x, r + distance, distance), r + distance)
        distance *= 2


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, r, k, rows, wrong = comm.size, comm.rank, 4, [], 0
    up, x = (p - 1).bit_length(), np.arange(8.0 * p)            # up = ⌈log₂ p⌉
    for name, way, rounds, given, right in (
            ("binomial tree", tree, up, x * (r == 0), x),
            (f"chain of {k} segments", partial(chain, num_segments=k), p + k - 2, x * (r == 0), x),
            ("scatter + all-gather", scatter_all_gather, up + p - 1, x * (r == 0), x),
            ("gather", gather, up, x * (x // 8 == r), x if r == 0 else None)):
        trace, _ = counted(comm, partial(way, comm, given))
        wrong += 0 if right is None else int(np.sum(given != right))
        if r == 0:
            rows.append(Row(f"{name}: rounds", rounds, rounds_of(trace, p)))
    lesson.table([*rows, Row("numbers that one process would not have", 0, wrong)], f"p = {p}")
    compare_with_library(lesson, tree, chain, scatter_all_gather, gather)
    lesson.takeaway("A tree has the fewest rounds, so use it for short arrays. Cut long arrays "
                    "into pieces, so that all links carry different bytes at once.")
    lesson.exercises(questions=[
        "Which number of segments k minimizes (p + k - 2)(α + n β / k)? What remains of the time "
        "for very large n?",
        "In chain, write `comm.send(segment, r + 1)` in place of `sends.append(comm.isend(segment, "
        "r + 1))`. Does it hang? How many rounds do 4 segments take on 4 ranks?",
        "From the root a linear scatter sends exactly as many bytes as a binomial one. Why is the "
        "tree still faster, and when does that not matter?",
        "A reduce by the tree adds n (p - 1) numbers in all. Which rank adds how many, and when?"])


if __name__ == "__main__":
    launch(main)
