"""A model of PyTorch on two gloo ranks, cut by hand, is recorded and compared with one process."""

import subprocess
import sys
from pathlib import Path

import pytest

from minipar.commands.main import main

PROGRAM = Path(__file__).with_name("recorded_ranks.py")


def record(folder, size, kind):
    """Run the program on `size` processes; return its folder."""
    trace = folder / f"{kind.replace(' ', '-')}-{size}.trace"
    ranks = [subprocess.Popen([sys.executable, PROGRAM, str(rank), str(size),
                               folder / f"store-{kind.replace(' ', '-')}", trace, kind])
             for rank in range(size)]
    assert [rank.wait(120) for rank in ranks] == [0] * size
    return trace


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return record(tmp_path_factory.mktemp("alone"), 1, "right")


@pytest.mark.parametrize("kind, words", [
    ("right", ["equal"]), ("dtensor", ["equal"]),
    ("no f", ["backward of norm on ranks 0, 1", "whose sum is right", "is missing"]),
    ("bias twice", ["loss on ranks 0, 1"])])
def test_two_ranks_beside_one(alone, tmp_path, capsys, kind, words):
    trace = record(tmp_path, 2, kind)
    status = main(["compare", str(alone), str(trace)])
    printed = " ".join(capsys.readouterr().out.split())
    assert status == (kind not in ("right", "dtensor")), printed
    assert all(word in printed for word in words), printed
