"""Lesson 01. Messages: why did it hang?

A message of n bytes takes  α + n β  seconds: the latency α, and β seconds for each byte, which is
1 / bandwidth.  It also takes two ranks: a send without a matching receive may block for ever.  Such
a program may still end while its messages are small, because MPI buffers small messages (*eager*).
Large messages are handed over (*rendezvous*): the send blocks until the receive is posted.

    ping-pong    rank 0 ──n──▶ rank 1        a ring     0 ──▶ 1      all send first: each waits for
                 rank 0 ◀──n── rank 1                   ▲     │      a rank that waits
                 2 (α + n β) seconds                    3 ◀── 2

    python lessons/01_messages.py          mpirun -n 4 python lessons/01_messages.py

Programs that hang run on a small simulated cluster inside rank 0, also under mpirun.  There a
deadlock ends with a message that says which rank waits for which.
"""

import numpy as np
from support.kept_trace import stop_trace
from support.kit import Lesson, Row
from support.lesson_01 import compare_with_library

from minipar.comm import Communicator
from minipar.launcher import launch

SIZES = [8 * 4**k for k in range(9)]        # bytes: 8 … 512 Ki


def ping_pong(comm: Communicator, num_bytes: int, repeats: int = 20) -> float:
    """The shortest of several one-way times between ranks 0 and 1, in seconds; 0 elsewhere."""
    if comm.rank > 1:
        return 0.0
    sent, back, best = np.arange(num_bytes // 8, dtype=float), np.empty(num_bytes // 8), np.inf
    for _ in range(repeats):
        start = comm.now()
        if comm.rank == 0:
            comm.send(sent, 1)
            comm.recv(back, 1)
        else:
            comm.recv(back, 0)
            comm.send(back, 0)
        best = min(best, (comm.now() - start) / 2)
    assert np.array_equal(back, sent), "what came back is not what was sent"
    return best


def fit(sizes: list[int], times: list[float]) -> tuple[float, float]:
    """The α and β by which α + n β misses the times least, each by its share of the time."""
    n, t = np.array(sizes), np.array(times)
    rows = np.stack([1 / t, n / t], axis=1)         # α · 1/t + β · n/t shall be 1
    alpha, beta = np.linalg.lstsq(rows, np.ones(len(t)), rcond=None)[0]
    return alpha, beta


def neighbours(comm: Communicator) -> tuple[int, int]:
    """The ranks to the right and to the left, in a ring."""
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def send_first(comm: Communicator, mine: np.ndarray) -> np.ndarray:
    """The left rank's array.  If sends wait for receives, no rank comes to its receive: a hang."""
    (right, left), theirs = neighbours(comm), np.empty_like(mine)
    comm.send(mine, right)
    comm.recv(theirs, left)
    return theirs


def at_once(comm: Communicator, mine: np.ndarray) -> np.ndarray:
    """First way out: both halves at once."""
    (right, left), theirs = neighbours(comm), np.empty_like(mine)
    comm.sendrecv(mine, right, theirs, left)
    return theirs


def without_waiting(comm: Communicator, mine: np.ndarray) -> np.ndarray:
    """Second way out: begin to send, and wait for it after the receive."""
    (right, left), theirs = neighbours(comm), np.empty_like(mine)
    request = comm.isend(mine, right)
    comm.recv(theirs, left)
    request.wait()
    return theirs


def in_turn(comm: Communicator, mine: np.ndarray) -> np.ndarray:
    """Third way out: even ranks send first, odd ranks receive first."""
    (right, left), theirs = neighbours(comm), np.empty_like(mine)
    for sends in (True, False) if comm.rank % 2 == 0 else (False, True):
        comm.send(mine, right) if sends else comm.recv(theirs, left)
    return theirs


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    comm.start_trace()
    times = [ping_pong(comm, size) for size in SIZES]
    pair, partners = stop_trace(comm), comm.rank < 2
    line = fit(SIZES, times) if comm.rank == 0 else None
    mine, left = np.full(5, float(comm.rank)), float((comm.rank - 1) % comm.size)
    ways = at_once, without_waiting, in_turn
    lesson.table([
        Row("ping-pong: messages of this rank", partners * len(SIZES) * 20, pair.num_sent()),
        Row("ping-pong: bytes of this rank", partners * sum(SIZES) * 20, pair.bytes_sent(), "B"),
        *[Row(f"{way.__name__}: numbers that are not the left rank's", 0,
              int(np.sum(way(comm, mine) != left))) for way in ways]])
    compare_with_library(lesson, SIZES, times, line, ping_pong, send_first, at_once)
    lesson.takeaway("A message costs α + n β, and needs two ranks that agree on the order: post "
                    "the receive before you block in a send, or use sendrecv.")
    lesson.exercises(questions=[
        "Fix the four programs in lessons/support/bug_zoo.py, each with a line or two.",
        "How many rounds does in_turn take for even p, and for odd p? In it, write `comm.rank > 0` "
        "in place of `comm.rank % 2 == 0`: does it still end, and after how many?",
        "From which EAGER (lessons/support/lesson_01.py) on does a ring of 512 bytes end? Why is "
        "a larger limit no fix?"])


if __name__ == "__main__":
    launch(main)
