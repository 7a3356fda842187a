"""minipar compare: layouts, classes of one's own, recordings; exit statuses and the picture."""

import json

import numpy as np
import pytest

from minipar.commands.main import main
from tests.train.test_train import SMALL

WORDS = [*SMALL, "--data", "synthetic"]
CLASS = """
from minipar.parallel.data.ddp import DistributedDataParallel
class Larger(DistributedDataParallel):
    def run_batch(self, microbatches, loss_divisor, seed=0, step=0):
        return super().run_batch(microbatches, loss_divisor / self.dp.size, seed, step)
"""


@pytest.fixture
def ones_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(CLASS)
    return f"{file}:Larger"


COMPARE = ["compare", "--data", "synthetic", "--layers", "1", "--width", "16", "--context", "8",
           "--batch", "4", "--set", "model.heads=2", "--steps", "1"]


def test_a_correct_layout_is_rounding(capsys, tmp_path):
    assert main([*COMPARE, "--right", "tp=2", "--png", str(tmp_path / "a.png")]) == 0
    said = capsys.readouterr().out
    assert "rounding: in float64 they agree to" in said and (tmp_path / "a.png").stat().st_size
    assert main([*COMPARE, "--left", "dp=2", "--right", "dp=2,tp=2", "--dtype", "float64"]) == 0
    assert "equal: in float64" in capsys.readouterr().out


def test_a_class_of_ones_own_is_compared_and_trained(capsys, ones_own):
    assert main([*COMPARE, "--right", "dp=2", "--strategy", ones_own]) == 1
    said = capsys.readouterr().out
    assert "different: step 0, loss on ranks 0, 1" in said and "2 times as large (dp" in said
    train = ["train", *WORDS, "--steps", "1", "--ranks", "2", "--strategy", ones_own]
    assert main(train) == 0
    assert main([*train, "--verify", "1"]) == 1
    assert main([*COMPARE, "--right", "dp=2", "--strategy", ones_own, "--json"]) == 1
    table = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""])
                       )["tables"][0]
    assert table["rows"][0][:4] == [0, "loss", "loss", "0, 1"]


def test_recordings(capsys, tmp_path):
    left, right, exact = (str(tmp_path / name) for name in ("left", "right", "exact"))
    train = ["train", *WORDS, "--layers", "2", "--steps", "2", "--set", "run.record_steps=1"]
    assert main([*train, "--set", f"run.record={left}"]) == 0
    assert main([*train, "--set", f"run.record={right}", "--mesh", "pp=2,tp=2"]) == 0
    assert main([*train, "--set", f"run.record={exact}", "--dtype", "float64"]) == 0
    capsys.readouterr()
    assert main(["compare", left, right]) == 0
    assert "which is assumed" in capsys.readouterr().out
    assert main(["compare", left, right, "--exact", exact]) == 0
    assert "rounding: in float32 they differ by" in capsys.readouterr().out
    assert main([*train, "--set", f"run.record={right}", "--lr", "0.5"]) == 0
    assert main(["compare", left, right]) == 1
    assert "step 0, parameter of " in capsys.readouterr().out


def test_the_step_that_is_traced_for_pictures_is_recorded_too(tmp_path):
    train = ["train", *WORDS, "--ranks", "2", "--steps", "4", "--set", "run.record_steps=3"]
    assert main([*train, "--set", f"run.record={tmp_path / 'left'}"]) == 0
    assert main([*train, "--set", f"run.record={tmp_path / 'right'}",
                 "--out", str(tmp_path / "out")]) == 0
    left, right = (np.load(tmp_path / name / "rank1.npz") for name in ("left", "right"))
    assert left.files == right.files
    assert main(["compare", str(tmp_path / "left"), str(tmp_path / "right")]) == 0


def test_json_has_the_sentence_the_cause_and_numbers(capsys):
    assert main([*COMPARE, "--right", "tp=2", "--json"]) == 0
    places, words = json.loads(capsys.readouterr().out)["tables"]
    assert places["title"] == "rounding" and len(places["rows"]) == 10
    row = dict(zip((column["name"] for column in words["columns"]), words["rows"][0]))
    assert row["sentence"].startswith("rounding: in float64") and row["cause"] is None
    assert 0 < row["difference in float64"] < 1e-10 and 0 < row["most over rounding"] < 1
    assert row["arrays compared"] > 20


FAILING = {     # a class that fails, and words of what is told
    "at import": ("1 / 0", "ZeroDivisionError"),
    "its __init__": ("""
class Mine(DistributedDataParallel):
    def __init__(self, model):
        super().__init__(model)""", "TypeError"),
    "a step": ("""
class Mine(DistributedDataParallel):
    def finish(self):
        raise ValueError("in Mine")""", "ValueError: in Mine"),
    "it hangs": ("""
class Mine(DistributedDataParallel):
    def finish(self):
        self.comm.recv(self.slabs[0].grad, 1 - self.comm.rank, tag=7)""", "deadlock"),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_class_that_fails_is_not_called_different(capsys, tmp_path, name):
    text, said = FAILING[name]
    file = tmp_path / "mine.py"
    file.write_text(CLASS + text)
    try:
        status = main([*COMPARE, "--right", "dp=2", "--strategy", f"{file}:Mine"])
    except SystemExit as error:
        status = error.code
    printed = capsys.readouterr()
    assert status == 2 and said in printed.err and "different" not in printed.out
    assert name == "its __init__" or "mine.py" in printed.err


def test_rows_that_are_read_twice_are_found_by_verify_too(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("""
from minipar.parallel.data.ddp import DistributedDataParallel
class Twice(DistributedDataParallel):
    def rows(self, num_rows):
        return range(num_rows // 2 + 1) if self.dp.rank == 0 else super().rows(num_rows)
""")
    assert main([*COMPARE, "--right", "dp=2", "--strategy", f"{file}:Twice"]) == 1
    assert "rows of the batch on ranks 0, 1: read 2 times: row 2 of 4" in capsys.readouterr().out
    assert main(["train", *WORDS, "--steps", "1", "--ranks", "2", "--strategy", f"{file}:Twice",
                 "--verify", "1"]) == 1
    assert "on ranks 0, 1: read 2 times: row" in capsys.readouterr().err


def test_a_file_in_the_place_of_the_folder_is_refused_before_the_training(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert main(["train", *WORDS, "--steps", "1", "--set", f"run.record={tmp_path / 'file'}"]) == 2
    printed = capsys.readouterr()
    assert "run.record" in printed.err and "final loss" not in printed.out


@pytest.mark.parametrize("words, said", {
    "compare": "compare which layout?",
    "compare one.trace": "compare takes two recordings",
    "compare a.trace b.trace --right tp=2": "--right shapes a layout",
    "compare a.trace b.trace --steps 2": "--steps shapes a layout",
    "compare a.trace b.trace --strategy zero1": "--strategy shapes a layout",
    "compare a.trace b.trace --set model.heads=2": "--set shapes a layout",
    "compare --right tp=2 --exact a.trace": "compare takes two recordings",
    "compare no.trace no.trace": "No such file",
    "compare --right tp=2 --steps 0": "--steps must be at least 1, not 0",
    "compare --right up=2": "no axis 'up'",
    "compare --right dp=2 --strategy none.py:Mine": "none.py:Mine:",
    "compare --right dp=2 --strategy minipar.nn:GPT": "is no strategy",
    "compare --right dp=2 --strategy mine": "invalid choice: 'mine'",
    "compare --right dp=2 --strategy local_sgd": "does not equal",
}.items())
def test_mistakes(capsys, words, said):
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1
