"""A measurement that fails takes away only its own rows, and says why; the exit status tells it."""

import json

import pytest

from minipar.environment import find_mpirun
from minipar.launcher import INTERRUPTED, UsageError
from tests.bench import runner
from tests.bench.__main__ import main
from tests.bench.timing import Row

needs_mpi = pytest.mark.skipif(find_mpirun() is None,
                               reason="there is no mpirun: pip install '.[mpi]'")
# A worker in which one function fails as `how` says.
WORKER = """
import os, sys
from tests.bench import {module}
from tests.bench.__main__ import main

def failing(*args):
    {how}
print("a library's own line")
{module}.{function} = failing
sys.exit(main(sys.argv[1:]))
"""


def bench(capsys, *names):
    """(exit status, rows of the table, what stderr says)."""
    status = main([*names, "--rounds", "1", "--json"])
    out, err = capsys.readouterr()
    return status, json.loads(out)["tables"][0]["rows"], err


@pytest.fixture
def decode_fails(monkeypatch):
    """A function that lets the measurement `decode` raise an error."""
    def choose(error):
        def measure(name, num_rounds, out):
            if name == "decode":
                raise error
            return 1.0, [Row(f"row of {name}", "3 ms", "4 ms", 1.5, 1.0)]
        monkeypatch.setattr(runner, "measure", measure)
    return choose


@pytest.mark.parametrize("error, why", [
    (UsageError("no such thing", status=1), "UsageError: no such thing"),
    (FileNotFoundError("mpirun\nis gone"), "FileNotFoundError: mpirun"),
    (AssertionError(), "AssertionError")])
def test_the_others_are_measured_and_shown(capsys, decode_fails, error, why):
    decode_fails(error)
    status, rows, said = bench(capsys, "mlp", "decode", "memory")
    assert status == 1
    assert rows == [["row of mlp", "3 ms", "4 ms", 1.5, 1.0], ["decode", "failed", why, None, None],
                    ["row of memory", "3 ms", "4 ms", 1.5, 1.0]]
    assert said == "minipar: 1 of 3 measurements failed (decode): the table says why\n"


def test_people_see_the_same(capsys, decode_fails):
    decode_fails(ValueError("twelve"))
    assert main(["decode", "mlp"]) == 1
    said = capsys.readouterr().out
    assert all(word in said for word in ("row of mlp", "failed", "ValueError: twelve"))


def test_what_was_measured_before_ctrl_c_is_shown(capsys, decode_fails):
    decode_fails(KeyboardInterrupt())
    status, rows, said = bench(capsys, "mlp", "decode", "memory")
    assert status == INTERRUPTED and said == "minipar: interrupted\n"
    assert rows == [["row of mlp", "3 ms", "4 ms", 1.5, 1.0]]


def test_a_wrong_command_line_is_one_line(capsys):
    assert main(["nothing"]) == 2
    assert "there is no measurement 'nothing': choose from" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--rounds", "x"])
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name, module, function, num_rows", [
    ("small-models", "small_models", "mlp_row", 2),
    pytest.param("deep-mlp", "on_ranks.deep_mlp", "check_same", 0, marks=needs_mpi)])
@pytest.mark.parametrize("how, why", [
    ("raise ValueError('twelve')", "ValueError: twelve"),
    ("os._exit(3)", "it ended with exit status 3")])
def test_rows_before_the_error_are_kept(monkeypatch, capfd, tmp_path, name, module, function,
                                        num_rows, how, why):
    program = tmp_path / "worker.py"
    package, _, last = f"tests.bench.{module}".rpartition(".")
    text = WORKER.replace("from tests.bench import {module}", f"from {package} import {last}")
    program.write_text(text.format(module=last, function=function, how=how))
    monkeypatch.setattr(runner, "WORKER", (str(program),))
    _, rows = runner.measure(name, 1, None)
    # mpirun may kill the other rank first, and end with that one's 9
    reasons = [why, why.replace("3", "9")] if name == "deep-mlp" else [why]
    assert rows[-1] in [Row.failed(name, each) for each in reasons]
    assert len(rows) == num_rows + 1
    assert all(row.ratio > 0 for row in rows[:-1])
    assert ("twelve" in capfd.readouterr().err) == ("twelve" in how)     # the traceback, too


def test_a_worker_that_says_nothing_has_failed(monkeypatch):
    monkeypatch.setattr(runner, "WORKER", ("-c", "pass"))
    assert runner.measure("mlp", 1, None)[1] == [
        Row.failed("mlp", "it ended with exit status 0")]


def test_a_folder_that_cannot_be_is_refused_at_once(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert main(["serve", "--out", str(tmp_path / "file")]) == 2
    assert f"{tmp_path / 'file'}: " in capsys.readouterr().err
