"""Non-blocking collectives: the unchanged blocking function in a greenlet whose waits yield.

    work = start(all_reduce, comm, gradient)      the function runs until it would block …
    compute(); progress(comm); compute()          … goes on whenever it is asked, and can …
    total = work.wait()                           … and blocks the rank only here

    greenlet of the program  ──start──▶ compute ──progress──▶ compute ──wait──────▶ result
    greenlet of the Work         └isend, irecv, wait…┘ └done? next round, wait…┘ └ … ┘

There is no second state machine and no thread: who wants overlap calls `progress` (or `test`) now
and then, and the pauses between these calls are what it loses.  Every blocking wait of the rank
moves its Works on as well, so the order in which ranks wait for several of them is free.

The rule of MPI's non-blocking collectives holds: all ranks of a communicator start the same ones in
the same order.  The n-th Work of a communicator has messages of its own (a group number of its own
on a simulated cluster, a range of tags under MPI), which never meet those of another Work or of the
program; starting one sends nothing and waits for nobody.
"""

import sys
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from greenlet import getcurrent, greenlet

from .communicator import Communicator
from .progress import ProcessWorks, SimulatedWorks, Works
from .simulated import SimulatedCommunicator
from .simulated.deadlock import source_line


class Work:
    """A function under way on this rank; made by `start`."""

    def __init__(self, works: Works, rank: Any, body: Callable[[], Any]):
        self.works, self.rank, self.result, self.error = works, rank, None, None
        self.done = False

        def run() -> None:
            try:
                self.result = body()
            except Exception as error:
                self.error = error
            self.done = True
            works.remove(self)
        self.greenlet = greenlet(run)
        self.greenlet.gr_context = copy_context()
        works.running.append(self)

    def resume(self) -> None:
        """Let it run until it must wait again."""
        self.greenlet.parent = getcurrent()
        self.greenlet.switch()

    def test(self) -> bool:
        """Whether it is done; moves all Works of this rank on as far as they can go now."""
        if not self.done:
            self.works.poll()
        return self.done

    def wait(self) -> Any:
        """Block until it is done; return what the function returned, or raise what it raised."""
        if not self.done:
            self.works.finish(self)
        if self.error is not None:
            raise self.error
        return self.result


def start(function: Callable, comm: Communicator, *args: Any, **options: Any) -> Work:
    """Begin function(comm, *args, **options) without waiting for it.

    Its arrays must not be touched before `wait` returns.  All ranks of `comm` must start the same.
    """
    works = comm.me.works
    if works is not None and works.running_here():
        raise RuntimeError("a Work cannot start another: call the function itself, it will yield")
    if works is None:
        kind = SimulatedWorks if isinstance(comm, SimulatedCommunicator) else ProcessWorks
        works = comm.me.works = kind(comm.me)
    comm.num_works += 1
    apart = works.communicator(comm)
    apart.label, apart.started = comm.label, source_line(sys._getframe())
    work = Work(works, apart.me, lambda: function(apart, *args, **options))
    work.resume()
    return work


def progress(comm: Communicator) -> None:
    """Move all Works of this rank on as far as they can go now, without waiting."""
    works = comm.me.works
    if works is not None and not works.running_here():
        works.poll()
