"""Non-blocking collectives: the unchanged blocking function, in a greenlet whose waits yield.

    work = start_work(all_reduce, comm, gradient)   the function runs until it would block …
    compute(); progress(comm); compute()            … goes on whenever `progress` is called …
    total = work.wait()                             … and blocks the rank only here

    the program calls      the Work's greenlet runs, until it would wait again
    start_work             round 1: isend, irecv
    progress               round 2, if the messages of round 1 are there
    work.wait              the other rounds; the result

A greenlet is a function that can pause inside any call, and go on from there.  So a collective
needs no second version as a state machine, and no thread.  A program that wants overlap calls
`progress` (or `test`) now and then; between two calls its Works stand still.  While the program
waits for a message or a Work, all its Works advance, so ranks may wait for them in any order.  They
stand still in `wait_any`, and on real ranks in `split` and in collectives of the MPI library.

A wait inside a Work pauses: it switches back to the program's greenlet, which resumed the Work.
When the program itself must wait, it waits until any request is done, its own or that of one of its
Works.  The two worlds do this differently: `simulated/progress.py` and `mpi/communicator.py`.

The rule of MPI's non-blocking collectives holds: all ranks of a communicator start the same ones in
the same order.  The n-th Work of a communicator has its own group number on a simulated cluster.
Under MPI it has its own range of tags, used again only thousands of Works later.  So its messages
never meet those of the program, or of another Work under way.  Making a Work needs no message; its
first sends may leave at once; `start_work` never blocks.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from greenlet import getcurrent, greenlet

from .communicator import Communicator, source_line


class Work:
    """A collective under way on this rank, like torch.distributed's Work; made by `start_work`."""

    def __init__(self, engine: "ProgressEngine", rank_state: Any, function: Callable[..., Any]):
        self.engine, self.rank_state = engine, rank_state
        self.result: Any = None
        self.error: Exception | None = None
        self.done = False
        self.greenlet = greenlet(function)
        self.greenlet.gr_context = copy_context()
        engine.running.append(self)

    def resume(self, *args: Any, **options: Any) -> None:
        """Run the function until it must wait again; the first call passes its arguments."""
        self.greenlet.parent = getcurrent()
        try:
            self.result = self.greenlet.switch(*args, **options)
        except Exception as error:
            self.error = error
        if self.greenlet.dead:
            self.done = True
            self.engine.remove(self)

    def test(self) -> bool:
        """True if it is done; advances all Works of this rank as far as they can go now."""
        if not self.done:
            self.engine.poll()
        return self.done

    def wait(self) -> Any:
        """Block until it is done; return what the function returned, or raise what it raised."""
        if not self.done:
            self.engine.finish(self)
        if self.error is not None:
            raise self.error
        return self.result


def start_work(function: Callable, comm: Communicator, *args: Any, **options: Any) -> Work:
    """Collective.  Begin function(comm, *args, **options) without waiting for it.

    Its arrays must not be touched before `wait` returns.  All ranks of `comm` must start the same
    function.
    """
    engine: Any = comm.rank_state.engine
    if engine is not None and engine.is_inside():
        raise RuntimeError("a Work cannot start another: call the function itself, it will yield")
    engine = comm.rank_state.engine = engine or comm.make_progress_engine()
    comm.num_works += 1
    own_comm = engine.communicator(comm)         # the same ranks, with messages of its own
    own_comm.label, own_comm.axes = comm.label, comm.axes
    own_comm.started = source_line(sys._getframe())
    work = engine.work_type(engine, own_comm.rank_state, function)
    work.resume(own_comm, *args, **options)
    return work


def wait_all(works: "list[Any]") -> None:
    """Wait for all of these Works, or requests, and empty the list."""
    while works:
        works.pop(0).wait()


def progress(comm: Communicator) -> None:
    """Advance all Works of this rank as far as they can go now; without effect inside a Work.

    A simulated rank that calls it twice at one virtual time waits for the next event.
    """
    engine = comm.rank_state.engine
    if engine is not None and not engine.is_inside():
        engine.poll()


def pause() -> None:
    """Switch from inside a Work back to the greenlet that resumed it."""
    here: Any = getcurrent()
    here.parent.switch()


class ProgressEngine(ABC):
    """The Works under way on one rank; `rank_state` is the state that its communicators share.

    `rank_state.engine` is None while there are none, so that programs without Works pay nothing.
    """

    work_type = Work        # what it runs

    def __init__(self, rank_state: Any):
        self.rank_state = rank_state
        self.running: list[Any] = []

    @abstractmethod
    def communicator(self, comm: Communicator) -> Communicator:
        """`comm` with messages of its own, whose waits pause."""

    @abstractmethod
    def poll(self) -> None:
        """Advance all Works as far as they can go now."""

    @abstractmethod
    def finish(self, work: Any) -> None:
        """Block until `work` is done."""

    def remove(self, work: Any) -> None:
        """Forget a Work that is done."""
        self.running.remove(work)
        if not self.running:
            self.rank_state.engine = None

    def is_inside(self) -> bool:
        """True if the caller runs inside one of the Works."""
        here = getcurrent()
        return any(work.greenlet is here for work in self.running)

    def resume_all(self) -> None:
        """Resume each Work once."""
        for work in list(self.running):
            work.resume()


def unwind(engine: ProgressEngine) -> None:
    """Throw all Works of a rank out of what they wait for: the run is over."""
    for work in list(engine.running):
        work.greenlet.parent = getcurrent()
        try:
            work.greenlet.throw()
        except Exception:               # a `finally` block of the Work tried to communicate
            continue
    engine.running.clear()
