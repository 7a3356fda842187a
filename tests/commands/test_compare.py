"""minipar compare: layouts, classes of one's own, recordings; exit statuses and the picture."""

import json

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


@pytest.mark.parametrize("words, said", {
    "compare": "compare which layout?",
    "compare one.trace": "compare takes two recordings",
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
