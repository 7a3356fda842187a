"""`make bench` with PyTorch installed: every row, at its smallest size, has positive numbers."""

import json
import math
import re
from pathlib import Path

import pytest

from minipar.environment import find_mpirun
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from tests.bench import runner
from tests.bench.__main__ import main

from .smallest_bench import SMALLEST

WORKER = Path(__file__).with_name("smallest_bench.py")
NUMBER = re.compile(r"(?<![\w.-])-?\d[\d,]*(?:\.\d+)?|\b(?:nan|inf)\b")
PYTORCH = {"gpt": 2, "gpt-stock-malloc": 1, "gpt2-small": 1, "gpu": 2, "mlp": 2, "small-models": 1,
           "decode": 1, "data-parallel-pytorch": 2, "pipeline": 1, "collectives-2": 2}
ROWS = {"gpt": 4, "gpt-stock-malloc": 2, "gpt2-small": 7, "gpu": 4, "mlp": 2, "small-models": 3,
        "decode": 4, "deep-mlp": 2, "data-parallel": 8, "data-parallel-pytorch": 2, "pipeline": 4,
        "bubbles": 2, "tensor-parallel": 4, "schedules": len(SCHEDULES), "memory": 10, "serve": 1,
        "simulated": 2, "collectives-2": 20, "collectives-4": 7}


def numbers(text):
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


@pytest.mark.parametrize("text, found", [
    ("1,234.5 ms, 6 tokens/s", [1234.5, 6]), ("MPI nan µs", [math.nan]), ("-0.3 %", [-0.3]),
    ("inf GFLOP/s", [math.inf]), ("PyTorch 2.00 ms", [2])])
def test_numbers_are_found(text, found):
    assert numbers(text) == pytest.approx(found, nan_ok=True)


def test_every_measurement_has_a_smallest_size():
    assert {each.module for each in runner.MEASUREMENTS.values()} == SMALLEST.keys()
    assert runner.MEASUREMENTS.keys() == ROWS.keys()


@pytest.mark.parametrize("name", runner.MEASUREMENTS)
def test_every_row_is_measured(monkeypatch, capsys, name):
    assert find_mpirun(), "half of the rows need MPI: pip install '.[mpi]'"
    monkeypatch.setattr(runner, "WORKER", (str(WORKER),))
    status = main([name, "--rounds", "1", "--json"])
    out, err = capsys.readouterr()
    rows = json.loads(out)["tables"][0]["rows"]
    if name == "gpt" and "no such setting" in rows[0][1]:
        pytest.skip("this C library cannot be told to keep freed memory")
    if name == "gpu" and rows[0][1].startswith("needs"):
        pytest.skip(rows[0][1])
    assert status == 0 and len(rows) == ROWS[name], (rows, err)
    for what, ours, theirs, ratio, _ in rows:
        assert numbers(ours), what
        for number in (*numbers(ours), *numbers(theirs)):
            assert math.isfinite(number) and number > 0, (what, ours, theirs, ratio)
        assert ratio is None or math.isfinite(ratio) and ratio > 0, (what, ratio)
    assert len([row for row in rows if re.search("PyTorch|gloo", row[2])]) == PYTORCH.get(name, 0)
