"""The study: one command from training to the report."""

import csv
import json
import signal
import subprocess
import sys
import time

import pytest

from minipar.commands.main import main
from minipar.compression_study.measure import ROWS
from minipar.compression_study.subjects import QUICK


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The folder of a quick study."""
    out = tmp_path_factory.mktemp("study")
    assert main(["study", "--quick", "--out", str(out)]) == 0
    return out


def test_every_version_of_every_model_has_a_row(report):
    rows = list(csv.DictReader((report / "study.csv").open()))
    names = [row.name for row in ROWS]
    for subject in QUICK:
        assert [row["version"] for row in rows if row["subject"] == subject.name] == names
    text = (report / "study.md").read_text()
    assert all(name in text for name in names) and "With one seed nothing" in text
    assert (report / "study.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((report / "study.json").read_text())
    assert {path.name for path in report.iterdir()} == {"study.csv", "study.json", "study.md",
                                                        "study.png"}


def test_the_numbers_fit_together(report):
    rows = {(row["subject"], row["version"]): row
            for row in csv.DictReader((report / "study.csv").open())}
    for subject in QUICK:
        of = {name: rows[subject.name, name] for name in (row.name for row in ROWS)}
        size = {name: int(row["num_bytes"]) for name, row in of.items()}
        flops = {name: float(row["flops"]) for name, row in of.items()}
        assert size["int4"] < size["int8"] < size["dense"] / 2
        assert size["pruned 90 %"] < size["pruned 80 %"] < size["pruned 50 %"] < size["dense"]
        assert flops["pruned 90 %"] == flops["dense"] > flops["structured 50 %"]
        assert flops["pruned 90 %, run sparse"] < flops["dense"]


@pytest.mark.parametrize(("words", "message"), [
    (["--seeds", "0"], "--seeds 0: give a number of at least 1"),
    (["--quick", "--out", "/dev/null/x"], "/dev/null")])
def test_mistakes_are_one_line(words, message, capsys):
    assert main(["study", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("num_seeds", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_study_that_is_ended_leaves_nothing(num_seeds, tmp_path):
    """Two seeds are trained in processes of their own, which end too: they would hold stderr."""
    study = subprocess.Popen([sys.executable, "-m", "minipar", "study", "--quick", "--seeds",
                              str(num_seeds), "--out", str(tmp_path)], stderr=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, text=True)
    with study:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".work-*/*/*/*")) and time.monotonic() < deadline:
            assert study.poll() is None
            time.sleep(0.02)
        study.send_signal(signal.SIGTERM)
        _, error = study.communicate(timeout=30)
    assert (study.returncode, error) == (128 + signal.SIGTERM, "minipar: ended by SIGTERM\n")
    assert list(tmp_path.iterdir()) == []
