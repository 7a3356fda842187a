"""`minipar distill`: students that are ordinary checkpoints; teachers on other ranks; mistakes."""

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main

pytestmark = pytest.mark.usefixtures("no_pictures")

GPT = ("--data", "synthetic", "--layers", 2, "--heads", 2, "--width", 16, "--context", 8,
       "--batch", 4, "--steps", 4, "--dtype", "float64", "--strategy", "dp")
DIGITS = ("--data", "digits", "--hidden", "16,12", "--batch", 8, "--steps", 4)
SMALLER = ("--layers", 1, "--width", 8, "--match-hidden", 0.5, "--match-attention", 1, "--steps", 3)


def run(*words) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teachers")
    for name, words in (("gpt", GPT), ("digits", DIGITS)):
        assert run("train", *words, "--out", folder / name) == 0
    return folder


@pytest.fixture(scope="module")
def student(teachers, tmp_path_factory):
    out = tmp_path_factory.mktemp("student")
    assert run("distill", teachers / "gpt", *SMALLER, "--out", out) == 0
    return out


def test_the_student_is_an_ordinary_checkpoint(student, capsys):
    saved = files.load(student)
    assert saved.description["model"]["num_layers"] == 1
    assert saved.description["step"] == len(saved.description["losses"]) == 3
    assert not [name for name in (*saved.model, *saved.optimizer) if "projection" in name]
    assert len(saved.optimizer) == 2 * len(saved.model)
    assert run("train", "--resume", student, "--steps", 5, "--out", student.parent / "more") == 0
    assert "resumed from" in capsys.readouterr().out


@pytest.mark.parametrize("words", [
    ("--ranks", 4, "--teacher-ranks", 2, "--accumulate", 2),
    ("--ranks", 5, "--teacher-ranks", 3, "--teacher-split", "pp", "--strategy", "fsdp"),
    pytest.param(("--ranks", 3, "--strategy", "zero1"), marks=pytest.mark.slow)])
@pytest.mark.one_in(2)
def test_teachers_and_students_on_any_ranks_make_the_same_student(teachers, student, tmp_path,
                                                                   capsys, words):
    assert run("distill", teachers / "gpt", *SMALLER, *words, "--out", tmp_path) == 0
    expected, found = files.load(student), files.load(tmp_path)
    np.testing.assert_allclose(found.description["losses"], expected.description["losses"],
                               rtol=1e-10)
    for name, array in expected.model.items():
        np.testing.assert_allclose(found.model[name], array, atol=1e-8, err_msg=name)
    assert "learns from one of" in capsys.readouterr().out


