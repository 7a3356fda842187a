"""A program in which one rank makes a mistake, for the check of real ranks.

    MINIPAR_CHECK=1 mpirun -n 3 python -m tests.support.mistakes "another op" 17

All ranks draw the same numbers from the seed: which rank it is, sizes, collectives.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable

import numpy as np

from minipar.comm.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scan,
    scatter,
)
from minipar.comm.work import start_work
from minipar.launcher import launch

REDUCTIONS = (all_reduce, reduce, reduce_scatter, scan)
ROOTED = (broadcast, reduce, gather, scatter)
WITH_ARRAY = (all_reduce, reduce, reduce_scatter, scan, broadcast, gather, all_gather, scatter,
              all_to_all)
ALONE = r"\n  rank {who} called "           # a line of the report for this rank alone
WAITS = r"deadlock: .*go on(\n.*)*\n  rank {who} waits "
GONE = r"deadlock: .*go on(\n.*)*rank {who} .*, which has returned, at "
TOUCHED = r"rank {who} of \d failed:(\n.*)*ValueError: rank {who} changed the array of "
# what is said of each mistake; {who} is the rank, {peer} the next one
SAID: dict[str, str] = {}
MISTAKES: dict[str, Callable] = {}


class Case:
    """The numbers of one run."""

    def __init__(self, comm, seed: int):
        self.comm, self.draw = comm, random.Random(seed)
        p = comm.size
        self.who = self.draw.randrange(p)
        self.peer = (self.who + 1) % p
        self.odd = comm.rank == self.who
        self.is_peer = comm.rank == self.peer
        self.array = np.ones(p * self.draw.choice([1, 10, 3000]))

    def call(self, collectives=WITH_ARRAY, array=None, **options) -> None:
        """Call one of the collectives, the same on all ranks."""
        self.draw.choice(collectives)(self.comm, self.array if array is None else array, **options)


def mistake(name: str, said: str) -> Callable:
    """Enter a function of a Case into MISTAKES."""
    def enter(function: Callable) -> Callable:
        SAID[name], MISTAKES[name] = said, function
        return function
    return enter


@mistake("another op", "collective mismatch: ranks differ in op" + "(\n.*)*" + ALONE)
def another_op(case):
    case.call(REDUCTIONS, op="max" if case.odd else "sum")


@mistake("another dtype", "collective mismatch: ranks differ in dtype(\n.*)*" + ALONE)
def another_dtype(case):
    case.call(array=case.array.astype(np.int64) if case.odd else None)


@mistake("another size", "collective mismatch: ranks differ in shape(\n.*)*" + ALONE)
def another_size(case):
    p = case.comm.size
    case.call((all_reduce, reduce, scan, broadcast, all_gather, reduce_scatter),
              array=case.array[p:] if case.odd and case.array.size > p else
              np.ones(2 * p) if case.odd else None)


@mistake("another shape", "collective mismatch: ranks differ in shape(\n.*)*" + ALONE)
def another_shape(case):
    case.call((all_reduce, broadcast, scan),
              array=case.array.reshape(1, -1) if case.odd else None)


@mistake("another root", "collective mismatch: ranks differ in root(\n.*)*" + ALONE)
def another_root(case):
    case.call(ROOTED, root=1 if case.odd else 0)


@mistake("another collective", "collective mismatch: ranks differ in operation(\n.*)*" + ALONE)
def another_collective(case):
    usual, other = case.draw.sample(WITH_ARRAY, 2)
    (other if case.odd else usual)(case.comm, case.array)


@mistake("another order", "collective mismatch: ranks differ in operation(\n.*)*" + ALONE)
def another_order(case):
    calls = case.draw.sample(WITH_ARRAY, 2)
    for call in calls[::-1] if case.odd else calls:
        call(case.comm, case.array)


@mistake("a collective left out", f"{ALONE}|{GONE}|{WAITS}")
def left_out(case):
    if not case.odd:
        case.call()


@mistake("a collective too many", f"{ALONE}|{WAITS}")
def too_many(case):
    if case.odd:
        case.call()


@mistake("a barrier left out", f"{GONE}|collective mismatch")
def barrier_left_out(case):
    if not case.odd:
        barrier(case.comm)


@mistake("a send without receive", WAITS + "to send to rank {peer} .*, which has returned, at ")
def send_alone(case):
    if case.odd:
        case.comm.send(case.array, case.peer)


@mistake("an isend without receive", WAITS + "to send to rank {peer} .*, which has returned, at ")
def isend_alone(case):
    if case.odd:
        case.comm.isend(case.array, case.peer)


@mistake("a receive without send", WAITS + "to receive from rank {peer} .*, which has returned, ")
def receive_alone(case):
    if case.odd:
        case.comm.recv(case.array, case.peer)


@mistake("another tag", WAITS + r"to send to rank {peer} \(tag 5, ")
def another_tag(case):
    if case.odd:
        case.comm.send(case.array, case.peer, tag=5)
    elif case.is_peer:
        case.comm.recv(case.array, case.who, tag=6)


@mistake("a longer message", r"rank {peer} receives into float64 \(1,\), but rank {who} sends fl")
def longer_message(case):
    if case.odd:
        case.comm.send(case.array, case.peer)
    elif case.is_peer:
        case.comm.recv(np.ones(1), case.who)


@mistake("a message of another dtype", "rank {peer} receives into int64 .*, but rank {who} sends")
def message_dtype(case):
    if case.odd:
        case.comm.isend(case.array, case.peer).wait()
    elif case.is_peer:
        case.comm.irecv(case.array.astype(int), case.who).wait()


@mistake("sends in a circle", WAITS + "to send to")
def circle(case):
    right, left = (case.comm.rank + 1) % case.comm.size, (case.comm.rank - 1) % case.comm.size
    case.comm.send(case.array, right)
    case.comm.recv(case.array, left)


@mistake("another partner", WAITS)
def another_partner(case):
    p, r = case.comm.size, case.comm.rank
    case.comm.sendrecv(case.array, r if case.odd else (r + 1) % p, case.array.copy(), (r - 1) % p)


@mistake("a receive in place of a collective", f"{WAITS}to receive from rank {{peer}}")
def receive_instead(case):
    if case.odd:
        case.comm.recv(case.array, case.peer)
    case.call((all_reduce, all_gather, reduce_scatter, all_to_all))


@mistake("an array changed before wait", TOUCHED + "its isend to rank {peer}")
def touched(case):
    case.comm.irecv(case.array.copy(), (case.comm.rank - 1) % case.comm.size)
    request = case.comm.isend(case.array, (case.comm.rank + 1) % case.comm.size)
    case.array[-1] += case.odd
    request.wait()
    barrier(case.comm)


@mistake("an array written before wait", TOUCHED + "its irecv from rank")
def written(case):
    request = case.comm.irecv(case.array, (case.comm.rank - 1) % case.comm.size)
    case.array[-1] += case.odd
    case.comm.send(case.array, (case.comm.rank + 1) % case.comm.size)
    request.wait()
    barrier(case.comm)


@mistake("a Work's array changed before wait", TOUCHED + "the Work that it started at ")
def work_touched(case):
    work = start_work(all_reduce, case.comm, case.array)
    case.array[0] += case.odd
    work.wait()
    barrier(case.comm)


@mistake("Works in another order", "collective mismatch: ranks differ in operation(\n.*)*" + ALONE)
def works_in_another_order(case):
    calls = case.draw.sample(WITH_ARRAY, 2)
    for work in [start_work(call, case.comm, case.array)
                 for call in (calls[::-1] if case.odd else calls)]:
        work.wait()


@mistake("a Work left out", f"{GONE}|rank {{who}} called nothing")
def work_left_out(case):
    if not case.odd:
        start_work(all_reduce, case.comm, case.array).wait()


@mistake("wait_any for what never comes", WAITS + "to receive from rank")
def wait_any(case):
    if case.odd:
        case.comm.wait_any([None, *(case.comm.irecv(np.ones(1), rank, tag=rank)
                                    for rank in range(case.comm.size) if rank != case.who)])


@mistake("a split left out", r"(waits for split\(\)(.|\n)*)|" + ALONE)
def split_left_out(case):
    if not case.odd:
        case.comm.split(0)
    barrier(case.comm)


@mistake("the library's own collective left out", "waits to take part in MPI's own all_red|" + GONE)
def library_left_out(case):
    if not case.odd:
        all_reduce(case.comm, case.array, algorithm="mpi")


@mistake("a rank that returns", GONE)
def returns(case):
    if not case.odd:
        for _ in range(3):
            all_reduce(case.comm, case.array)
            case.comm.sendrecv(case.array, (case.comm.rank + 1) % case.comm.size,
                               case.array.copy(), (case.comm.rank - 1) % case.comm.size)


@mistake("a rank that is stopped", "\n  rank {who} is stopped")
def stopped(case):
    if case.odd:
        os.kill(os.getpid(), signal.SIGSTOP)
    case.call((all_reduce, all_gather))


@mistake("a rank that is killed", r"rank {who} of \d (was killed by signal 9|died suddenly)")
def killed(case):
    if case.odd:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    all_reduce(case.comm, case.array)


@mistake("a long computation", "waited for more than 1 s(.|\n)*rank {who} computes at ")
def long_computation(case):
    if case.odd:
        time.sleep(60)
    all_reduce(case.comm, case.array)


def main(comm) -> None:
    """Call some collectives rightly, then make the mistake that argv names."""
    name, seed = sys.argv[1:]
    case = Case(comm, int(seed))
    for _ in range(case.draw.randrange(5)):
        case.call()
    for _ in range(case.draw.choice([0, 3, 40])):       # as in training: equal ones
        all_reduce(comm, case.array)
    MISTAKES[name](case)


if __name__ == "__main__":
    launch(main)
