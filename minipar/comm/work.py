"""Non-blocking collectives: the unchanged blocking function, in a greenlet whose waits yield.

    work = start_work(all_reduce, comm, gradient)   the function runs until it would block …
    compute(); progress(comm); compute()            … goes on whenever `progress` is called …
    total = work.wait()                             … and blocks the rank only here

    the program calls      the Work's greenlet runs, until it would wait again
    start_work             round 1: isend, irecv
    progress               round 2, if the messages of round 1 are there
    work.wait              the other rounds; the result

A greenlet is a function that can pause inside any call, and go on from there.  So there is no
second state machine and no thread.  A program that wants overlap calls `progress` (or `test`) now
and then; between two calls its Works stand still.  Every blocking wait of the rank advances its
Works as well, so ranks may wait for several Works in any order.

The rule of MPI's non-blocking collectives holds: all ranks of a communicator start the same ones in
the same order.  The n-th Work of a communicator has its own group number on a simulated cluster,
and its own range of tags under MPI.  So its messages never meet those of another Work or of the
program.  Making a Work needs no message; its first sends may leave at once; `start_work` never
blocks.
"""

import sys
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from greenlet import getcurrent, greenlet

from .communicator import Communicator, source_line
from .progress import ProgressEngine


class Work:
    """A collective under way on this rank, as torch.distributed's Work; made by `start_work`."""

    def __init__(self, engine: ProgressEngine, rank_state: Any, body: Callable[[], Any]):
        self.engine, self.rank_state, self.result = engine, rank_state, None
        self.error: Exception | None = None
        self.done = False

        def run() -> None:
            try:
                self.result = body()
            except Exception as error:
                self.error = error
            self.done = True
            engine.remove(self)
        self.greenlet = greenlet(run)
        self.greenlet.gr_context = copy_context()
        engine.running.append(self)

    def resume(self) -> None:
        """Run it until it must wait again."""
        self.greenlet.parent = getcurrent()
        self.greenlet.switch()

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

    Its arrays must not be touched before `wait` returns.  All ranks of `comm` must start the same.
    """
    engine: Any = comm.rank_state.engine
    if engine is not None and engine.is_inside():
        raise RuntimeError("a Work cannot start another: call the function itself, it will yield")
    engine = comm.rank_state.engine = engine or comm.make_progress_engine()
    comm.num_works += 1
    own_comm = engine.communicator(comm)         # the same ranks, with messages of its own
    own_comm.label, own_comm.axes = comm.label, comm.axes
    own_comm.started = source_line(sys._getframe())
    work = Work(engine, own_comm.rank_state, lambda: function(own_comm, *args, **options))
    work.resume()
    return work