def test_digits_learn_from_digits(teachers, tmp_path, capsys):
    assert run("distill", teachers / "digits", "--hidden", "5", "--match-hidden", 0.1,
               "--temperature", 4, "--alpha", 1, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    assert "teacher, 1,374 parameters: " in said and "student, 385 parameters: " in said
    assert "T = 4, α = 1, hidden layers × 0.1" in said
    assert files.load(tmp_path).description["model"] == {"sizes": [64, 5, 10]}


def test_a_student_of_the_same_size_needs_no_sizes(teachers, tmp_path):
    assert run("distill", teachers / "digits", "--out", tmp_path) == 0
    saved, teacher = files.load(tmp_path), files.load(teachers / "digits")
    assert {n: a.shape for n, a in saved.model.items()} \
        == {n: a.shape for n, a in teacher.model.items()}


@pytest.mark.parametrize("teacher, words, message", [
    ("gpt", "--width 9", "width of 9 does not divide into 2 heads"),
    ("gpt", "--context 9", "the teacher reads 8 tokens at once, the student 9"),
    ("gpt", "--hidden 5", "--hidden is a size of an MLP, but the teacher is a GPT"),
    ("digits", "--layers 2", "--layers is a size of a GPT, but the teacher is an MLP"),
    ("gpt", "--data docs", "characters that the model does not know"),
    ("gpt", "--data digits", "--data digits: the teacher was trained on synthetic"),
    ("digits", "--data docs", "--data docs: the teacher was trained on digits"),
    ("digits", "--match-attention 1", "only a GPT has attention scores"),
    ("digits", "--hidden= --match-hidden 1", "without hidden layers"),
    ("gpt", "--temperature 0", "a temperature is a number > 0"),
    ("gpt", "--temperature nan", "a temperature is a number > 0"),
    ("gpt", "--alpha 2", "expected alpha in [0, 1]"),
    ("gpt", "--match-hidden -1", "weights >= 0"),
    ("gpt", "--match-hidden nan", "weights >= 0"),
    ("gpt", "--temperature inf", "a temperature is a number > 0"),
    ("gpt", "--distance cosine", "--distance is that of hidden layers: add --match-hidden 1"),
    ("gpt", "--teacher-split pp", "cuts the teacher over ranks: add --teacher-ranks 2"),
    ("gpt", "--teacher-ranks 2 --ranks 2", "--teacher-ranks 2: of 2 in all"),
    ("gpt", "--teacher-ranks -1 --ranks 2", "--teacher-ranks must be at least 0"),
    ("gpt", "--teacher-ranks 3 --ranks 4", "2 heads"),
    ("gpt", "--teacher-ranks 5 --teacher-split pp --ranks 6", "of 4 parts has 1 to 4 stages"),
    ("gpt", "--steps 0", "--steps must be at least 1"),
    ("gpt", "--strategy dp", "invalid choice: 'dp'"),
    ("missing", "", "no checkpoint at")])
def test_impossible_combinations_are_one_line(teachers, tmp_path, capsys, teacher, words, message):
    assert run("distill", teachers / teacher, *words.split(), "--out", tmp_path / "out") != 0
    said = capsys.readouterr().err.strip()
    assert message in said and "\n" not in said and "Traceback" not in said


def test_a_teacher_is_not_replaced_by_its_student(teachers, capsys):
    for place in (teachers / "gpt", teachers / "gpt" / "checkpoint.npz"):
        assert run("distill", place, "--out", teachers / "gpt") == 2
        assert "gpt is where" in capsys.readouterr().err


def test_what_is_no_checkpoint_of_a_training_is_refused(teachers, tmp_path, capsys):
    saved = files.load(teachers / "digits")
    for changed, message in (({"compression": [{"kind": "quantized"}]}, "does not fit its own"),
                             ({"config": None}, "config is None, not a record")):
        files.save(tmp_path, files.Checkpoint(saved.model, {}, {**saved.description, **changed}))
        assert run("distill", tmp_path, "--out", tmp_path / "out") == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("name, command", [
    ("digits", "quantize --activations"), ("digits", "prune --amount 0.5"),
    pytest.param("gpt", "quantize --bits 4", marks=pytest.mark.slow),
    pytest.param("gpt", "prune --method structured", marks=pytest.mark.slow)])
@pytest.mark.one_in(2)
def test_teachers_may_be_compressed(teachers, tmp_path, capsys, name, command):
    command, *words = command.split()
    small, out = tmp_path / "small", tmp_path / "out"
    assert run(command, teachers / name, *words, "--out", small) == 0
    assert run("evaluate", small) == 0
    capsys.readouterr()
    assert run("distill", small, "--steps", 2, "--out", out) == 0
    said = capsys.readouterr().out
    sizes = [line.split(",", 1)[1].split(" parameters")[0] for line in said.splitlines()
             if line.startswith(("teacher, ", "student, "))]
    assert len(sizes) == 2 and sizes[0] == sizes[1] and f"one of{sizes[0]}," in said
    assert not files.load(out).description.get("compression")
    assert run("distill", small, "--ranks", 3, "--teacher-ranks", 2, "--steps", 2,
               "--out", out) == (2 if command == "quantize" or name == "gpt" else 0)


def test_options_not_given_are_the_teacher_s(tmp_path):
    """Also the kinds of layers, and what a run of another length or without experts can keep."""
    settings = ("model.norm=rms", "model.norm_epsilon=1e-6", "model.mlp=swiglu", "model.rope=10000",
                "model.bias=false", "model.untied=true", "model.kv_heads=1",
                "optimizer.weight_decay=0.1")
    llama = (*(word for each in settings for word in ("--set", each)), "--experts", 2,
             "--precision", "bf16", "--dtype", "float32", "--seed", 3, "--clip", 0.5, "--batch", 8)
    assert run("train", *GPT, *llama, "--strategy", "zero1", "--out", tmp_path / "teacher") == 0
    assert run("distill", tmp_path / "teacher", "--layers", 1, "--out", tmp_path / "student") == 0
    teacher, student = (files.load(tmp_path / name).description for name in ("teacher", "student"))
    assert student["model"] == teacher["model"] | {"num_layers": 1, "experts": None}
    assert student["seed"] == 3
    for section in ("data", "optimizer", "precision"):
        assert student["config"][section] == teacher["config"][section], section
    assert student["config"]["parallel"]["strategy"] == "zero1"
