"""Checkpoints made in Python: one call writes what evaluate, quantize, prune, distill and train
need."""

from dataclasses import fields

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.autograd import no_grad
from minipar.checkpoint_file.description_rules import fault
from minipar.comm import Cluster
from minipar.commands.main import main
from minipar.compress.pruning.masks import Masks, prunable_weights
from minipar.compress.pruning.prune import prune
from minipar.compress.pruning.saliency import magnitude
from minipar.compress.quantization.post_training import quantize
from minipar.data import CharacterVocabulary
from minipar.nn import GPT, MLP, Activation, GPTConfig, MoEConfig
from minipar.parallel.registry import make_strategy
from minipar.train import save_model
from minipar.train.checkpoints.models import open_model
from minipar.train.checkpoints.schema import EXPERTS, GPT_SIZES
from minipar.train.config import OPTIONS, TrainConfig
from minipar.train.setup.gpt_sizes import gpt_config, options_of_gpt, sizes_of_gpt

TEXT = "a fox and a dog and a fox and a cat. " * 40
VOCABULARY = CharacterVocabulary.from_text(TEXT)
CONFIG = GPTConfig(len(VOCABULARY), context=8, num_layers=1, num_heads=2, width=8, tied=False)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text(TEXT)
    return path


def run(*words) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("kind", ["gpt", "mlp"])
@pytest.mark.one_in(2)
def test_every_command_takes_it(tmp_path, text, capsys, kind):
    model = GPT(CONFIG) if kind == "gpt" else MLP([64, 8, 10])
    model.initialize(3, np.float64)
    made, out = tmp_path / "made", tmp_path / "out"
    assert save_model(made, model, text if kind == "gpt" else "digits", seed=3) == \
        made / files.NEWEST
    assert files.load_description(made)["dtype"] == "float64"
    _, _, found = open_model(made)
    assert all(np.array_equal(found.state_dict()[name], array)
               for name, array in model.state_dict().items())
    for line in ("evaluate", f"quantize --out {out}", f"prune --amount 0.5 --out {out}",
                 f"prune --steps 2 --out {out}", f"distill --steps 2 --out {out}"):
        command, *words = line.split()
        assert run(command, made, *words) == 0, line
    assert run("train", "--resume", made, "--steps", 2) == 0
    assert "resumed from" in capsys.readouterr().out
    assert files.load_description(made)["step"] == 2
    assert run("train", "--resume", made, "--steps", 3) == 0


def test_what_is_loaded_draws_no_initial_values(tmp_path, monkeypatch):
    save_model(tmp_path / "made", MLP([64, 8, 10]).initialize(), "digits")

    def drawn(*names):
        raise AssertionError(f"initial values of {names} are drawn")
    monkeypatch.setattr("minipar.nn.module.generator", drawn)
    for line in ("evaluate {made}", "quantize {made} --out {out}", "prune {made} --out {out}",
                 "train --resume {made} --steps 2", "train --resume {made} --steps 3 --ranks 2"):
        assert run(*line.format(made=tmp_path / "made", out=tmp_path / "out").split()) == 0
    with pytest.raises(AssertionError, match="are drawn"):
        MLP([64, 8, 10]).initialize()


def test_what_is_quantized_pruned_or_sharded(tmp_path, text):
    model = quantize(GPT(CONFIG).initialize())
    save_model(tmp_path / "int8", model, text)
    ids = np.zeros((1, 8), np.int64)
    with no_grad():
        assert np.array_equal(open_model(tmp_path / "int8")[2].logits(ids).data,
                              model.logits(ids).data)
    with pytest.raises(ValueError, match="leave state and masks out"):
        save_model(tmp_path / "int8", model, text, state={})
    model = MLP([64, 8, 10]).initialize()
    masks = Masks(model, prune(model, magnitude(prunable_weights(model)), 0.5))
    masks.zero_masked()
    save_model(tmp_path / "pruned", model, "digits", masks=masks.local_masks())
    assert run("train", "--resume", tmp_path / "pruned", "--steps", 2) == 0
    gone = ~masks.local_masks()["0.weight"]
    assert not open_model(tmp_path / "pruned")[2].state_dict()["0.weight"][gone].any()

    def program(comm):
        strategy = make_strategy("fsdp", MLP([64, 8, 10]).initialize(5), comm)
        state = strategy.state_dict()
        if comm.rank == 0:
            save_model(tmp_path / "sharded", MLP([64, 8, 10]), "digits", state=state)
    Cluster(2).run(program)
    whole, found = MLP([64, 8, 10]).initialize(5), open_model(tmp_path / "sharded")[2]
    assert np.array_equal(found.state_dict()["0.weight"], whole.state_dict()["0.weight"])


