"""The plugin under plain pytest: one run of tests that end in every way there is."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.support.sandbox import Sandbox, counts, needs_mpi, section

EVERY_KIND = """
def test_serial():
    note("serial", os.getpid())

@three
def test_together():
    assert world().allreduce(world().rank) == 3
    assert os.environ["OMP_NUM_THREADS"] == "1"

@two
def test_needs_less():
    assert world().size == 3

@three
def test_one_rank_fails():
    print("I am rank", world().rank)
    assert world().rank != 1, "not me"

@three
def test_all_ranks_fail():
    assert 1 == 2

@three
def test_ranks_disagree():
    if world().rank == 0:
        pytest.skip("not here")

@three
def test_peers_wait():
    if world().rank == 1:
        raise ValueError("left the others alone")
    world().barrier()

@three
def test_deadlock():
    if world().rank < 2:
        world().recv(source=1 - world().rank)

@three
def test_stuck_in_c():
    if world().rank == 1:
        ctypes.PyDLL(None).sleep(30)        # keeps Python's lock
    assert world().rank != 2, "my peer does not hear"

@three
def test_leaves():
    if world().rank == 2:
        os._exit(3)
    world().barrier()

@three
def test_is_killed():
    if world().rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    world().barrier()

@three
def test_interrupts():
    if world().rank == 1:
        raise KeyboardInterrupt
    world().barrier()

@three
def test_sys_exit():
    if world().rank == 2:
        raise SystemExit(0)

@pytest.fixture
def broken():
    assert world().rank != 2, "no fixture here"

@three
def test_fixture_fails(broken):
    pass

@three
def test_skips():
    pytest.skip("for a reason")

@pytest.mark.xfail
@three
def test_expected_to_fail():
    assert False

@three
def test_after_all_that(record_property):
    record_property("answer", 42)
    note("after", world().rank)

def test_serial_last():
    note("serial", os.getpid())
"""


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory):
    sandbox = Sandbox(tmp_path_factory.mktemp("kinds"), EVERY_KIND)
    sandbox.status, sandbox.output = sandbox.run("-ra", "--junitxml=out.xml")
    return sandbox


@pytest.mark.slow
@needs_mpi
class TestPlainPytest:
    def test_has_one_closing_line_and_status(self, every_kind):
        assert every_kind.status == 1
        assert counts(every_kind.output) == {
            "passed": 5, "failed": 10, "skipped": 1, "xfailed": 1, "error": 1}

    def test_runs_serial_tests_itself_and_the_others_on_all_ranks(self, every_kind):
        first, last = every_kind.lines("serial")
        assert first == last
        assert sorted(every_kind.lines("after")) == ["0", "1", "2"]

    def test_names_the_rank_that_failed_and_shows_its_traceback_and_output(self, every_kind):
        text = section(every_kind.output, "test_one_rank_fails")
        assert text.startswith("rank 1 of 3 failed: AssertionError: not me")
        assert '>       assert world().rank != 1, "not me"' in text
        assert "Captured stdout call, rank 1" in text and "I am rank 1" in text
        assert "I am rank 0" not in text

    def test_shows_equal_tracebacks_once(self, every_kind):
        text = section(every_kind.output, "test_all_ranks_fail")
        assert text.startswith("ranks 0, 1, 2 of 3 failed: assert 1 == 2")
        assert text.count("E       assert 1 == 2") == 1

    def test_reports_a_failed_fixture_as_an_error(self, every_kind):
        assert "rank 2 of 3 failed: AssertionError: no fixture here" in every_kind.output
        assert "ERROR test_it.py::test_fixture_fails" in every_kind.output

    def test_fails_when_ranks_disagree(self, every_kind):
        assert ("the ranks disagree: rank 0 skipped (not here); ranks 1, 2 passed"
                in section(every_kind.output, "test_ranks_disagree"))

    def test_ends_ranks_that_wait_for_one_that_failed(self, every_kind):
        text = section(every_kind.output, "test_peers_wait")
        assert text.startswith("rank 1 of 3 failed; ranks 0, 2 still waited 0.5 s later")
        assert "ValueError: left the others alone" in text
        assert "ranks 0, 2 still wait here" in text
        assert "in test_peers_wait\n    world().barrier()" in text
        assert "_pytest" not in text and "pluggy" not in text

    def test_ends_a_deadlock(self, every_kind):
        text = section(every_kind.output, "test_deadlock")
        assert text.startswith("ranks 0, 1 of 3 did not finish within 3 s: a deadlock, or too slow")
        assert "world().recv(source=1 - world().rank)" in text
        assert "rank 2 had finished" in text

    def test_ends_ranks_that_cannot_answer(self, every_kind):
        text = section(every_kind.output, "test_stuck_in_c")
        assert text.startswith("rank 2 of 3 failed; rank 1 still waited")
        assert "no answer: it is in C code" in text

    def test_fails_just_the_test_in_which_a_job_dies(self, every_kind):
        for test in ("test_leaves", "test_is_killed"):
            assert re.match(r"the job `mpirun -n 3` ended \(exit status \d+\) while this test ran",
                            section(every_kind.output, test))

    def test_treats_leaving_as_failing(self, every_kind):
        assert "KeyboardInterrupt" in section(every_kind.output, "test_interrupts")
        text = section(every_kind.output, "test_sys_exit")
        assert text.startswith("rank 2 of 3 failed: SystemExit: 0")

    def test_keeps_the_reasons_of_skips(self, every_kind):
        assert re.search(r"SKIPPED \[1\] test_it.py:\d+: for a reason", every_kind.output)
        assert "XFAIL test_it.py::test_expected_to_fail" in every_kind.output

    def test_writes_junit_xml(self, every_kind):
        suite = ElementTree.parse(every_kind.folder / "out.xml").getroot()[0]
        assert (suite.get("tests"), suite.get("failures")) == ("18", "10")
        answer = suite.find("testcase[@name='test_after_all_that']/properties/property")
        assert answer is not None and answer.get("value") == "42"

    def test_leaves_nothing_behind(self, every_kind):
        assert every_kind.leftovers() == []
