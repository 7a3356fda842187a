"""minipar convert: a converted model is scored, trained on, compressed and converted back."""

import json
import re
import shutil

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main
from minipar.data import ByteBPE, CharacterVocabulary, Numbers
from minipar.interop import load_pretrained, open_safetensors, save_pretrained
from minipar.nn import GPT, GPTConfig, RopeConfig
from minipar.train.checkpoints.models import open_model
from tests.data.test_byte_bpe import TOKENIZER

KINDS = {
    "gpt2": GPTConfig(400, 8, 1, 2, 16, dropout=0.1),
    "llama": GPTConfig(400, 8, 1, 4, 16, 2, norm="rms", mlp="swiglu", bias=False, mlp_width=24,
                       rope=RopeConfig(500.0, "llama3", 2.0, 1.0, 4.0, 16), tied=False,
                       norm_epsilon=1e-6)}
SHORT = ["--steps", "2", "--batch", "3"]
pytestmark = pytest.mark.usefixtures("no_pictures")


def run(*words):
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with Hugging Face's files of each kind, its checkpoint, and a text."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "text.txt").write_text("The ranks of a ring send to the right. " * 60)
    for kind, sizes in KINDS.items():
        save_pretrained(folder / f"hf-{kind}", GPT(sizes).initialize(seed=1), TOKENIZER)
        assert run("convert", folder / f"hf-{kind}", folder / kind, "--to", "minipar",
                   "--data", folder / "text.txt") == 0
    return folder


