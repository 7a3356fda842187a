"""The watchdog of one rank: a thread that notices when ranks are stuck in a test.

        main thread                          watchdog thread (every 0.1 s)
    begin(test) -> "running"                 a peer failed and the grace is over?
        ... the test runs, or hangs ...      the test is older than its limit?
    finish()    -> "finished"                   -> "stuck", with the stack of the main thread
                                             on rank 0: all have answered -> on_stuck(...)

It runs while the main thread is blocked, because mpi4py releases the GIL in every MPI call.  If
some C code keeps the GIL for good, Python's faulthandler, which needs no GIL, ends the process a
little later.
"""

import faulthandler
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _pytest
import pluggy

from minipar import environment
from minipar.testing.status_board import POLL, StatusBoard

LOOK = 0.1          # seconds between two looks of the watchdog
ANSWER = 1.0        # seconds that ranks have to say where they are stuck
BACKSTOP = 15.0     # seconds after both limits, at which faulthandler ends the process

States = dict[int, dict[str, Any]]


@dataclass
class _Test:
    """The test that runs now."""

    number: int
    team: tuple[int, ...]       # the ranks that run it
    started: float
    finished: bool = False      # on this rank
    reported: bool = False      # the board says that this rank is stuck


class Watchdog:
    """Watches the tests of one rank; calls on_stuck(states, limit, seconds) on rank 0."""

    def __init__(self, board: StatusBoard, rank: int,
                 on_stuck: Callable[[States, str, float], None]):
        self.board, self.rank, self.on_stuck = board, rank, on_stuck
        self.limit, self.grace = environment.test_limits()
        self._test: _Test | None = None
        self._lock = threading.Lock()       # a test ends either in finish() or in on_stuck()
        self._main_thread = threading.main_thread().ident
        self._stderr = os.fdopen(os.dup(2), "w")        # the real one: tests run with it captured
        threading.Thread(target=self._watch, name="minipar-watchdog", daemon=True).start()

    def begin(self, number: int, team: Iterable[int]) -> None:
        """This rank begins a test that the ranks of `team` run."""
        self.board.set_status(self.rank, test=number, status="running")
        self._test = _Test(number, tuple(team), time.monotonic())
        faulthandler.dump_traceback_later(self.limit + self.grace + BACKSTOP, exit=True,
                                          file=self._stderr)

    def finish(self, reports: list[dict[str, Any]], failed: bool) -> None:
        """This rank has finished its test."""
        assert self._test is not None
        with self._lock:
            self._test.finished = True
            self.board.set_status(self.rank, test=self._test.number, status="finished",
                                  failed=failed, reports=reports)

    def wait_for_team(self) -> States:
        """Sleep until all ranks have finished (or until on_stuck() ends this process)."""
        assert self._test is not None
        while True:
            with self._lock:
                states = self._states(self._test)
                if all(state.get("status") == "finished" for state in states.values()):
                    self._test = None
                    return states
            time.sleep(POLL)

    def end(self) -> None:
        """The test is over for all ranks."""
        with self._lock:
            self._test = None
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK)
            with self._lock:
                if self._test is not None:
                    self._look(self._test)

    def _look(self, test: _Test) -> None:
        states = self._states(test)
        overdue, limit = self._overdue(test, states)
        if overdue < 0:
            return
        if not test.finished and not test.reported:
            test.reported = True
            self.board.set_status(self.rank, test=test.number, status="stuck",
                                  stack=stack_above_pytest(self._main_thread))
            states = self._states(test)
        status = [state.get("status") for state in states.values()]
        answered = all(s in ("finished", "stuck") for s in status)
        all_finished = all(s == "finished" for s in status)
        if self.rank == 0 and not all_finished and (answered or overdue > ANSWER):
            self.on_stuck(states, limit, time.monotonic() - test.started)

    def _overdue(self, test: _Test, states: States) -> tuple[float, str]:
        """Seconds by which the test exceeds its limit (negative: time left), and that limit."""
        now = time.monotonic()
        failures = [state["at"] for state in states.values() if state.get("failed")]
        if failures:
            return now - min(failures) - self.grace, f"{self.grace:g} s"
        return now - test.started - self.limit, f"{self.limit:g} s"

    def _states(self, test: _Test) -> States:
        """The status of each rank of the team in this test; empty for a rank still before it."""
        states = {rank: self.board.status(rank) for rank in test.team}
        return {rank: state if state.get("test") == test.number else {}
                for rank, state in states.items()}


def stack_above_pytest(thread: int | None) -> str:
    """The stack of a thread, without the frames of pytest below the test."""
    frames = traceback.extract_stack(sys._current_frames()[thread or 0])
    # main program, pytest, this plugin | pytest's runner and the hooks it calls | the test
    in_runner = list(itertools.dropwhile(lambda f: Path(f.filename).name != "runner.py", frames))
    in_test = list(itertools.dropwhile(lambda f: _is_machinery(f.filename), in_runner))
    return "".join(traceback.format_list(in_test or frames))


def _is_machinery(filename: str) -> bool:
    return any(Path(package.__file__).parent in Path(filename).parents
               for package in (_pytest, pluggy))