@pytest.mark.parametrize("model, data, says", [
    (MLP([64, 8, 10]), "docs", "a MLP does not go with data 'docs'"),
    (GPT(CONFIG), "digits", "a GPT does not go with data 'digits'"),
    (MLP([64, 8, 9, 10], "tanh"), "digits", "one activation in all 2 places .* relu, tanh"),
    (MLP([64, 8, 9, 10], dropout=0.5), "digits", "one dropout rate in all 2 places .* 0.5, 0.1"),
    (MLP([60, 8, 10]), "digits", "expected"), (GPT(CONFIG), "synthetic", "16"),
    (GPT(CONFIG), "missing.txt", "no file missing.txt")])
def test_what_no_command_could_read_is_refused(tmp_path, model, data, says):
    if isinstance(model, MLP) and len(model.sizes) == 4:            # as no MLP is built
        model[1].kind = "relu"
        model[5 if len(model) == 7 else 1].__dict__.update(rate=0.1)
    with pytest.raises(ValueError, match=says):
        save_model(tmp_path / "made", model.initialize(), data)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("activation", Activation.KINDS)
@pytest.mark.one_in(2)
def test_an_mlp_keeps_what_is_between_its_layers(tmp_path, capsys, activation):
    """Through every command that writes a model, and through a resumed training."""
    x = np.random.default_rng(1).random((5, 64)).astype(np.float32)
    model = MLP([64, 9, 8, 10], activation, dropout=0.25).initialize(3)
    made, out = tmp_path / "made", tmp_path / "out"
    save_model(made, model, "digits")
    found = open_model(made)[2]
    assert [(type(m).__name__, m.__dict__.get("rate"), m.__dict__.get("kind")) for m in found] == \
        [(type(m).__name__, m.__dict__.get("rate"), m.__dict__.get("kind")) for m in model]
    assert np.array_equal(found.logits(x).data, model.logits(x).data)
    for line in (f"quantize {made}", f"prune {made} --amount 0.5", f"distill {made} --steps 2",
                 f"prune {made} --method structured --amount 0.3 --steps 2",
                 f"train --resume {made} --steps 2"):
        assert run(*line.split(), "--out", out) == 0, line + capsys.readouterr().err
        description = files.load_description(out)["model"]
        assert description.get("activation", "relu") == activation, line
        assert [m.kind for m in open_model(out)[2] if isinstance(m, Activation)] == [activation] * 2
    assert run("train", "--resume", out, "--steps", 3, "--ranks", 2) == 0


def test_a_checkpoint_with_an_unknown_activation_is_refused(tmp_path, capsys):
    made = save_model(tmp_path, MLP([64, 8, 10], "tanh").initialize(), "digits")
    saved = files.load(made)
    saved.description["model"]["activation"] = "swish"
    files.save(tmp_path, saved)
    assert run("evaluate", tmp_path) == 2
    assert "model.activation is 'swish', not one of relu, gelu, tanh" in capsys.readouterr().err


# Values that are not the defaults, by type or by option.
OTHER = {int: 3, float: 0.25, bool: True, "rope": "20000", "width": 48, "experts": 24}


@pytest.mark.parametrize("key", [key for key, field in OPTIONS.items()
                                 if field.section in ("model", "experts")
                                 and key not in ("hidden", "activation")])
def test_every_option_of_a_gpt_is_in_its_checkpoint(key):
    """From the option to GPTConfig, to the description and back: no default takes its place."""
    field = OPTIONS[key]
    value = OTHER.get(key, OTHER.get(field.kind))
    if field.table:
        value = next(each for each in field.table if each != field.default)
    elif field.default is True:
        value = False
    config = TrainConfig().updated(heads=6, width=24, experts=12, expert_groups=4)
    config = config.updated(**{key: value})
    sizes = sizes_of_gpt(gpt_config(config, vocab_size=5))
    assert options_of_gpt(sizes)[key] == value != field.default
    assert not fault(sizes, GPT_SIZES, "model")


def test_every_size_of_a_gpt_has_a_rule():
    for config, rules in ((GPTConfig, GPT_SIZES), (MoEConfig, EXPERTS)):
        assert {name.rstrip("?") for name in rules} == {field.name for field in fields(config)}