def loss(text):
    return float(re.search(r"loss ([\d.]+) nats", text)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_changes_no_bit(models, tmp_path, kind):
    there = load_pretrained(models / f"hf-{kind}")[0]
    saved, task, model = open_model(models / kind)
    assert task.sizes == there.config and task.sizes.dropout == KINDS[kind].dropout
    assert isinstance(task.vocabulary, ByteBPE) and task.target == "token"
    ids = TOKENIZER.encode("send to the")[None, :8]
    assert np.array_equal(model(ids).data, there(ids).data)
    assert run("convert", models / kind, tmp_path, "--to", "hf") == 0
    before, after = open_safetensors(models / f"hf-{kind}"), open_safetensors(tmp_path)
    assert all(np.array_equal(before[key], after[key]) for key in before)
    for name in ("config.json", "vocab.json", "merges.txt"):
        assert (tmp_path / name).read_bytes() == (models / f"hf-{kind}" / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_evaluated_and_generates(models, capsys, kind):
    assert run("evaluate", models / kind, "--sample", "5", "--prompt", "The") == 0
    said = capsys.readouterr().out
    assert abs(loss(said) - np.log(400)) < 0.5 and "bits per token" in said
    assert run("generate", models / kind, "--prompt", "The ring", "--max-tokens", "4") == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.one_in(2)
def test_it_is_trained_on(models, tmp_path, capsys, kind):
    assert run("train", "--resume", models / kind, "--out", tmp_path, "--steps", "30", "--batch",
               "8") == 0
    assert run("evaluate", tmp_path) == 0
    assert loss(capsys.readouterr().out) < 5
    trained = open_model(tmp_path)[1]
    assert trained.vocabulary.description() == TOKENIZER.description()
    assert run("convert", tmp_path, tmp_path / "back") == 0
    again, vocabulary = load_pretrained(tmp_path / "back")
    assert vocabulary.encode("the ring").tolist() == TOKENIZER.encode("the ring").tolist()
    ids = np.arange(8)[None]
    assert np.array_equal(again(ids).data, open_model(tmp_path)[2](ids).data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", [
    ["quantize", "--bits", "8"], ["prune", "--amount", "0.2", "--steps", "1"],
    ["prune", "--method", "structured", "--amount", "0.5", "--steps", "1"],
    ["distill", "--layers", "1", "--width", "8", *SHORT]], ids=lambda words: "-".join(words[:3]))
@pytest.mark.one_in(2)
def test_it_is_compressed(models, tmp_path, kind, words):
    out = tmp_path / "small"
    assert run(words[0], models / kind, *words[1:], "--out", out) == 0
    assert run("evaluate", out) == 0
    assert isinstance(open_model(out)[1].vocabulary, ByteBPE)


def test_quantized_codes_have_no_layout(models, tmp_path, capsys):
    assert run("quantize", models / "gpt2", "--bits", "8", "--out", tmp_path) == 0
    assert run("convert", tmp_path, tmp_path / "hf") == 2
    assert "was quantized, and its codes have no such layout" in capsys.readouterr().err
    assert not (tmp_path / "hf").exists()


def test_a_pruned_model_is_written_whole(models, tmp_path):
    assert run("prune", models / "llama", "--amount", "0.5", "--steps", "1",
               "--out", tmp_path) == 0
    assert run("convert", tmp_path, tmp_path / "hf") == 0
    arrays, ids = open_safetensors(tmp_path / "hf"), np.arange(8)[None]
    assert np.mean(arrays["model.layers.0.mlp.up_proj.weight"] == 0) > 0.3
    assert np.array_equal(load_pretrained(tmp_path / "hf")[0](ids).data,
                          open_model(tmp_path)[2](ids).data)


def test_a_model_with_fewer_heads_fits_llamas_layout(models, tmp_path, capsys):
    for kind in KINDS:
        assert run("prune", models / kind, "--method", "structured", "--amount", "0.5", "--steps",
                   "1", "--out", tmp_path / kind) == 0
    ids = np.arange(8)[None]
    assert run("convert", tmp_path / "llama", tmp_path / "hf") == 0
    small = load_pretrained(tmp_path / "hf")[0]
    assert small.config.num_heads == 2 and small.config.head_width == 4
    assert np.array_equal(small(ids).data, open_model(tmp_path / "llama")[2](ids).data)
    assert run("convert", tmp_path / "gpt2", tmp_path / "none") == 2
    assert "GPT-2's layout has no head_width, here 8" in capsys.readouterr().err


@pytest.mark.parametrize("dtype, code", [("bfloat16", "BF16"), ("float16", "F16"),
                                         ("float64", "F64"), (None, "F32")])
@pytest.mark.one_in(2)
def test_dtypes_of_files_and_of_the_table(models, tmp_path, capsys, dtype, code):
    words = ["--dtype", dtype] if dtype else []
    capsys.readouterr()
    assert run("convert", models / "llama", tmp_path / "hf", *words, "--json") == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    arrays = open_safetensors(tmp_path / "hf")
    assert {entry.dtype for entry in arrays.entries.values()} == {code}
    *rows, total = table["rows"]
    assert [row[:2] for row in rows] == [[key, [*entry.shape]]
                                         for key, entry in arrays.entries.items()]
    assert {row[2] for row in rows} == {dtype or "float32"}
    assert total[3:] == [GPT(KINDS["llama"]).num_parameters(), sum(row[4] for row in rows)]
    assert run("convert", tmp_path / "hf", tmp_path / "back") == 0
    assert files.load(tmp_path / "back").description["dtype"] == (
        "float64" if dtype == "float64" else "float32")
    assert run("convert", tmp_path / "hf", tmp_path / "back", "--dtype", "float64") == 0
    assert {array.dtype for array in files.load(tmp_path / "back").model.values()} == {
        np.dtype("float64")}


def test_a_checkpoint_of_characters_there_and_back(models, tmp_path, capsys):
    assert run("train", "--data", models / "text.txt", "--width", "16", "--heads", "2", "--layers",
               "1", "--context", "8", *SHORT, "--out", tmp_path / "a") == 0
    assert run("convert", tmp_path / "a", tmp_path / "hf") == 0
    assert run("convert", tmp_path / "hf", tmp_path / "b") == 0
    first, second = open_model(tmp_path / "a"), open_model(tmp_path / "b")
    assert isinstance(second[1].vocabulary, CharacterVocabulary)
    assert second[1].vocabulary.characters == first[1].vocabulary.characters
    ids = np.arange(8)[None]
    assert np.array_equal(first[2](ids).data, second[2](ids).data)


def test_without_a_tokenizer_tokens_are_numbers(models, tmp_path, capsys):
    shutil.copytree(models / "hf-llama", tmp_path / "hf")
    (tmp_path / "hf" / "vocab.json").unlink()
    assert run("convert", tmp_path / "hf", tmp_path / "out") == 0
    assert 'reads and writes tokens as numbers: "17 4 25"' in capsys.readouterr().out
    assert isinstance(open_model(tmp_path / "out")[1].vocabulary, Numbers)
    (tmp_path / "ids.txt").write_text(" ".join(str(i * 7 % 400) for i in range(300)))
    assert run("evaluate", tmp_path / "out", "--data", tmp_path / "ids.txt") == 0
    assert run("generate", tmp_path / "out", "--prompt", "17 4", "--max-tokens", "3") == 0
    capsys.readouterr()
    assert run("evaluate", tmp_path / "out") == 2
    assert "this model has no tokenizer: give numbers from 0 to 399" in capsys.readouterr().err


def test_nothing_of_another_model_stays_in_the_folder(models, tmp_path):
    big = GPT(KINDS["gpt2"]).initialize()
    save_pretrained(tmp_path, big, TOKENIZER, largest=9_000)
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert run("convert", models / "llama", tmp_path) == 0
    assert open_safetensors(tmp_path).path == tmp_path / "model.safetensors"


@pytest.mark.parametrize("words, said", [
    ("none out", "no .*none: give the folder of a model, or a checkpoint"),
    ("hf-gpt2 out --to hf", "--to hf: .*hf-gpt2 is a folder of Hugging Face, which can only be"),
    ("gpt2 out --to minipar", "--to minipar: .*gpt2 is a checkpoint"),
    ("gpt2 gpt2", "gpt2 is where .*gpt2 is, which would be replaced"),
    ("gpt2/checkpoint.npz gpt2", "gpt2 is where .*checkpoint.npz is, which"),
    ("hf-gpt2 out --dtype bfloat16", "--dtype bfloat16: a checkpoint's weights are float32 or"),
    ("pickle out", "pytorch_model.bin is a pickle, which can run any program"),
    ("pickle/pytorch_model.bin out", "is a pickle"), ("text.txt out", "no safetensors file"),
    ("hf-gpt2/model.safetensors out", "is one file: give its folder"),
    ("empty out", "has neither a config.json nor a checkpoint"),
    ("mlp out", "only a GPT has a layout"), ("odd out", "no layout has norm layer, mlp swiglu")])
def test_mistakes_are_one_line(models, capsys, monkeypatch, words, said):
    (models / "empty").mkdir(exist_ok=True)
    (models / "pickle").mkdir(exist_ok=True)
    (models / "pickle" / "pytorch_model.bin").write_bytes(b"\x80\4")
    if "mlp" in words or "odd" in words:
        kind = ["--data", "digits"] if "mlp" in words else [
            "--set", "model.mlp=swiglu", "--width", "8", "--heads", "2", "--layers", "1",
            "--context", "8"]
        assert run("train", *kind, *SHORT, "--out", models / words.split()[0]) == 0
    monkeypatch.chdir(models)
    capsys.readouterr()
    assert run("convert", *words.split()) == 2
    error = capsys.readouterr().err
    assert re.search(said, error) and error.count("\n") == 1
    assert not (models / "out").exists()
