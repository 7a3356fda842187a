"""`%%ranks` in an IPython shell: what ranks print, the names they keep, the reports of failures."""

import builtins

import pytest

pytest.importorskip("IPython", reason="make test-notebooks installs it")

from IPython.core.interactiveshell import InteractiveShell


@pytest.fixture
def run(capsys):
    """Run cells in a fresh shell; return what they printed, "✗" first if the last one failed."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(colors="nocolor")

    def run(*cells: str) -> str:
        done = [shell.run_cell(cell, store_history=True).success for cell in cells]
        assert all(done[:-1])
        out, errors = capsys.readouterr()
        return ("" if done[-1] else "✗") + out + errors

    run("import numpy as np, minipar as mp\n%load_ext minipar")
    yield run
    InteractiveShell.clear_instance()
    for name in ("__IPYTHON__", "get_ipython", "display"):      # a shell leaves them to all others
        vars(builtins).pop(name, None)


def test_each_line_has_its_rank(run):
    printed = run("%%ranks 2\nprint('a', end=' ')\nmp.barrier(comm)\nprint(rank, size)\n"
                  "print('no end', end='')")
    assert printed.splitlines()[:-1] == ["[1] a 1 2", "[0] a 0 2", "[0] no end", "[1] no end"] or \
        sorted(printed.splitlines()[:-1]) == ["[0] a 0 2", "[0] no end", "[1] a 1 2", "[1] no end"]
    assert printed.splitlines()[-1].startswith("2 simulated ranks, ")


def test_the_last_expression_is_shown(run):
    assert {"[0] Out: 0", "[2] Out: 20"} <= set(run("%%ranks 3\n10 * rank").splitlines())
    assert "Out" not in run("%%ranks 3\n10 * rank;")
    assert "Out" not in run("%%ranks 3\nNone")


def test_ranks_compute_together(run):
    printed = run("start = np.arange(4.0)",
                  "%%ranks 4\ntotal = mp.all_reduce(comm, start * rank)\ntotal.tolist()")
    assert printed.count("Out: [0.0, 6.0, 12.0, 18.0]") == 4


def test_names_stay_with_their_rank(run):
    printed = run("%%ranks 2\nmine = rank + 10\ndef later():\n    return mine + added",
                  "added, mine = 100, 'of the notebook'",
                  "%%ranks 2\nlater()",
                  "print(ranks[1]['mine'], mine, sorted(ranks[0]))")
    assert "[0] Out: 110" in printed and "[1] Out: 111" in printed
    assert "11 of the notebook ['later', 'mine']" in printed


def test_a_class_of_the_cell_sees_the_notebook(run):
    assert "[1] Out: 2.0" in run(
        "%%ranks 2\nclass Thing:\n    value = np.ones(2)\nfloat(Thing.value.sum())")


def test_more_ranks_in_a_later_cell(run):
    printed = run("%%ranks 2\nkept = rank", "%%ranks 3\nprint('kept' in globals())")
    assert "[2] False" in printed and "[1] True" in printed


def test_a_cluster_of_the_notebook(run):
    assert "2 simulated ranks, 2 s of virtual time" in run(
        "slow = mp.Cluster(2, latency=1.0)",
        "%%ranks slow\nx = np.zeros(1)\nfor _ in range(2):\n"
        "    comm.send(x, 1) if rank == 0 else comm.recv(x, 0)")


def test_a_deadlock_is_one_report(run):
    printed = run("%%ranks 2\nx = np.zeros(4)\ncomm.send(x, 1 - rank)\ncomm.recv(x, 1 - rank)")
    assert printed.startswith("✗deadlock: no rank can go on\n  rank 0 waits to send to rank 1")
    assert "at <cell 2>:3" in printed and "Traceback" not in printed and "greenlet" not in printed


def test_a_mismatch_is_one_report(run):
    printed = run("%%ranks 2\nmp.all_reduce(comm, np.zeros(rank + 1))")
    assert printed.startswith("✗collective mismatch: ranks differ in shape")


def test_a_failed_rank_is_one_report(run):
    printed = run("def fail():\n    return 1 / 0",
                  "%%ranks 3\nbefore = rank\nif rank == 1:\n    fail()\nmp.barrier(comm)")
    assert printed.startswith("✗ZeroDivisionError: division by zero\n"
                              "on rank 1 of 3 simulated ranks")
    assert 'File "<cell 3>", line 4' in printed
    assert 'File "<cell 2>", line 2, in fail' in printed        # an ordinary cell
    assert "/minipar/" not in printed
    assert "{'before': 0}" in run("print(ranks[0])")


@pytest.mark.parametrize("cell, words", [
    ("x = (", "SyntaxError: '(' was never closed"),
    ("import sys; sys.exit(3)", "SystemExit: 3"),
    ("unknown", "NameError: name 'unknown' is not defined")])
def test_other_failures(cell, words, run):
    printed = run(f"%%ranks 2\n{cell}")
    assert printed.startswith("✗") and words in printed and "magic.py" not in printed


def test_a_communicator_lasts_as_long_as_its_cell(run):
    assert "this run is over" in run("%%ranks 2\nold = comm", "%%ranks 2\nmp.barrier(old)")


@pytest.mark.parametrize("words, told", [
    ("nothing", "'nothing' is neither a number of ranks nor an mp.Cluster"),
    ("0", "'0' is neither"), ("2 3", "'3' is neither"), ("2 --traces", "'--traces' is neither"),
    ("quiet --trace", "keeps no trace: make it with trace=True")])
def test_words_that_are_not_understood(words, told, run):
    printed = run("quiet = mp.Cluster(2)", f"%%ranks {words}\n1")
    assert printed.startswith("✗%%ranks") and told in printed and len(printed.splitlines()) == 1


def test_pictures_are_shown(run, monkeypatch, tmp_path):
    shown = []
    monkeypatch.setattr("minipar.school.notebook.magic.display", shown.append)
    assert run("%%ranks 2 --trace\nx = np.zeros(4)\ncomm.recv(x, 1 - rank)").startswith("✗deadlock")
    assert shown.pop().data.startswith(b"\x89PNG")
    run("from minipar.viz import draw_space_time, TracedRun",
        f"%%ranks 1\ncomm.start_trace()\nmp.barrier(comm)\ndraw_space_time("
        f"'{tmp_path}/p.png', TracedRun('one', comm.stop_trace()))")
    assert shown.pop()._repr_png_().startswith(b"\x89PNG")
