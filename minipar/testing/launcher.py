"""The plugin in a pytest that was started without mpirun: it sends tests to an MPI job.

    this process     serial tests               mpi tests: replay, replay, FAILED, replay ...
                                                              ^       ^       ^       ^
    one MPI job      (on another core)   test 1 ------ 2 -----+-- 3 --+       |       |
    a second one                                      (stuck: ended) ---------+  4 ---+

The job runs ahead with all mpi tests, while this process has serial ones to run; each verdict of
its ranks becomes an ordinary report here, so that there is one closing line and one exit status.
A job ends early when a test leaves its ranks stuck or kills one. Then that test has failed, and a
new job takes the tests after it.
"""

import importlib.util
import time
from typing import Any

import pytest

from minipar import environment
from minipar.testing import verdict
from minipar.testing.board import POLL
from minipar.testing.job import Job
from minipar.testing.worlds import ranks_needed

RANKS = 4           # where no test says how many
ALLOWANCE = 60.0    # seconds for a job to start, on top of what a test may take


class Launcher:
    """Runs mpi tests in MPI jobs and reports what came out."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.job: Job | None = None
        self.verdicts: dict[str, list[pytest.TestReport]] = {}      # by node id
        self.running = ""           # node id of the test that the job runs now
        self.last_sign = 0.0        # when the job last told us anything
        self.broken = False         # a job ended before its first test: others would, too
        self.mpirun = environment.find_mpirun()
        self.missing = self._what_is_missing()
        self.num_missed = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Serial tests first: the ranks have most verdicts by then."""
        items.sort(key=_is_mpi)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Report an mpi test from the job; leave a serial test to pytest."""
        if not _is_mpi(item):
            self._run_ahead(item)
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._skip(item) if self.missing else self._wait_for(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the job: it is done, or it is not wanted any more (-x, Ctrl-C)."""
        if self.job is not None:
            if all(i.nodeid in self.verdicts for i in session.items if _is_mpi(i)):
                self.job.close()
            else:
                self.job.close(patience=0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say it if tests on real ranks did not run."""
        if self.num_missed:
            terminalreporter.write_line(
                f"{self.num_missed} tests on real ranks did not run: {self.missing}", yellow=True)

    # With MPI.

    def _wait_for(self, item: pytest.Item) -> list[pytest.TestReport]:
        """The reports on a test, as soon as the ranks have them."""
        while item.nodeid not in self.verdicts:
            if self.broken:
                return [verdict.failure(item, "call", "not run: no job could be started (see the "
                                                      "first failure on real ranks)")]
            if self.job is None:
                self._start_job(item)
            self._follow_job(item)
        return self.verdicts[item.nodeid]

    def _run_ahead(self, item: pytest.Item) -> None:
        """Start the job before the first serial test, if the machine can do both at a time."""
        if item is not item.session.items[0] or self.missing or environment.num_cores() == 1:
            return
        first = next(filter(_is_mpi, item.session.items), None)
        if first is not None:
            self._start_job(first, gives_way=True)

    def _start_job(self, item: pytest.Item, gives_way: bool = False) -> None:
        """Start a job with this test and all that come after it."""
        items = item.session.items
        mpi_items = [i for i in items if _is_mpi(i)]
        size = max(ranks_needed(i) or 0 for i in mpi_items) or RANKS
        tests = [i.nodeid for i in mpi_items[mpi_items.index(item):]
                 if i.nodeid not in self.verdicts]
        assert self.mpirun is not None
        self.job, self.running, self.last_sign = (
            Job(self.config, self.mpirun, size, tests, gives_way), "", time.monotonic())

    def _follow_job(self, item: pytest.Item) -> None:
        """Take what the job announces, until it has a verdict on this test or has ended."""
        assert self.job is not None
        while item.nodeid not in self.verdicts:
            had_ended = self.job.has_ended()        # asked first: its last line is then written
            said = self.job.next()
            if said is not None:
                self.last_sign = time.monotonic()
                if self._take(said):
                    return
            elif had_ended:
                return self._bury_job(item, f"ended ({self.job.exit_status()})")
            elif time.monotonic() - self.last_sign > sum(environment.test_limits()) + ALLOWANCE:
                return self._bury_job(item, "gave no sign of life and was killed")
            else:
                time.sleep(POLL)

    def _take(self, said: dict[str, Any]) -> bool:
        """Note an announcement; True if it was the job's last."""
        assert self.job is not None
        if said["event"] == "started":
            self.running = said["nodeid"]
        elif said["event"] == "verdict":
            self.verdicts[said["nodeid"]] = verdict.unpack(self.config, said["reports"])
            if said["last"]:
                self.job.close()
                self.job = None
                return True
        return False

    def _bury_job(self, item: pytest.Item, how: str) -> None:
        """The job has no verdict on the test that it was running: that test has failed."""
        assert self.job is not None
        self.job.kill()
        culprit = next((i for i in item.session.items if i.nodeid == self.running), item)
        if culprit.nodeid in self.verdicts:         # it died between two tests
            culprit = item
        when = "while this test ran" if culprit.nodeid == self.running else "before this test ran"
        self.broken = not self.running
        text = (f"the job `{self.job.name}` {how} {when}\n\n"
                f"The end of its output:\n{self.job.last_words()}")
        self.verdicts[culprit.nodeid] = [verdict.failure(culprit, "call", text)]
        self.job.close()
        self.job = None

    # Without MPI.

    def _what_is_missing(self) -> str:
        """Why there are no real ranks here, and how to get them; empty if there are."""
        get_it = "get it with `make setup`, or pip install '.[mpi]'"
        if importlib.util.find_spec("mpi4py") is None:
            return f"mpi4py is not installed; {get_it}"
        if self.mpirun is None:
            return f"there is no mpirun here; {get_it}"
        return ""

    def _skip(self, item: pytest.Item) -> list[pytest.TestReport]:
        """A report that the test was skipped, and why."""
        self.num_missed += 1
        path, line, _ = item.location
        reason = (path, (line or 0) + 1, f"Skipped: needs real ranks, and {self.missing}")
        return [pytest.TestReport(item.nodeid, item.location, {}, "skipped", reason, "setup")]


def _is_mpi(item: pytest.Item) -> bool:
    return ranks_needed(item) is not None
