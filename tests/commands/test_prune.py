"""`minipar prune`: checkpoints that are smaller, can be trained on, and keep their masks."""

import re

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main
from minipar.compress.pruning.serialization import expand

pytestmark = pytest.mark.usefixtures("no_pictures")

GPT = ("--data", "synthetic", "--layers", 2, "--heads", 2, "--width", 16, "--context", 8,
       "--batch", 4, "--steps", 4)
DIGITS = ("--data", "digits", "--hidden", "16,12", "--batch", 8, "--steps", 6)


def run(*words) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    for name, words in (("gpt", GPT), ("digits", DIGITS)):
        assert run("train", *words, "--out", folder / name) == 0
    return folder


def masks_of(folder):
    return expand(files.load(folder))


@pytest.mark.parametrize("kind", [pytest.param("gpt", marks=pytest.mark.slow), "digits"])
@pytest.mark.parametrize("words, share", [
    (("--amount", 0.8), 0.2), (("--amount", 0.5, "--scope", "layer"), 0.5),
    (("--amount", 0.75, "--method", "random", "--steps", 2), 0.25),
    (("--amount", 0.9, "--steps", 6, "--gradual", "--lr", 0.01), 0.1),
    (("--amount", 0.6, "--method", "taylor"), 0.4), (("--method", "2:4"), 0.5)])
@pytest.mark.one_in(2)
def test_masks_stay_while_training_goes_on(trained, tmp_path, capsys, kind, words, share):
    assert run("prune", trained / kind, *words, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    assert re.search(r"before: .*\n(.*\n)*after: ", said)
    assert "zeros, dense" in said and "kept only" in said
    pruned, masks = masks_of(tmp_path)
    kept = sum(int(mask.sum()) for mask in masks.values())
    size = sum(mask.size for mask in masks.values())
    assert kept == pytest.approx(share * size, abs=len(masks))
    before = files.load(trained / kind)
    assert sum(a.nbytes for a in files.load(tmp_path).model.values()) \
        == sum(a.nbytes for a in before.model.values()) - 4 * (size - kept) \
        + sum(-(-mask.size // 8) + 16 for mask in masks.values())
    assert run("evaluate", tmp_path) == 0
    assert capsys.readouterr().out.startswith("method ")
    steps = pruned.description["step"] + 2
    assert run("train", "--resume", tmp_path, "--steps", steps, "--mesh", "dp=2,tp=2") == 0
    after, kept_masks = masks_of(tmp_path)
    assert after.description["compression"] == pruned.description["compression"]
    assert all(np.array_equal(masks[name], kept_masks[name]) for name in masks)
    for name, mask in masks.items():
        assert not after.model[name][~mask].any()
        assert not mask.any() or not np.array_equal(after.model[name], pruned.model[name])


@pytest.mark.parametrize("kind", [pytest.param("gpt", marks=pytest.mark.slow), "digits"])
def test_structured_is_a_smaller_model(trained, tmp_path, capsys, kind):
    assert run("prune", trained / kind, "--method", "structured", "--amount", 0.5, "--steps", 1,
               "--out", tmp_path) == 0
    saved = files.load(tmp_path)
    if kind == "gpt":
        config = saved.description["model"]
        assert (config["num_heads"], config["head_width"], config["mlp_width"]) == (1, 8, 32)
        assert saved.model["h.1.mlp.c_fc.weight"].shape == (16, 32)
    else:
        assert saved.description["model"] == {"sizes": [64, 8, 6, 10]}
    assert saved.description["compression"] == [
        {"kind": "pruned", "method": "structured", "amount": 0.5}]
    steps = saved.description["step"] + 1
    assert run("train", "--resume", tmp_path, "--steps", steps) == 0
    assert run("prune", tmp_path, "--amount", 0.5, "--out", tmp_path / "a") == 0
    assert run("prune", tmp_path / "a", "--method", "structured", "--out", tmp_path / "b") == 0
    assert run("train", "--resume", tmp_path / "b", "--steps", steps + 1) == 0
    assert len(files.load(tmp_path / "b").description["compression"]) == 3


def test_pruning_nothing_changes_nothing(trained, tmp_path):
    assert run("prune", trained / "digits", "--amount", 0, "--out", tmp_path) == 0
    before, after = (files.load(folder) for folder in (trained / "digits", tmp_path))
    found, masks = expand(after)
    assert all(mask.all() for mask in masks.values())
    for part in ("model", "optimizer"):
        ours, theirs = getattr(found, part), getattr(before, part)
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("words, says", [
    (("--amount", 1), "in [0, 1), not 1.0"), (("--amount", -0.5), "in [0, 1), not -0.5"),
    (("--amount", "nan"), "in [0, 1), not nan"), (("--amount", "many"), "invalid float value"),
    (("--method", "2:4", "--amount", 0.5), "which does not go with --method 2:4"),
    (("--method", "structured", "--scope", "layer"), "--scope is for weights that go one by one,"),
    (("--gradual",), "--gradual is of the training: add --steps 3"),
    (("--gradual", "--steps", 2), "give --steps of at least 3"), (("--steps", -1), "at least 0"),
    (("--lr", 0.1), "add --steps 3"),
    (("--steps", 3, "--lr", "inf"), "must be a number >= 0"),
    (("--method", "magic"), "invalid choice")])
def test_what_cannot_be_is_one_line(trained, tmp_path, capsys, words, says):
    assert run("prune", trained / "digits", *words, "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    assert not (tmp_path / "out" / "checkpoint.npz").exists()


def test_shapes_and_files_that_do_not_fit_are_one_line(trained, tmp_path, capsys):
    odd = tmp_path / "odd"
    assert run("train", "--data", "digits", "--hidden", "6", "--steps", 1, "--out", odd) == 0
    assert run("prune", odd, "--amount", 0.5, "--out", tmp_path / "half") == 0
    assert run("quantize", odd, "--out", tmp_path / "int8") == 0
    files.save(tmp_path / "out", files.load(odd))
    capsys.readouterr()
    for words, says in (
            (("prune", odd, "--method", "2:4"), "a multiple of 4 inputs, not 6"),
            (("prune", odd, "--method", "structured", "--amount", 0.01), "of so few neurons"),
            (("prune", tmp_path / "half", "--amount", 0.2), "50.0% of the weights are gone"),
            (("prune", tmp_path / "none"), "no checkpoint at"),
            (("prune", tmp_path / "int8"), "is quantized, which comes after pruning"),
            (("prune", tmp_path / "out"), "is, which would be replaced: give another"),
            (("prune", tmp_path / "out" / "checkpoint.npz"), "is, which would be replaced")):
        assert run(*words, "--out", tmp_path / "out") == 2
        said = capsys.readouterr().err
        assert says in said and said.count("\n") == 1, said
