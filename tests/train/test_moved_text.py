"""A text that has moved: who needs it says so, --data says where it is, the others go on."""

import json
import os
import shutil

import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main

TEXT = "the quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 40
SMALL = ("--layers", 1, "--heads", 2, "--width", 8, "--context", 8, "--batch", 4, "--steps", 2)


def run(*words) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code


@pytest.fixture
def trained(tmp_path):
    """A model trained on work/my.txt, named as my.txt from there; we are elsewhere now."""
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    elsewhere.mkdir()
    (work / "my.txt").write_text(TEXT)
    here = os.getcwd()
    os.chdir(work)
    assert run("train", *SMALL, "--data", "my.txt", "--out", tmp_path / "gpt") == 0
    os.chdir(elsewhere)
    yield tmp_path / "gpt"
    os.chdir(here)


def test_the_text_is_found_from_another_folder(trained, capsys):
    place = str(trained.parent / "work" / "my.txt")
    assert json.loads((trained / "checkpoint.json").read_text())["data_path"] == place
    for words in (("evaluate", trained), ("train", "--resume", trained, "--steps", 3)):
        assert run(*words) == 0
    assert files.load_description(trained)["data_path"] == place    # of the resumed run too
    shutil.move(place, "my.txt")                    # the path from here, if that is gone
    capsys.readouterr()
    assert run("evaluate", trained) == 0
    assert "bits per character" in capsys.readouterr().out


NEEDS_TEXT = ("evaluate {gpt}", "quantize {gpt} --method gptq --out {out}",
              "quantize {gpt} --activations --out {out}", "prune {gpt} --steps 1 --out {out}",
              "prune {gpt} --method taylor --out {out}", "distill {gpt} --steps 1 --out {out}",
              "train --resume {gpt} --steps 3 --out {out}")
NEEDS_NONE = ("evaluate {gpt} --sample 9 --prompt a", "quantize {gpt} --out {out}",
              "prune {gpt} --out {out}", "prune {gpt} --method structured --out {out}")


@pytest.mark.parametrize("line", NEEDS_TEXT + NEEDS_NONE)
@pytest.mark.one_in(2)
def test_a_text_that_has_moved(trained, tmp_path, capsys, line):
    moved, words = tmp_path / "moved.txt", line.format(gpt=trained, out=tmp_path / "out").split()
    shutil.move(tmp_path / "work" / "my.txt", moved)
    capsys.readouterr()
    status, said = run(*words), capsys.readouterr()
    if line in NEEDS_TEXT:
        assert status == 2 and said.err.count("\n") == 1
        assert f"{tmp_path / 'work' / 'my.txt'}, is not there any more: say with --data" in said.err
        assert not (tmp_path / "out" / files.NEWEST).exists()
    else:
        assert status == 0 and "not scored: the text that this model was trained on" in said.out
        if "--sample" in words:
            assert len(said.out.split("a sample")[1].splitlines()[1]) >= 8
    assert run(*words, "--data", moved) == 0
    said = capsys.readouterr().out
    assert "not scored" not in said and ("nats" in said or "loss" in said)
    if "distill" in words or "--steps" in words:    # what was trained on
        assert files.load_description(tmp_path / "out")["data_path"] == str(moved)


def test_another_text_must_have_the_same_characters(trained, tmp_path, capsys):
    other, strange = tmp_path / "other.txt", tmp_path / "strange.txt"
    other.write_text("a dog and a fox " * 60)
    strange.write_text("A dog & a fox! " * 60)
    for words in (("evaluate", trained), ("train", "--resume", trained, "--steps", 3),
                  ("distill", trained, "--steps", 1, "--out", tmp_path / "out")):
        assert run(*words, "--data", other) == 0
        capsys.readouterr()
        assert run(*words, "--data", strange, "--steps", 9) == 2 if words[0] == "train" \
            else run(*words, "--data", strange) == 2
        said = capsys.readouterr().err
        assert "has 3 characters that the model does not know, '!&A'" in said
        assert said.count("\n") == 1
    for data, says in (("digits", "which is of another kind"), (tmp_path / "none", "no file"),
                       (tmp_path, "is not a file")):
        assert run("evaluate", trained, "--data", data) == 2
        assert says in capsys.readouterr().err
