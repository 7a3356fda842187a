"""The plugin in the pytest that the user starts: serial tests here, `mpi` tests in an MPI job.

    pytest            Controller        runs serial tests itself, then shows the job's reports
    pytest -n 2       XdistController   xdist's workers run the serial tests meanwhile:
      +-- worker gw0  XdistWorker       each gives up its mpi tests, and says which they are
      +-- worker gw1  XdistWorker

The job runs beside the serial tests (without xdist, after them on a single core).  Its reports
become ordinary reports of this pytest.  There is one closing line and one exit status.
"""

import json
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from minipar import environment
from minipar.testing.mpi_reports import MpiReports, needs_many
from minipar.testing.reports import MpiTest
from minipar.testing.worlds import ranks_needed


class Controller:
    """Without xdist: serial tests in this process, first; the reports on mpi tests after them."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.mpi = MpiReports(config, [])
        self.num_skipped = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Move the mpi tests to the end: the job has run most of them by then."""
        items.sort(key=lambda item: (_is_mpi(item), needs_many(ranks_needed(item) or 0)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the mpi tests among the selected ones."""
        self.mpi.tests = [_mpi_test(item) for item in session.items if _is_mpi(item)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Show the job's reports on an mpi test; leave a serial test to pytest."""
        if not _is_mpi(item):
            if item is item.session.items[0] and environment.num_cores() > 1:
                self.mpi.start_ahead()
            return None
        self.report(_mpi_test(item))
        return True

    def report(self, test: MpiTest) -> None:
        """Wait for the reports on a test and hand them to pytest, as if it had run here."""
        hook = self.config.hook
        hook.pytest_runtest_logstart(nodeid=test.nodeid, location=test.location)
        self.num_skipped += bool(self.mpi.missing)
        for report in self.mpi.reports_on(test):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=test.nodeid, location=test.location)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """End the job."""
        self.mpi.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many tests on real ranks did not run, if any, and why."""
        if self.num_skipped:
            terminalreporter.write_line(
                f"{self.num_skipped} tests on real ranks did not run: {self.mpi.missing}",
                yellow=True)


class XdistController(Controller):
    """With xdist, this process runs no test: its workers run the serial ones."""

    def __init__(self, config: pytest.Config):
        super().__init__(config)
        self.folder = Path(tempfile.mkdtemp(prefix="minipar-xdist-"))
        self.has_started = False

    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker where to write its list of mpi tests."""
        node.workerinput["mpi_tests"] = str(self.folder / node.gateway.id)

    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        """Start the job with the tests of the worker that has collected first."""
        if not self.has_started:
            self.has_started = True
            path = Path(node.workerinput["mpi_tests"])
            if not path.exists():           # the worker stopped earlier; xdist does not say why
                raise pytest.UsageError("nothing could be collected: give files and folders that "
                                        f"exist, not {' '.join(node.config.args)}")
            listed = json.loads(path.read_text())
            self.mpi.tests = [MpiTest(nodeid, (path, line, name), num_ranks)
                              for nodeid, (path, line, name), num_ranks in listed]
            self.mpi.tests.sort(key=lambda test: needs_many(test.num_ranks))
            self.mpi.start_ahead()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Let the workers run the serial tests, then show the reports on the others."""
        result = yield
        session.testscollected += len(self.mpi.tests)
        for test in self.mpi.tests:
            if session.shouldfail or session.shouldstop:
                raise session.Failed(session.shouldfail or session.shouldstop)
            self.report(test)
        return result

    def pytest_unconfigure(self) -> None:
        """Remove the workers' lists."""
        shutil.rmtree(self.folder, ignore_errors=True)


class XdistWorker:
    """A worker of xdist: it keeps the serial tests, and lists the mpi tests for the controller."""

    def __init__(self, config: pytest.Config):
        self.list = Path(config.workerinput["mpi_tests"])           # type: ignore[attr-defined]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Give up the mpi tests."""
        self.list.write_text(json.dumps([_mpi_test(item) for item in items if _is_mpi(item)]))
        items[:] = [item for item in items if not _is_mpi(item)]


def controller(config: pytest.Config) -> Controller | XdistWorker:
    """The plugin for this process: pytest alone, xdist's controller, or one of its workers."""
    if hasattr(config, "workerinput"):
        return XdistWorker(config)
    is_xdist = config.getoption("dist", "no") != "no" and not config.option.collectonly
    return XdistController(config) if is_xdist else Controller(config)


def _is_mpi(item: pytest.Item) -> bool:
    return ranks_needed(item) is not None


def _mpi_test(item: pytest.Item) -> MpiTest:
    return MpiTest(item.nodeid, item.location, ranks_needed(item) or 0)
