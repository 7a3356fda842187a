"""`minipar generate` and `convert`: text from a checkpoint, on any mesh; mistakes in one line."""

import json

import numpy as np
import pytest

from minipar.commands.main import main
from minipar.data import ByteBPE, CharacterVocabulary
from minipar.data.byte_bpe import BYTES
from minipar.environment import Launched
from minipar.interop import save_pretrained
from minipar.nn import GPT, GPTConfig, RopeConfig
from minipar.train import save_model
from minipar.train.setup import mesh as mesh_setup

LLAMA = {"norm": "rms", "mlp": "swiglu", "bias": False, "rope": RopeConfig(), "num_kv_heads": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkpoints: a model, and a smaller one that may draft for it."""
    made = tmp_path_factory.mktemp("models")
    vocabulary = CharacterVocabulary.from_text("abcdefgh \n")
    for name, layers in (("large", 2), ("small", 1)):
        config = GPTConfig(len(vocabulary), 40, layers, num_heads=2, width=8)
        save_model(made / name, GPT(config).initialize(3, np.float64), "docs", vocabulary)
    return made


def generate(capsys, *words) -> list[list]:
    """The rows of the table: prompt, text, tokens, ended by."""
    assert main(["generate", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["tables"][0]["rows"]


def test_several_prompts_and_answers_in_their_order(capsys, folder):
    rows = generate(capsys, folder / "large", "--prompt", "ab", "--prompt", "c", "--samples", 2,
                    "--max-tokens", 7)
    assert [row[0] for row in rows] == ["ab", "ab", "c", "c"]
    assert all(len(row[1]) == row[2] == 7 and row[3] == "length" for row in rows)
    assert main(["generate", str(folder / "large"), "--prompt", "ab", "--prompt", "c",
                 "--samples", "2", "--max-tokens", "7"]) == 0
    printed = capsys.readouterr().out
    assert all(row[1].strip("\n") in printed for row in rows)


@pytest.mark.parametrize("mesh", ["tp=2", "pp=2", "dp=3", "dp=2,tp=2", "pp=2,tp=2",
                                  "dp=2,pp=2,tp=2"])
@pytest.mark.one_in(2)
def test_any_mesh_makes_the_same_text(capsys, folder, mesh):
    words = (folder / "large", "--prompt", "ab", "--prompt", "cde", "--max-tokens", 9,
             "--top-p", 0.9, "--seed", 4, "--blocks", 20, "--block-size", 4)
    assert generate(capsys, *words, "--mesh", mesh) == generate(capsys, *words)


@pytest.mark.parametrize("mesh", ["tp=2", "pp=2", "dp=2"])
@pytest.mark.one_in(2)
def test_a_cache_of_8_bit_integers(capsys, folder, mesh):
    words = (folder / "large", "--prompt", "ab", "--max-tokens", 9, "--temperature", 0)
    full = generate(capsys, *words)
    assert generate(capsys, *words, "--cache", "int8") == full
    assert generate(capsys, *words, "--cache", "int8", "--mesh", mesh) == full


def test_a_stop_text_ends_an_answer(capsys, folder):
    (row,) = generate(capsys, folder / "large", "--prompt", "a", "--max-tokens", 30)
    stop = row[1][10:12]
    (cut,) = generate(capsys, folder / "large", "--prompt", "a", "--max-tokens", 30, "--stop", stop)
    assert cut[1] == row[1][:row[1].index(stop)] and cut[3] == "stop"


def test_a_draft_makes_the_same_greedy_text(capsys, folder):
    words = (folder / "large", "--prompt", "ab", "--max-tokens", 20, "--temperature", 0)
    assert generate(capsys, *words, "--draft", folder / "small") == generate(capsys, *words)
    words = (*words[:-1], 1, "--draft", folder / "small", "--drafts", 2, "--stop", "b")
    ((_, text, _, ended),) = generate(capsys, *words)
    assert "b" not in text and ended in ("stop", "length")


def status_of(*words) -> int:
    """The exit status, whether ranks had started or not."""
    try:
        return main([*map(str, words)])
    except SystemExit as error:
        return error.code


@pytest.mark.parametrize(("words", "message"), [
    ("--temperature -1", "--temperature must be at least 0, not -1"),
    ("--blocks 0", "--blocks must be at least 1, not 0"),
    ("--prompt xyz", "--prompt 'xyz': character 'x' at position 0"),
    ("--max-tokens 90", "lower max_tokens to 39"),
    ("--max-tokens 0", "--max-tokens must be at least 1, not 0"),
    ("--blocks 1", "needs 3 blocks of 16 tokens, and the pool has 1"),
    ("--mesh tp=3", "heads"),
    ("--mesh cp=2", "runs over pp, dp and tp, not over cp"),
    ("--mesh tp=2 --ranks 3", "--mesh tp=2 is for 2 ranks, but there are 3"),
    ("--ranks -1", "--ranks must be at least 1, not -1"),
    ("--stop=", "--stop is empty"),
    ("--temperature 1e-300", "--temperature must be 0, or 1e-100 to 2^64 in size"),
    ("--seed 99999999999999999999999", "--seed must be 0, or 1e-100 to 2^64 in size"),
    ("--drafts 2", "--drafts is the number of guesses of a model: add --draft"),
    ("--draft {folder}/small --drafts 0", "--drafts must be at least 1, not 0"),
    ("--draft {folder}/small --mesh tp=2", "on one rank, not on 2: leave --mesh"),
    ("--draft {folder}/small --samples 2", "one answer at a time"),
    ("--draft {folder}/small --blocks 9 --cache int8 --prefix-caching --preempt-by swap",
     "in a cache of its own, which does not go with --blocks"),
])
def test_mistakes_take_one_line(capsys, folder, words, message):
    arguments = [word.format(folder=folder) for word in words.split()]
    assert status_of("generate", folder / "large", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_ranks_are_not_simulated_under_mpirun(capsys, monkeypatch, folder):
    monkeypatch.setattr(mesh_setup, "launched", lambda: Launched("mpich", 2, 0, 2))
    assert status_of("generate", folder / "large", "--ranks", 2) == 2
    assert "--ranks simulates ranks without mpirun, but mpich's mpirun started 2: leave one" \
        in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("options", [{}, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.one_in(2)
def test_a_converted_model_does_all_that_others_do(capsys, tmp_path, options):
    vocabulary = ByteBPE([*BYTES, "Ġt", "he"], ["Ġ t", "h e"], size=270)
    model = GPT(GPTConfig(270, 32, 2, 4, 16, **options)).initialize(1, np.float64)
    save_pretrained(tmp_path / "hf", model, vocabulary)
    hf, ours, again = (str(tmp_path / name) for name in ("hf", "ours", "again"))
    assert main(["convert", hf, ours, "--dtype", "float64"]) == 0
    assert main(["convert", ours, again]) == 0
    for name in ("model.safetensors", "vocab.json", "merges.txt"):
        assert (tmp_path / "hf" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    ((_, text, _, _),) = generate(capsys_cleared(capsys), ours, "--prompt", "the é", "--max-tokens",
                                  5)
    assert text
    (tmp_path / "text").write_text("the cat sat on the mat. " * 200)
    on = ["--data", str(tmp_path / "text"), "--batch", "2", "--out", str(tmp_path / "on")]
    assert main(["train", "--resume", ours, "--steps", "2", *on]) == 0
    assert main(["evaluate", str(tmp_path / "on")]) == 0
    assert "bits per token" in capsys.readouterr().out
    assert main(["quantize", str(tmp_path / "on"), "--out", str(tmp_path / "q")]) == 0
    assert generate(capsys_cleared(capsys), tmp_path / "q", "--max-tokens", 3)


def capsys_cleared(capsys):
    """The same, without what was printed so far."""
    capsys.readouterr()
    return capsys


def test_what_cannot_be_converted_is_refused(capsys, tmp_path, folder):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": 8}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    for source, message in ((tmp_path, "is a pickle, which can run"),
                            (folder, "neither a config.json nor a checkpoint")):
        assert main(["convert", str(source), str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
