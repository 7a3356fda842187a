"""The plugin under pytest-xdist: workers run the serial tests, a job of real ranks the others."""

import pytest

from tests.support.sandbox import Sandbox, counts, needs_mpi, section

pytest.importorskip("xdist")

TESTS = """
@pytest.mark.parametrize("number", range(6))
def test_serial(number, request):
    note("workers", request.config.workerinput["workerid"])
    assert number != 5

@two
def test_together():
    note("ranks", world().rank)

@two
def test_fails():
    assert world().rank != 1, "not me"
"""
IN_PARALLEL = "-n", "2", "--dist", "worksteal"


@needs_mpi
def test_workers_and_ranks_share_one_closing_line(tmp_path):
    sandbox = Sandbox(tmp_path, TESTS)
    status, output = sandbox.run(*IN_PARALLEL)
    assert status == 1
    assert counts(output) == {"passed": 6, "failed": 2}
    assert sorted(set(sandbox.lines("workers"))) == ["gw0", "gw1"]
    assert sorted(sandbox.lines("ranks")) == ["0", "1"]
    assert section(output, "test_fails").startswith("rank 1 of 2 failed: AssertionError: not me")
    assert sandbox.leftovers() == []


@needs_mpi
def test_exitfirst_ends_workers_and_job(tmp_path):
    sandbox = Sandbox(tmp_path, TESTS + "\n@two\ndef test_last():\n    note('last')\n")
    status, output = sandbox.run(*IN_PARALLEL, "-x", "-k", "not serial")
    assert status != 0
    assert counts(output) == {"passed": 1, "failed": 1}
    assert "stopping after 1 failures" in output
    assert sandbox.leftovers() == []


def test_without_mpi_tests_are_skipped_and_counted(tmp_path):
    no_mpirun = "from minipar import environment\nenvironment.find_mpirun = lambda: None\n"
    status, output = Sandbox(tmp_path, TESTS, no_mpirun).run(*IN_PARALLEL, "-k", "not 5")
    assert status == 0
    assert counts(output) == {"passed": 5, "skipped": 2}
    assert "2 tests on real ranks did not run: there is no mpirun here" in output


def test_a_file_that_does_not_exist_is_named(tmp_path):
    status, output = Sandbox(tmp_path, TESTS).run(*IN_PARALLEL, "missing.py")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: nothing could be collected: give files and folders that exist" in output
    assert "missing.py" in output and "INTERNALERROR" not in output
