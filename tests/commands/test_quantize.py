"""minipar quantize and minipar evaluate: what they write and say, and every mistake in one line."""

import re

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.compress import quantize as quantize_command
from minipar.commands.main import main
from minipar.compress.quantization.post_training import quantize
from minipar.data import CharacterVocabulary
from minipar.environment import Launched
from minipar.nn import GPT, GPTConfig
from minipar.train import save_model

pytestmark = pytest.mark.usefixtures("no_pictures")

SMALL = ["--width", "32", "--heads", "2", "--layers", "1", "--context", "8", "--batch", "6",
         "--steps", "4"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two small checkpoints: of a GPT and of an MLP."""
    folder = tmp_path_factory.mktemp("trained")
    for name, words in (("gpt", SMALL), ("mlp", ["--data", "digits", "--steps", "40"])):
        assert main(["train", *words, "--out", str(folder / name)]) == 0
    return folder


def losses(text):
    return [float(number) for number in re.findall(r"loss ([\d.]+) nats", text)]


@pytest.mark.parametrize("name, words", [
    ("gpt", "--bits 8"), ("gpt", "--bits 4 --per group:32 --method gptq --asymmetric"),
    ("mlp", "--bits 4 --per tensor --observer mse"), ("mlp", "--activations"),
    ("gpt", "--format fp8 --per tensor"), ("mlp", "--format mxfp8"),
    ("gpt", "--format mxfp4 --method gptq")])
@pytest.mark.one_in(2)
def test_what_is_quantized_runs(trained, tmp_path, capsys, name, words):
    out = tmp_path / "small"
    assert main(["quantize", str(trained / name), *words.split(), "--out", str(out)]) == 0
    before, after = losses(capsys.readouterr().out)
    sample = ["--sample", "5"] if name == "gpt" else []
    for folder, loss in ((trained / name, before), (out, after)):
        assert main(["evaluate", str(folder), *sample]) == 0
        said = capsys.readouterr().out
        assert losses(said) == [loss]
        assert f"{folder.joinpath('checkpoint.npz').stat().st_size / 1000:.4g} kB on disk" in said
        assert ("recognized" in said) == (name == "mlp")
    assert abs(after - before) < 0.05 * before
    description = files.load(out).description
    step, options = description["compression"][0], words.split()
    if options[0] == "--format":
        assert step["format"] == options[1] and "bits" not in step
    else:
        assert step["bits"] == (4 if "4" in options[:2] else 8)
    assert "losses" not in description and not files.load(out).optimizer


def test_what_is_said_is_true_of_the_file(trained, tmp_path, capsys):
    """The text of the score is named; a file is said to have had an optimizer if it had one."""
    text, converted = tmp_path / "my.txt", tmp_path / "converted"
    text.write_text("the cat sat on the mat. " * 200)
    model = GPT(GPTConfig(15, 8, 1, 2, 32)).initialize(0)
    save_model(converted, model, text, CharacterVocabulary.from_text(" .acehmnost\nxyz"))
    for folder, states, name in ((trained / "gpt", True, "Python's own documentation"),
                                 (converted, False, str(text))):
        assert main(["quantize", str(folder), "--out", str(tmp_path / "q")]) == 0
        said = capsys.readouterr().out.replace("\n", " ")
        assert ("optimizer's states" in said) == states
        assert said.count(f"per character, on the validation part of {name}") == 2
    assert main(["prune", str(converted), "--out", str(tmp_path / "p")]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert said.count(f"per character, on the last tenth of {text} ") == 2


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.one_in(2)
def test_any_number_of_bits(trained, tmp_path, capsys, bits):
    out = tmp_path / "small"
    assert main(["quantize", str(trained / "mlp"), "--bits", str(bits), "--method", "gptq",
                 "--out", str(out)]) == 0
    _, after = losses(capsys.readouterr().out)
    assert main(["evaluate", str(out)]) == 0
    assert losses(capsys.readouterr().out) == [after]
    saved = files.load(out)
    assert saved.description["compression"][0]["bits"] == bits
    codes, dense = saved.model["0.weight/codes"], (128, 64 * bits // 8)
    if bits == 2:                       # most of the codes are 0, and not stored
        assert codes.nbytes + saved.model["0.weight/nonzero"].nbytes < np.prod(dense)
    else:
        assert codes.shape == dense


def test_layers_that_are_skipped_stay_as_they_are(trained, tmp_path, capsys):
    plain, out = files.load(trained / "gpt").model, tmp_path / "small"
    assert main(["quantize", str(trained / "gpt"), "--activations", "--skip", "w?e", "--skip",
                 "h.0.mlp.c_fc", "--out", str(out)]) == 0
    _, after = losses(capsys.readouterr().out)
    saved = files.load(out)
    skipped = ["wte", "wpe", "h.0.mlp.c_fc"]
    assert saved.description["compression"][0]["skip"] == skipped
    assert all((saved.model[f"{name}.weight"] == plain[f"{name}.weight"]).all()
               for name in skipped)
    assert "h.0.mlp.c_proj.weight/codes" in saved.model
    assert main(["evaluate", str(out)]) == 0
    assert losses(capsys.readouterr().out) == [after]


def test_calibration_is_what_was_asked_for(trained, tmp_path, monkeypatch):
    """--samples, --damping and --order reach GPTQ."""
    seen = []

    def noted(model, grid, per, method, calibration, activations, observer, damping, order, skip):
        seen.append((sum(map(len, calibration)), damping, order))
        return quantize(model, grid, per, method, calibration, activations, observer, damping,
                        order, skip)
    monkeypatch.setattr(quantize_command, "quantize", noted)
    for words in ("--samples 7 --damping 0.5 --order activation", "--samples 100", ""):
        assert main(["quantize", str(trained / "gpt"), "--bits", "3", "--method", "gptq",
                     *words.split(), "--out", str(tmp_path / "small")]) == 0
    assert seen == [(7, 0.5, "activation"), (100, 0.01, "index"), (24, 0.01, "index")]


MISTAKES = {
    "quantize {gpt} --format fp7 --out {new}": "invalid choice: 'fp7'",
    "quantize {gpt} --format fp8 --bits 8 --out {new}": "--bits is for integers, which does not go",
    "quantize {mlp} --format fp8 --activations --out {new}": "--activations is for integers",
    "quantize {gpt} --format mxfp4 --per tensor --out {new}": "--per is for scales of float32",
    "quantize {gpt} --bits 9 --out {new}": "--bits must be at most 8, not 9",
    "quantize {gpt} --bits 1 --out {new}": "--bits must be at least 2, not 1",
    "quantize {gpt} --damping 0.1 --out {new}": "--damping is of GPTQ, which does not go with",
    "quantize {gpt} --order activation --out {new}": "--order is of GPTQ, which does not go with",
    "quantize {gpt} --samples 4 --out {new}": "without --method gptq or --activations",
    "quantize {gpt} --samples 0 --activations --out {new}": "--samples must be at least 1, not 0",
    "quantize {gpt} --method gptq --damping nan --out {new}": "--damping must be a number >= 0",
    "quantize {gpt} --skip head --out {new}": "no layer is called 'head': there are wte, wpe, h.0",
    "quantize {gpt} --skip * --out {new}": "leaves no layer to quantize",
    "quantize {gpt} --per row --out {new}": "scales are per tensor, channel or group:SIZE",
    "quantize {gpt} --per group:48 --out {new}": "groups of 32, 64, 128 inputs are possible",
    "quantize {mlp} --per group:128 --activations --out {new}": "one scale for each output",
    "quantize {gpt} --per group:32 --out {gpt}": "give another folder",
    "quantize missing --out {new}": "no checkpoint at missing",
    "quantize {int8} --out {new}": "is quantized already, to 8 bits",
    "quantize {gpt} --out /proc/minipar": "/proc/minipar: No such file or directory",
    "train --resume {int8}": "this model was quantized",
    "evaluate {int8} --sample -1": "--sample must be at least 0, not -1",
    "evaluate {mlp} --sample 3": "this model recognizes digits",
    "evaluate {gpt} --sample 3 --prompt \u2603": "'\u2603' at position 0",
    "evaluate setup.cfg": "truncated, damaged or no checkpoint",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line(trained, tmp_path, capsys, line):
    places = {name: str(trained / name) for name in ("gpt", "mlp")} | {"new": str(tmp_path / "new")}
    if "{int8}" in line:
        places["int8"] = str(tmp_path / "int8")
        assert main(["quantize", places["gpt"], "--out", places["int8"]]) == 0
    capsys.readouterr()
    try:
        status = main([word.format(**places) for word in line.split()])
    except SystemExit as error:
        status = error.code
    said = capsys.readouterr().err
    assert status == 2 and MISTAKES[line] in said and said.count("\n") == 1, said


@pytest.mark.parametrize("line", ["quantize {} --out new", "evaluate {}", "schedule 1f1b",
                                  "collective barrier"])
def test_one_rank_is_enough(trained, capsys, monkeypatch, line):
    monkeypatch.setattr("minipar.environment.launched", lambda: Launched("mpirun", 2, 0, 2))
    assert main(line.format(trained / "mlp").split()) == 2
    assert "works on one rank, not on 2: run it without mpirun" in capsys.readouterr().err


@pytest.mark.slow
def test_a_gpt_in_int8_is_within_one_percent_and_gptq_is_better_than_rounding(tmp_path, capsys):
    plain = ["--width", "64", "--layers", "2", "--steps", "300", "--context", "32"]
    assert main(["train", *plain, "--out", str(tmp_path / "gpt")]) == 0
    found = {}
    for name, words in (("int8", "--bits 8"), ("integers", "--bits 8 --activations"),
                        ("nearest", "--bits 4"), ("gptq", "--bits 4 --method gptq")):
        capsys.readouterr()
        main(["quantize", str(tmp_path / "gpt"), *words.split(), "--out", str(tmp_path / name)])
        before, found[name] = losses(capsys.readouterr().out)
    assert max(found["int8"], found["integers"]) < 1.01 * before
    assert found["gptq"] - before < 0.8 * (found["nearest"] - before)
