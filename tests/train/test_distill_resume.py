"""`minipar distill --resume`: a distillation that was interrupted goes on with its teacher."""

import re
import shutil

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main

GPT = ("--data", "synthetic", "--layers", 2, "--heads", 2, "--width", 16, "--context", 8,
       "--batch", 4, "--steps", 4, "--dropout", 0.1)
DIGITS = ("--data", "digits", "--hidden", "16,12", "--batch", 8, "--steps", 4)
SMALLER = ("--layers", 1, "--width", 8, "--match-hidden", 0.5, "--match-attention", 1,
           "--temperature", 3, "--alpha", 0.3)


def run(*words) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teachers")
    for name, words in (("gpt", GPT), ("double", (*GPT, "--dtype", "float64")),
                        ("digits", DIGITS)):
        assert run("train", *words, "--out", folder / name) == 0
    return folder


def interrupted(folder, *words):
    """A distillation of 6 steps, and a folder in which only 3 of them are done."""
    assert run("distill", *words, "--steps", 6, "--save-every", 3, "--out", folder / "whole") == 0
    half = folder / "half"
    half.mkdir()
    shutil.copy(folder / "whole" / files.PREVIOUS, half / files.NEWEST)
    assert files.load(half).description["step"] == 3
    return half


def arrays(folder) -> dict[str, np.ndarray]:
    saved = files.load(folder)
    return {f"{part}/{name}": array for part in ("model", "optimizer", "others")
            for name, array in getattr(saved, part).items()}


@pytest.mark.parametrize("teacher, words", [
    ("gpt", SMALLER), ("digits", ("--hidden", 5, "--match-hidden", 0.1, "--seed", 7)),
    ("gpt", (*SMALLER, "--precision", "fp16")),
    ("gpt", (*SMALLER, "--ranks", 3, "--teacher-ranks", 1, "--strategy", "fsdp")),
    pytest.param("gpt", (*SMALLER, "--ranks", 4, "--teacher-ranks", 2, "--accumulate", 2),
                 marks=pytest.mark.slow)])
@pytest.mark.one_in(2)
def test_resumed_is_exactly_uninterrupted(teachers, tmp_path, capsys, teacher, words):
    half = interrupted(tmp_path, teachers / teacher, *words)
    ranks = [word for i, word in enumerate(words)
             if {"--ranks", "--teacher-ranks"} & set(words[max(0, i - 1):i + 1])]
    capsys.readouterr()
    assert run("distill", "--resume", half, *ranks) == 0
    assert f"resumed from {half} after 3 steps" in capsys.readouterr().out
    whole, resumed = files.load(tmp_path / "whole"), files.load(half)
    assert resumed.description == whole.description and len(whole.description["losses"]) == 6
    expected, found = arrays(tmp_path / "whole"), arrays(half)
    assert expected.keys() == found.keys() and any("projections" in name for name in expected)
    assert all(np.array_equal(found[name], array) for name, array in expected.items())


@pytest.mark.parametrize("words", [
    ("--ranks", 2, "--strategy", "zero1"), ("--ranks", 3, "--strategy", "fsdp"),
    ("--ranks", 3, "--teacher-ranks", 2)])
@pytest.mark.one_in(2)
def test_it_goes_on_with_other_ranks_and_strategies(teachers, tmp_path, words):
    half = interrupted(tmp_path, teachers / "double", *SMALLER)
    assert run("distill", "--resume", half, *words, "--out", tmp_path / "out") == 0
    expected, found = arrays(tmp_path / "whole"), arrays(tmp_path / "out")
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-8, err_msg=name)


def test_a_checkpoint_on_the_way_is_an_ordinary_one_of_the_student(teachers, tmp_path, capsys):
    half = interrupted(tmp_path, teachers / "gpt", *SMALLER)
    saved = files.load(half)
    assert not [name for name in (*saved.model, *saved.optimizer) if "projection" in name]
    assert all(name.startswith("distillation/") for name in saved.others)
    assert run("evaluate", half) == 0
    for command in ("quantize", "prune"):
        assert run(command, half, "--out", tmp_path / command) == 0
        assert not files.load(tmp_path / command).others
        assert "distillation" not in files.load_description(tmp_path / command)
    assert run("train", "--resume", half, "--steps", 4) == 0            # without a teacher
    assert "distillation" not in files.load_description(half)
    assert run("distill", "--resume", half) == 2
    assert "is of no distillation: `minipar train --resume` goes on with it" \
        in capsys.readouterr().err


