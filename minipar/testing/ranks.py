"""The plugin in every process of an MPI job: the ranks run each test together.

    rank 0    event "started" ----> run --> wait for all, merge --> event "reported" --> report
    rank 1..  wait for "started" -> run --> write own status    --> wait for "reported"

Rank 0 reports for all ranks; the others print nothing.  Serial tests run on rank 0 alone.  A rank
that waits looks at the status board (status_board.py) and sleeps in between, because ranks often
share a core.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol  # xdist and others build on it as well
from _pytest.terminal import TerminalReporter

from minipar.comm.mpi.guardian import abort
from minipar.comm.mpi.world import world_communicator
from minipar.testing.reports import failed_report, merge_reports, pack, stuck_report, unpack
from minipar.testing.status_board import POLL, EventReader, StatusBoard, wait_until
from minipar.testing.watchdog import BACKSTOP, States, Watchdog
from minipar.testing.worlds import ranks_needed

NO_ANSWER = "    (no answer: it is in C code that keeps Python's lock, or its process is stopped)"


class Ranks:
    """Runs the tests of this session in step with the other ranks."""

    def __init__(self, config: pytest.Config, mpi: Any):
        self.config = config
        self.mpi = mpi                              # mpi4py.MPI
        self.guardian = world_communicator().rank_state.guardian    # names the rank that died
        self.rank, self.size = mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
        events = config.getoption("--mpi-events")
        self.has_parent = events is not None
        self.board = StatusBoard(Path(events) if self.has_parent else self._new_board())
        self.events = EventReader(self.board.events)
        self.watchdog = Watchdog(self.board, self.rank, self._on_stuck)
        self.begun = time.monotonic()
        self.errors: list[str] = []                 # of collecting the tests
        self.is_over = False                        # rank 0 has ended its session
        self.number = 0                             # of the test that runs now
        self.item: pytest.Item | None = None
        if self.rank > 0:
            self._silence()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skip what needs more ranks; leave serial tests to rank 0."""
        for item in items:
            needed = ranks_needed(item) or 0
            if needed > self.size:
                item.add_marker(pytest.mark.skip(
                    f"needs {needed} ranks and this run has {self.size}: "
                    f"mpirun -n {needed} python -m pytest --only-mpi"))
        if self.rank > 0:
            items[:] = [item for item in items if ranks_needed(item) is not None]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Run the tests only if all ranks have collected the same ones in the same order."""
        if self.config.option.collectonly:
            return
        own = [item.nodeid for item in session.items if ranks_needed(item) is not None]
        self.board.set_status(self.rank, status="collected", tests=own, errors=self.errors)
        if self.rank == 0:
            problem = self._compare_collections(own)
            self.board.add_event("collected", problem=problem)
        else:
            problem = self._wait_for("collected").get("problem", "rank 0 has ended")
        if problem:
            session.shouldfail = problem
            raise session.Failed(problem)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember the errors of collecting tests."""
        if report.failed:
            self.errors.append(report.longreprtext.splitlines()[-1].removeprefix("E").strip())

    def _compare_collections(self, own: list[str]) -> str:
        """The difference between another rank's tests and rank 0's; empty if they agree."""
        wait_until(lambda: all(self.board.status(r) for r in range(self.size)), self.watchdog.limit)
        for rank in range(1, self.size):
            state = self.board.status(rank)
            if state.get("errors") != self.errors:
                return (f"ranks differ in what they could not collect; rank 0: {self.errors}, "
                        f"rank {rank}: {state.get('errors', 'no answer')}")
            if state.get("status") != "collected":
                return f"rank {rank} did not get as far as the tests"
            if state["tests"] != own:
                return (f"rank {rank} collected other tests, or in another order, than rank 0: "
                        "does a parameter come from a set, or from a random number?")
        return ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test here and with the other ranks; report their merged result."""
        together = ranks_needed(item) is not None
        if self.rank == 0:
            self.number += 1
        else:
            started = self._wait_for("started")
            if started["event"] == "over":
                item.session.shouldstop = "rank 0 has ended"
                return True
            self.number = started["number"]
        self.item = item
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self.watchdog.begin(self.number, range(self.size) if together else [0])
        if together and self.rank == 0:
            self.board.add_event("started", number=self.number, nodeid=item.nodeid)
        reports = self._run(item, nextitem)
        if together:
            reports = self._merged(item)
        self.watchdog.end()
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Run the test on this rank and write its reports to the board."""
        try:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        except (KeyboardInterrupt, pytest.exit.Exception) as leaving:
            # The others take the end of this session as a failure, so they wait only briefly.
            text = f"{type(leaving).__name__}: {leaving} (it ended the session of this rank)"
            self._post([failed_report(item, "call", text)])
            self.watchdog.end()
            raise
        self._post(reports)
        return reports

    def _post(self, reports: list[pytest.TestReport]) -> None:
        failed = any(report.failed for report in reports)
        self.watchdog.finish(pack(self.config, reports), failed)

    def _merged(self, item: pytest.Item) -> list[pytest.TestReport]:
        """The reports of all ranks on the test, merged."""
        if self.rank > 0:
            return unpack(self.config, self._wait_for("reported").get("reports", []))
        reports = merge_reports(item, self._reports(self.watchdog.wait_for_team()))
        self._add_reports(item, reports)
        return reports

    def _reports(self, states: States) -> dict[int, list[pytest.TestReport]]:
        return {rank: unpack(self.config, state["reports"])
                for rank, state in states.items() if "reports" in state}

    def _add_reports(self, item: pytest.Item, reports: list[pytest.TestReport],
                     last: bool = False) -> None:
        self.board.add_event("reported", nodeid=item.nodeid, last=last,
                             reports=pack(self.config, reports))

    # Called by the watchdog's thread on rank 0, as the main thread may be blocked for good.

    def _on_stuck(self, states: States, limit: str, seconds: float) -> None:
        """Report that some ranks are stuck in the test, and end the job."""
        item = self.item
        assert item is not None
        stacks = {r: s.get("stack", NO_ANSWER) for r, s in states.items() if "reports" not in s}
        report = stuck_report(item, stacks, self._reports(states), limit, seconds)
        self._add_reports(item, [report], last=True)
        if not self.has_parent:
            self._close_session(item, report)
        self._abort()

    def _close_session(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Print the end of pytest's output, in place of the main thread."""
        self.config.pluginmanager.getplugin("capturemanager").suspend_global_capture(in_=True)
        item.ihook.pytest_runtest_logreport(report=report)
        left = len(item.session.items) - item.session.items.index(item) - 1
        item.session.shouldfail = (f"stuck ranks can only be ended with their whole job; "
                                   f"{left} tests did not run")
        manager = self.config.pluginmanager
        # Without pytest's runner: it would tear down fixtures that the main thread still uses.
        finish = manager.subset_hook_caller("pytest_sessionfinish", [manager.getplugin("runner")])
        finish(session=item.session, exitstatus=pytest.ExitCode.TESTS_FAILED)
        manager.getplugin("terminalreporter").flush()
        shutil.rmtree(self.board.directory, ignore_errors=True)

    def _abort(self) -> None:
        """End all ranks."""
        abort(self.mpi, 1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Rank 0 ends the session; the others wait for it asleep, not in MPI_Finalize."""
        if self.rank == 0:
            self.board.add_event("over")
            return
        last_state = self.board.status(self.rank)
        self.board.set_status(self.rank, **last_state | {"left": True, "errors": self.errors})
        self._wait_for("over")
        if session.exitstatus not in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
            session.exitstatus = pytest.ExitCode.OK         # rank 0 reports for all

    def pytest_unconfigure(self) -> None:
        """End the ranks that cannot leave; remove the board."""
        if self.rank > 0:
            return
        others = range(1, self.size)
        left = wait_until(lambda: all(self.board.status(r).get("left") for r in others),
                          self.watchdog.grace + 1)
        if not self.has_parent:
            shutil.rmtree(self.board.directory, ignore_errors=True)
        if not left:
            self._abort()

    def _new_board(self) -> Path:
        """The events of a new status board, which rank 0 makes if mpirun was started by hand."""
        if self.rank == 0:
            events = Path(tempfile.mkdtemp(prefix="minipar-tests-"), "events")
            events.touch()
        else:
            events = None
        return self.mpi.COMM_WORLD.bcast(events)

    def _silence(self) -> None:
        """Let the pytest of this rank write to os.devnull."""
        manager = self.config.pluginmanager
        manager.unregister(name="terminalreporter")
        nowhere = open(os.devnull, "w")             # noqa: SIM115 -- used until the process ends
        manager.register(TerminalReporter(self.config, nowhere), "terminalreporter")

    def _wait_for(self, event: str) -> dict[str, Any]:
        """Wait for this event of rank 0, or for the end of its session."""
        while not self.is_over:
            found = self.events.next()
            self.is_over = found is not None and found["event"] == "over"
            if found is not None and found["event"] == event:
                return found
            last_sign = self.board.status(0).get("at", self.begun)
            if time.monotonic() - last_sign > self.watchdog.limit + self.watchdog.grace + BACKSTOP:
                print(f"rank {self.rank}: no sign of life from rank 0", file=sys.__stderr__,
                      flush=True)
                self._abort()
            if found is None:
                time.sleep(POLL)
        return {"event": "over"}
