"""A model that draws its end token has finished: generate, drafts, ranks, serve, samples."""

import json

import pytest

from minipar.commands.main import main
from minipar.data import ByteBPE
from minipar.data.byte_bpe import BYTES
from tests.support.scripted_model import save_scripted

TOKENS = ByteBPE([*BYTES, "<pad>", "</s>"], [], special=["<pad>", "</s>"])
O, K, PAD, END = TOKENS.encode("ok<pad></s>").tolist()
CONFIGS = {                                 # what the files beside the model say of the end
    "one": {"config.json": {"eos_token_id": END}},
    "a list": {"config.json": {"eos_token_id": [33, END]}},
    "generation": {"generation_config.json": {"eos_token_id": [33, END]}},
    "beside another": {"config.json": {"eos_token_id": 33},
                       "generation_config.json": {"eos_token_id": END}},
    "by its text": {"tokenizer_config.json": {"eos_token": "</s>"}},
    "as a dict": {"tokenizer_config.json": {"eos_token": {"content": "</s>", "special": True}}}}


def convert(folder, says, told, vocabulary=TOKENS, size=258, more=()):
    """The checkpoint of a model that says this, with other entries in the files beside it."""
    save_scripted(folder / "hf", says, size, vocabulary)
    for name, entries in told.items():
        path = folder / "hf" / name
        found = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(found | entries))
    assert main(["convert", str(folder / "hf"), str(folder / "ours"), *map(str, more)]) == 0
    return folder / "ours"


def answer(capsys, checkpoint, *words) -> list:
    """Text, number of tokens and reason."""
    capsys.readouterr()
    assert main(["generate", str(checkpoint), "--json", "--max-tokens", "5", "--temperature", "0",
                 "--prompt", "Hi", *map(str, words)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["tables"][0]["rows"]
    return row[1:]


@pytest.mark.parametrize("told", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("with_draft", [False, True])
@pytest.mark.one_in(2)
def test_an_answer_ends_with_any_end_token(tmp_path, capsys, told, with_draft):
    ours = convert(tmp_path, [0, O, K, END], told)
    draft = ["--draft", ours] if with_draft else []
    assert answer(capsys, ours, *draft) == ["ok", 3, "stop"]
    assert answer(capsys, ours, *draft, "--ignore-eos") == ["ok</s></s></s>", 5, "length"]
    assert answer(capsys, ours, *draft, "--max-tokens", 3) == ["ok", 3, "stop"]
    assert answer(capsys, ours, *draft, "--max-tokens", 2) == ["ok", 2, "length"]
    assert answer(capsys, ours, *draft, "--stop", "k") == ["o", 2, "stop"]


@pytest.mark.parametrize("mesh", ["tp=2", "pp=2", "dp=2"])
@pytest.mark.one_in(2)
def test_on_any_mesh(tmp_path, capsys, mesh):
    ours = convert(tmp_path, [0, O, K, END], CONFIGS["one"])
    assert answer(capsys, ours, "--mesh", mesh) == ["ok", 3, "stop"]


def test_an_answer_of_nothing_but_the_end(tmp_path, capsys):
    ours = convert(tmp_path, [0, END], CONFIGS["one"])
    assert answer(capsys, ours) == answer(capsys, ours, "--draft", ours) == ["", 1, "stop"]


def test_token_0_may_be_the_end(tmp_path, capsys):
    ours = convert(tmp_path, [5, 4, 2, 0], {"config.json": {"eos_token_id": 0}}, None, 7)
    capsys.readouterr()
    assert main(["generate", str(ours), "--json", "--prompt", "1", "--temperature", "0",
                 "--max-tokens", "6"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"][0]["rows"] == [["1", "5 4 2 ", 4, "stop"]]


def test_a_draft_may_have_other_end_tokens(tmp_path, capsys):
    ours = convert(tmp_path / "a", [0, O, K, END], CONFIGS["one"])
    other = convert(tmp_path / "b", [0, O, K, END], {"config.json": {"eos_token_id": PAD}})
    assert answer(capsys, ours, "--draft", other) == ["ok", 3, "stop"]


def test_the_sample_of_a_training_ends(no_pictures, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("yes and no, " * 40)
    ours = convert(tmp_path, [O, K, END], CONFIGS["a list"], more=["--data", tmp_path / "text.txt"])
    words = ["--prompt", "x", "--sample", "6"]
    for command in (["train", "--resume", ours, "--steps", "1", "--lr", "0", "--set",
                     "run.temperature=0"], ["evaluate", ours, "--temperature", "0"]):
        capsys.readouterr()
        assert main([*map(str, command), *words]) == 0
        assert "\nok\n" in capsys.readouterr().out


def test_training_keeps_the_end_token(no_pictures, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("yes and no, " * 40)
    ours = convert(tmp_path, [0, O, K, END], CONFIGS["beside another"],
                   more=["--data", tmp_path / "text.txt"])
    assert main(["train", "--resume", str(ours), "--steps", "1", "--lr", "0", "--out",
                 str(tmp_path / "trained")]) == 0
    assert answer(capsys, tmp_path / "trained") == ["ok", 3, "stop"]