def test_more_steps_and_a_teacher_that_has_moved(teachers, tmp_path, capsys):
    out, moved = tmp_path / "out", tmp_path / "moved"
    shutil.copytree(teachers / "digits", tmp_path / "teacher")
    assert run("distill", tmp_path / "teacher", "--hidden", 5, "--match-hidden", 1, "--steps", 2,
               "--out", out) == 0
    capsys.readouterr()
    assert run("distill", "--resume", out) == 2
    assert "2 steps are done already" in capsys.readouterr().err
    shutil.move(tmp_path / "teacher", moved)
    assert run("distill", "--resume", out, "--steps", 4) == 2
    assert "teacher is not there any more: say where it is, minipar distill TEACHER" \
        in capsys.readouterr().err
    assert run("distill", moved, "--resume", out, "--steps", 4) == 0
    assert files.load_description(out)["step"] == 4
    assert files.load_description(out)["distillation"]["teacher"] == str(moved)


@pytest.mark.parametrize("words, says", [
    (("--temperature", 4), "--temperature was chosen when the distillation began, which"),
    (("--hidden", "3"), "--hidden was chosen when the distillation began"),
    (("--seed", 4), "--seed was chosen when the distillation began"),
    (("--optimizer", "sgd", "--steps", 9), "trained with --optimizer adamw, not sgd"),
    (("--teacher-split", "pp", "--steps", 9), "--teacher-split cuts the teacher over ranks: add"),
    (("--save-every", -1), "--save-every must be at least 0")])
def test_what_would_change_it_is_refused(teachers, tmp_path, capsys, words, says):
    assert run("distill", teachers / "digits", "--steps", 2, "--out", tmp_path) == 0
    capsys.readouterr()
    assert run("distill", "--resume", tmp_path, *words) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_projections_that_are_missing_are_said(teachers, tmp_path, capsys):
    assert run("distill", teachers / "gpt", *SMALLER, "--steps", 2, "--out", tmp_path) == 0
    saved = files.load(tmp_path)
    for name in list(saved.others):
        others = {key: array for key, array in saved.others.items() if key != name}
        files.save(tmp_path, files.Checkpoint(saved.model, saved.optimizer, saved.description,
                                              others))
        capsys.readouterr()
        assert run("distill", "--resume", tmp_path, "--steps", 3) == 2
        said = capsys.readouterr().err
        assert name.rpartition("/")[2] in said and said.count("\n") == 1


def test_a_seed_and_a_precision_of_its_own(teachers, tmp_path, capsys):
    found = {}
    for name, words in (("as before", ()), ("seed", ("--seed", 5)),
                        ("bf16", ("--precision", "bf16")), ("fp8", ("--precision", "fp8"))):
        for ranks in (1, 2):
            assert run("distill", teachers / "gpt", *SMALLER, *words, "--steps", 3, "--ranks",
                       ranks, "--out", tmp_path / name / str(ranks)) == 0
        said = capsys.readouterr().out
        assert ("with float32 masters" in said) == (name in ("bf16", "fp8"))
        one, two = (files.load_description(tmp_path / name / str(ranks))["losses"]
                    for ranks in (1, 2))
        np.testing.assert_allclose(one, two, rtol=1e-2 if "float32 masters" in said else 1e-5)
        found[name] = one
        # Another seed is not another language: the teacher's is.
        assert files.load_description(tmp_path / name / "1")["data_seed"] == 0
        nats = float(re.search(r"student, .*validation loss ([\d.]+)", said)[1])
        assert run("evaluate", tmp_path / name / "1") == 0
        assert abs(float(re.search(r"loss ([\d.]+)", capsys.readouterr().out)[1]) - nats) < 0.1
    losses = list(found.values())
    assert all(one != other for i, one in enumerate(losses) for other in losses[:i])
    np.testing.assert_allclose(found["bf16"], found["as before"], rtol=0.05)
