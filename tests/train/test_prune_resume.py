"""`minipar prune --resume`: a pruning that was interrupted goes on as if it had not been."""

import shutil

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main
from minipar.compress.pruning.serialization import expand

DIGITS = ("--data", "digits", "--hidden", "16,12", "--batch", 8, "--steps", 6, "--dropout", 0.1,
          "--strategy", "zero1", "--clip", 0.5)


def run(*words) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert run("train", *DIGITS, "--out", folder / "dense") == 0
    assert run("prune", folder / "dense", "--amount", 0.3, "--out", folder / "pruned") == 0
    return folder


@pytest.mark.parametrize("start, words", [
    ("dense", ("--amount", 0.9, "--gradual", "--lr", 0.01)),
    ("pruned", ("--amount", 0.8, "--gradual", "--method", "taylor", "--scope", "layer")),
    ("dense", ("--amount", 0.7, "--method", "random")), ("dense", ("--method", "2:4")),
    ("pruned", ("--amount", 0.5, "--method", "structured"))])
@pytest.mark.parametrize("done", [10, 16])              # of 6 … 18; --gradual prunes until 14
@pytest.mark.one_in(2)
def test_resumed_is_exactly_uninterrupted(trained, tmp_path, capsys, start, words, done):
    whole, half = tmp_path / "whole", tmp_path / "half"
    assert run("prune", trained / start, *words, "--steps", 12, "--save-every", done, "--out",
               whole) == 0
    half.mkdir()
    shutil.copy(whole / files.PREVIOUS, half / files.NEWEST)
    assert files.load_description(half)["step"] == done
    capsys.readouterr()
    assert run("prune", "--resume", half) == 0
    assert f"resumed from {half} after {done} steps" in capsys.readouterr().out
    expected, found = files.load(whole), files.load(half)
    assert found.description == expected.description
    assert "pruning" not in found.description and len(found.description["losses"]) == 18
    for ours, theirs in ((found.model, expected.model), (found.optimizer, expected.optimizer)):
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    masks = expand(found)[1]
    assert ("structured" in words) or masks and not all(mask.all() for mask in masks.values())
    assert run("prune", "--resume", half) == 2
    assert "no pruning was interrupted there" in capsys.readouterr().err


def test_a_checkpoint_on_the_way_can_be_trained_and_evaluated(trained, tmp_path):
    out = tmp_path / "out"
    assert run("prune", trained / "dense", "--amount", 0.9, "--steps", 9, "--gradual",
               "--save-every", 3, "--out", out) == 0
    shutil.move(out / files.PREVIOUS, out / files.NEWEST)
    saved, masks = expand(files.load(out))
    assert any(mask.any() for mask in masks.values())
    assert saved.description["config"]["parallel"]["strategy"] == "zero1"   # as it was before
    assert run("evaluate", out) == 0
    assert run("train", "--resume", out, "--steps", 13, "--ranks", 2) == 0
    trained_on = files.load(out)
    assert "pruning" not in trained_on.description
    assert all(np.array_equal(mask, masks[name]) for name, mask in expand(trained_on)[1].items())


@pytest.mark.parametrize("words, says", [
    (("--resume", "{dense}"), "no pruning was interrupted there"),
    (("--resume", "{dense}", "--amount", 0), "--amount was chosen when the pruning began"),
    (("{dense}", "--resume", "{dense}"), "CHECKPOINT was chosen when the pruning began"),
    (("--resume", "{dense}", "--gradual"), "--gradual was chosen when the pruning began"),
    (("--resume", "missing"), "no checkpoint at missing"), ((), "minipar prune CHECKPOINT"),
    (("{dense}",), "minipar prune CHECKPOINT --out DIR"),
    (("{dense}", "--save-every", 2, "--out", "{out}"), "--save-every is of the training"),
    (("{dense}", "--save-every", -1, "--steps", 2, "--out", "{out}"),
     "--save-every must be at least 0")])
def test_a_mistake_is_one_line(trained, tmp_path, capsys, words, says):
    places = {"dense": trained / "dense", "out": tmp_path}
    capsys.readouterr()
    assert run("prune", *(str(word).format(**places) for word in words)) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
