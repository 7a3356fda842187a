"""Training with experts: flags, meshes, checkpoints, loads, what is refused."""

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main
from minipar.inference import generate
from minipar.launcher import UsageError
from minipar.nn import GPT
from minipar.train import train
from minipar.train.checkpoints.models import open_model, save_model
from minipar.viz import draw_expert_loads
from tests.train.test_train import losses, parse

RUN = ["--data", "synthetic", "--steps", "4", "--warmup", "1", "--dtype", "float64", "--layers",
       "2", "--width", "16", "--heads", "2", "--context", "8", "--batch", "8", "--experts", "4",
       "--set", "experts.width=8", "--set", "experts.z_loss=0.001"]
DEEPSEEK = [word for name, value in {
    "scores": "sigmoid", "bias_rate": 0.01, "num_groups": 2, "scale": 2.5, "num_shared": 1,
    "balance_loss": 0}.items() for word in ("--set", f"experts.{name}={value}")]


@pytest.mark.parametrize("words", [
    ["--mesh", "ep=4"], ["--mesh", "dp=4,ep=2", "--strategy", "fsdp"],
    ["--mesh", "pp=2,ep=2", "--strategy", "zero1"], ["--mesh", "tp=2,ep=2"],
    ["--strategy", "zero2", "--ranks", "4"], ["--strategy", "dp", "--ranks", "3"]])
@pytest.mark.parametrize("more", [DEEPSEEK, ["--set", "experts.capacity_factor=0.8", "--dropout",
                                             "0.1"]])
@pytest.mark.one_in(2)
def test_every_mesh_is_one_rank(words, more):
    alone = train(parse(*RUN, *more)).losses
    np.testing.assert_allclose(train(parse(*RUN, *more, *words)).losses, alone, rtol=1e-10)


@pytest.mark.parametrize("then", [["--mesh", "dp=4,ep=2", "--strategy", "fsdp"],
                                  ["--mesh", "pp=2,ep=2"], ["--ranks", "1"]])
@pytest.mark.one_in(4)
def test_another_ep_goes_on(then, tmp_path):
    whole = losses(1, parse(*RUN, *DEEPSEEK))
    train(parse(*RUN, *DEEPSEEK, "--mesh", "ep=4", "--strategy", "zero1", "--save-every", "2",
                "--out", str(tmp_path)))
    half = tmp_path / "checkpoint.previous.npz"
    assert files.load(half).description["step"] == 2
    found = train(parse(*RUN, *DEEPSEEK, *then, "--resume", str(half))).losses
    np.testing.assert_allclose(found, whole, rtol=1e-10)


@pytest.mark.parametrize("words", ["--precision bf16", "--precision fp16", "--remat full",
                                   "--remat optimal:1MB", "--offload activations,optimizer"])
@pytest.mark.one_in(5)
def test_precision_memory_and_verify_go_with_experts(words, capsys):
    plain = [word for word in RUN if word not in ("--dtype", "float64")]
    main(["train", *plain, "--mesh", "ep=4", *words.split(), "--verify", "2"])
    assert "the same: after 2 steps in float64, 4 simulated ranks" in capsys.readouterr().out


def test_loads_and_drops_are_printed_and_drawn(tmp_path, pictures, monkeypatch, capsys):
    main(["train", *RUN, "--set", "experts.capacity_factor=0.6", "--mesh", "ep=4", "--out",
          str(tmp_path)])
    printed = capsys.readouterr().out
    assert "4 experts, 2 for each token" in printed
    assert "of 256 choices dropped" in printed and " 0 of 256" not in printed
    assert (tmp_path / "experts.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_with_experts_is_saved_read_and_generates(tmp_path):
    made = train(parse(*RUN, *DEEPSEEK, "--set", "experts.capacity_factor=0.5", "--set",
                       "experts.renormalize=false"))
    save_model(tmp_path, made.model, data="synthetic")
    saved, task, model = open_model(tmp_path)
    assert saved.description["model"]["experts"]["renormalize"] is False
    assert task.sizes == made.model.config
    prompt = np.array([1, 2, 3])
    tokens = list(generate(model, prompt, 4, temperature=0))
    ids = prompt.tolist()
    for token in tokens:                        # without a cache; no choice is dropped
        assert token == int(model(np.array([ids])).data[0, -1].argmax())
        ids.append(token)


def test_what_knows_no_experts_refuses_them(tmp_path, capsys):
    train(parse(*RUN, "--out", str(tmp_path)))
    for words, sentence in ((["quantize", tmp_path, "--out", tmp_path / "q"],
                             "h.0.mlp.experts are experts, which cannot be quantized"),
                            (["prune", tmp_path, "--out", tmp_path / "p"],
                             "h.0.mlp.experts are experts, which cannot be pruned"),
                            (["convert", tmp_path, tmp_path / "hf"], "no layout has experts")):
        try:
            status = main([str(word) for word in words])
        except SystemExit as end:               # refused on the ranks
            status = end.code
        assert status == 2, words
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("words", "sentence"), [
    (["--set", "experts.top_k=5"], "cannot use 5 of 4 experts"),
    (["--mesh", "ep=8"], "--mesh ep=8 is for at least 8 experts, not --experts 4"),
    (["--mesh", "dp=4,ep=3"], "so it must divide 4: choose a divisor"),
    (["--mesh", "ep=2", "--experts", "0"], "add --experts 8, or leave ep out"),
    (["--data", "digits"], "does not go with --data digits"),
    (["--mesh", "ep=2", "--strategy", "dp"], "does not go with --mesh ep=2: choose ddp"),
    (["--mesh", "ep=2", "--strategy", "local_sgd"], "with all parameters: leave ep out of --mesh"),
    (["--set", "experts.capacity_factor=0"], "a capacity factor is > 0"),
    (["--mesh", "ep=4", "--ranks", "8"], "--mesh ep=4 is for 4 ranks, but there are 8"),
    (["--ranks", "2", "--set", "experts.capacity_factor=1", "--set",
      "experts.capacity_per=microbatch"],
     "choose capacity_per='sequence'")])
def test_mistakes_are_one_line(words, sentence):
    with pytest.raises((UsageError, ValueError)) as caught:
        train(parse(*RUN, *words))
    assert sentence in str(caught.value).splitlines()[0]


def test_a_damaged_description_is_refused(tmp_path):
    model = GPT(open_sizes(tmp_path))
    saved = files.load(save_model(tmp_path, model.initialize(0), data="synthetic"))
    saved.description["model"]["experts"]["top_k"] = "two"
    files.save(tmp_path, saved)
    with pytest.raises(UsageError, match="model.experts.top_k is 'two', not a whole number"):
        open_model(tmp_path)


def open_sizes(folder):
    """The sizes of a small model with experts."""
    save_model(folder, train(parse(*RUN, "--steps", "2")).model, data="synthetic")
    return open_model(folder)[1].sizes


def test_the_picture_needs_steps(tmp_path):
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_expert_loads(tmp_path / "x.png", {})
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_expert_loads(tmp_path / "x.png", {"h.0": np.zeros((0, 4))})
    path = draw_expert_loads(tmp_path / "x.png", {"h.0": np.ones((3, 4))})
    assert path.read_bytes().startswith(b"\x89PNG")
