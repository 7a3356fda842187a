"""A defect shows its traceback: only what the user gave is refused in one line."""

import importlib

import numpy as np
import pytest

from minipar.commands.main import main
from minipar.data import CharacterVocabulary
from minipar.nn import GPT, GPTConfig
from minipar.train import save_model

pytestmark = pytest.mark.usefixtures("no_pictures")

SMALL = "--data synthetic --layers 1 --heads 1 --width 8 --context 8 --batch 4 --steps 2"
# A command line, and the place in its computation that is broken.
COMMANDS = {
    "train": (f"train {SMALL}", "minipar.train.loop:compute_gradients"),
    "prune": ("prune {checkpoint} --steps 3 --out {out}", "minipar.train.loop:compute_gradients"),
    "distill": ("distill {checkpoint} --layers 1 --steps 2 --out {out}",
                "minipar.train.loop:compute_gradients"),
    "generate": ("generate {checkpoint} --prompt AB --max-tokens 3",
                 "minipar.inference.engine:Engine.step"),
    "collective": ("collective all_reduce -p 2 --bytes 64",
                   "minipar.commands.collective:Combining.__array_ufunc__"),
    "schedule": ("schedule 1f1b -p 2 -m 2", "minipar.commands.schedule:simulate"),
}
DEFECTS = [TypeError("a defect"), KeyError("a defect"), ValueError("a defect"),
           ZeroDivisionError("a defect")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    model = GPT(GPTConfig(16, 16, num_layers=1, num_heads=2, width=8)).initialize(3, np.float64)
    return save_model(folder, model, "synthetic", CharacterVocabulary("ABCDEFGHIJKLMNOP"))


def broken(monkeypatch, place: str, error: Exception) -> None:
    """Let the function at "module:name" raise `error`."""
    def fail(*args, **options):
        raise error
    module, _, name = place.partition(":")
    monkeypatch.setattr(f"{importlib.import_module(module).__name__}.{name}", fail)


@pytest.mark.parametrize("error", DEFECTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("command", COMMANDS)
def test_it_shows_its_traceback(monkeypatch, capsys, tmp_path, checkpoint, command, error):
    line, place = COMMANDS[command]
    broken(monkeypatch, place, error)
    words = line.format(checkpoint=checkpoint, out=tmp_path / "out").split()
    with pytest.raises(type(error), match="a defect"):
        main(words)
    assert "minipar: " not in capsys.readouterr().err


@pytest.mark.parametrize("line", [
    "prune {out} --out {out}/p", "evaluate {out}", "compare {out} {out}", "replay {out}",
    "schedule --from-csv {out}", "generate {out}", "distill {out} --out {out}/d",
    "quantize {out} --out {out}/q", "convert {out} {out}/c", "train --config {out}"])
def test_a_file_that_is_not_there_is_one_line(capsys, tmp_path, line):
    try:
        status = main(line.format(out=tmp_path / "nothing").split())
    except SystemExit as end:                   # refused on the ranks
        status = end.code
    assert status == 2
    printed = capsys.readouterr()
    assert not printed.out and printed.err.startswith("minipar: ")
    assert printed.err.count("\n") == 1 and "nothing" in printed.err
