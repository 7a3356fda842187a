"""Lesson 04. All-reduce: which wins when?

Every rank has n bytes and needs the sum over all ranks.  On p ranks, on N nodes, all powers of two:

    seconds = rounds · α + bytes · β        α: of a message of no bytes, β: of a byte

    ring                 2(p - 1)                  2n(p - 1)/p          fewest bytes, any p
    recursive doubling   log₂ p                    n log₂ p             fewest rounds
    Rabenseifner         2 log₂ p                  2n(p - 1)/p          both, nearly
    two levels (torus)   2(p/N - 1) + 2(N - 1)     2n(p - 1)/p          a node sends 2n(N - 1)/N to
                                                                        other nodes

    doubling, p = 4      0 ◀─▶ 1   2 ◀─▶ 3         all n bytes: each has the sum of 2 ranks,
                         0 ◀─▶ 2   1 ◀─▶ 3         then of 4
    Rabenseifner         0 ◀─▶ 2   1 ◀─▶ 3         a half: each sums the half that it keeps,
                         0 ◀─▶ 1   2 ◀─▶ 3         then a quarter; and the same way back

For short arrays α decides: few rounds win.  For long ones β decides: few bytes win.  In between the
curves cross.  The library's: minipar/comm/collectives/all_reduce.py.

    python lessons/04_all_reduce.py          mpirun -n 4 python lessons/04_all_reduce.py
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from micro import all_gather, reduce_scatter
from support.kit import Lesson, Row
from support.lesson_04 import compare_with_library
from support.measuring import counted, path_of, rounds_of

from minipar.comm import Communicator
from minipar.launcher import launch


def ring(comm: Communicator, x: np.ndarray) -> np.ndarray:
    """First rank r has the sum of piece r; then every sum goes around the ring."""
    return all_gather(comm, reduce_scatter(comm, x), x.size)


def double(comm: Communicator, ranks: list[int], x: np.ndarray) -> None:
    """Swap sums with a rank at distance 1, 2, 4, …, and add.  In place, on 2^k ranks."""
    me, arrived, distance = ranks.index(comm.rank), np.empty_like(x), 1
    while distance < len(ranks):
        peer = ranks[me ^ distance]             # ^ flips one bit: 5 = 101₂, 5 ^ 2 = 111₂ = 7
        comm.sendrecv(x, peer, arrived, peer)
        x += arrived
        distance *= 2


def halve_and_double(comm: Communicator, ranks: list[int], x: np.ndarray) -> None:
    """Give away half of x; sum the half that you keep among half of the ranks; then swap sums."""
    if len(ranks) == 1:
        return
    half, me = len(ranks) // 2, ranks.index(comm.rank)
    low, high = x[:x.size // 2], x[x.size // 2:]
    peer, keep, give, group = ((ranks[me + half], low, high, ranks[:half]) if me < half else
                               (ranks[me - half], high, low, ranks[half:]))
    arrived = np.empty_like(keep)
    comm.sendrecv(give, peer, arrived, peer)
    keep += arrived
    halve_and_double(comm, group, keep)
    comm.sendrecv(keep, peer, give, peer)


def on_any_number(algorithm: Callable, comm: Communicator, x: np.ndarray) -> np.ndarray:
    """Run it on 2^k ranks; each surplus rank, an odd one, first gives its x to the one before."""
    p, r, x, arrived = comm.size, comm.rank, x.copy(), np.empty_like(x)
    surplus = p - 2**(p.bit_length() - 1)
    ranks = [i for i in range(p) if i >= 2 * surplus or i % 2 == 0]
    if r not in ranks:
        comm.send(x, r - 1)
        comm.recv(x, r - 1)
        return x
    has_two = r < 2 * surplus                   # this rank adds for rank r + 1, too
    if has_two:
        comm.recv(arrived, r + 1)
        x += arrived
    algorithm(comm, ranks, x)
    if has_two:
        comm.send(x, r + 1)
    return x


def two_levels(comm: Communicator, x: np.ndarray, per_node: int) -> np.ndarray:
    """Nodes of per_node ranks: sum pieces within the nodes, then each piece across all nodes."""
    node = comm.split(comm.rank // per_node)    # split: a communicator of all with equal numbers
    across = comm.split(comm.rank % per_node)   # the ranks that have the same piece
    return all_gather(node, ring(across, reduce_scatter(node, x)), x.size)


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, k, extra = comm.size, comm.size.bit_length() - 1, 2 * (comm.size.bit_count() > 1)
    n, rows = 8 * p << k, []                    # extra: rounds of surplus ranks, if there are any
    for name, algorithm, rounds, num_bytes in (
            ("ring", ring, 2 * (p - 1), 2 * (n - n // p)),
            ("doubling", partial(on_any_number, double), k + extra, (k + extra) * n),
            ("Rabenseifner", partial(on_any_number, halve_and_double), 2 * k + extra,
             2 * (n - n // 2**k) + extra * n)):
        trace, total = counted(comm, partial(algorithm, comm, np.arange(n / 8) + comm.rank))
        assert np.array_equal(total, p * np.arange(n / 8) + p * (p - 1) / 2), "as one process adds"
        if comm.rank == 0:
            rows += [Row(f"{name}: rounds", rounds, rounds_of(trace, p)),
                     Row("    on the critical path", num_bytes, path_of(trace, p), "B")]
    lesson.table(rows, f"n = {n} bytes on p = {p} ranks")
    compare_with_library(lesson, ring, double, halve_and_double, on_any_number, two_levels)
    lesson.takeaway("Few rounds for short arrays, few bytes for long ones, and few bytes over slow "
                    "links: no all-reduce is always best, so choose by size, ranks and links.")
    lesson.exercises(questions=[
        "A ring has the fewest bytes for every p. Why does Rabenseifner's algorithm not have them "
        "for p = 5?",
        "In double, write `distance += 1` in place of `distance *= 2`. What do 2 and 4 ranks get?",
        "`minipar calibrate`, under mpirun (see docs/pages/choosing.md), measures all collectives "
        "on these ranks. Does it agree?"])


if __name__ == "__main__":
    launch(main)
