"""Reports on the tests that MPI jobs run, in the order in which pytest asks for them.

    pytest asks for    test 1 ... test 2 ... test 3 ............. test 4
                         ^          ^          ^                    ^
    first job      test 1 ----- 2 -----+-- 3 (stuck: job ended)     |
    second job                                       +---- 4 -------+

A job runs ahead of pytest's questions.  It ends early when a test leaves ranks stuck, or ends a
rank.  Then that test has failed, and a new job takes the tests after it.  Tests on more than
DEFAULT_RANKS ranks share a job of their own, after the others: ranks that do nothing take time too.
"""

import importlib.util
import time
from collections.abc import Sequence
from typing import Any

import pytest

from minipar import environment
from minipar.testing.mpi_job import MpiJob
from minipar.testing.reports import MpiTest, failed_report, unpack
from minipar.testing.status_board import POLL

DEFAULT_RANKS = 4       # of a job whose tests do not say how many they need
START_LIMIT = 60.0      # seconds for a job to start, on top of the time limit of a test


def needs_many(num_ranks: int) -> bool:
    """True for tests that come last, in a job of their own."""
    return num_ranks > DEFAULT_RANKS


class MpiReports:
    """Runs `tests` in MPI jobs; `reports_on(test)` waits until a test has ended."""

    def __init__(self, config: pytest.Config, tests: Sequence[MpiTest]):
        self.config, self.tests = config, tests
        self.job: MpiJob | None = None
        self.reports: dict[str, list[pytest.TestReport]] = {}       # by node id
        self.given: list[str] = []  # node ids of the job's tests
        self.running = ""           # node id of the test that the job runs now
        self.last_event = 0.0       # time of the job's last event
        self.is_broken = False      # a job ended before its first test, as the next one would
        self.mpirun = environment.find_mpirun()
        self.missing = self._what_is_missing()

    def start_ahead(self) -> None:
        """Start the first job at low priority, beside the serial tests of this pytest."""
        if self.tests and not self.missing:
            self._start_job(self.tests[0], low_priority=True)

    def reports_on(self, test: MpiTest) -> list[pytest.TestReport]:
        """The reports on a test, once the ranks have run it."""
        if self.missing:
            return [self._skipped(test)]
        while test.nodeid not in self.reports:
            if self.is_broken:
                return [failed_report(test, "call", "not run: no job could be started (see the "
                                                    "first failure on real ranks)")]
            if self.job is not None and test.nodeid not in self.given:
                self.job.close()        # it has run all of its tests, which need fewer ranks
                self.job = None
            if self.job is None:
                self._start_job(test)
            self._follow_job(test)
        return self.reports[test.nodeid]

    def close(self) -> None:
        """End the job: it is done, or pytest stops early (-x, Ctrl-C)."""
        if self.job is not None:
            is_done = all(test.nodeid in self.reports for test in self.tests)
            self.job.close(**({} if is_done else {"patience": 0}))

    def _start_job(self, test: MpiTest, low_priority: bool = False) -> None:
        """Start a job with this test and all later ones for which `needs_many` says the same."""
        alike = [t for t in self.tests if needs_many(t.num_ranks) == needs_many(test.num_ranks)]
        num_ranks = max(t.num_ranks for t in alike) or DEFAULT_RANKS
        self.given = [t.nodeid for t in alike[alike.index(test):] if t.nodeid not in self.reports]
        assert self.mpirun is not None
        self.job = MpiJob(self.config, self.mpirun, num_ranks, self.given, low_priority)
        self.running, self.last_event = "", time.monotonic()

    def _follow_job(self, test: MpiTest) -> None:
        """Handle the job's events until it has reported on this test or has ended."""
        assert self.job is not None
        while test.nodeid not in self.reports:
            had_ended = self.job.has_ended()        # asked first: its last event is then written
            event = self.job.next_event()
            if event is not None:
                self.last_event = time.monotonic()
                if self._handle(event):
                    return
            elif had_ended:
                return self._fail_running_test(test, f"ended ({self.job.exit_status()})")
            elif time.monotonic() - self.last_event > (
                    sum(environment.test_limits()) + START_LIMIT):
                return self._fail_running_test(test, "gave no sign of life and was killed")
            else:
                time.sleep(POLL)

    def _handle(self, event: dict[str, Any]) -> bool:
        """Store what an event says; True if it was the job's last."""
        assert self.job is not None
        if event["event"] == "started":
            self.running = event["nodeid"]
        elif event["event"] == "reported":
            self.reports[event["nodeid"]] = unpack(self.config, event["reports"])
            if event["last"]:
                self.job.close()
                self.job = None
                return True
        return False

    def _fail_running_test(self, test: MpiTest, how: str) -> None:
        """The job ended without a report on its running test: that test has failed."""
        assert self.job is not None
        self.job.kill()
        culprit = next((t for t in self.tests if t.nodeid == self.running), test)
        if culprit.nodeid in self.reports:          # the job died between two tests
            culprit = test
        when = "while this test ran" if culprit.nodeid == self.running else "before this test ran"
        self.is_broken = not self.running
        text = (f"the job `{self.job.name}` {how} {when}\n\n"
                f"The end of its output:\n{self.job.output_tail()}")
        self.reports[culprit.nodeid] = [failed_report(culprit, "call", text)]
        self.job.close()
        self.job = None

    def _what_is_missing(self) -> str:
        """The reason why there are no real ranks here, and how to get them; empty if there are."""
        get_it = "get it with `make setup`, or pip install '.[mpi]'"
        if importlib.util.find_spec("mpi4py") is None:
            return f"mpi4py is not installed; {get_it}"
        if self.mpirun is None:
            return f"there is no mpirun here; {get_it}"
        return ""

    def _skipped(self, test: MpiTest) -> pytest.TestReport:
        """A report that the test was skipped, and why."""
        path, line, _ = test.location
        reason = (path, (line or 0) + 1, f"Skipped: needs real ranks, and {self.missing}")
        return pytest.TestReport(test.nodeid, test.location, {}, "skipped", reason, "setup")
