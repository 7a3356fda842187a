"""Models: counts are those of the modules, names and columns say the same."""

import pytest

from minipar.nn import GPT
from minipar.plan.models import known_models, model_flops, model_of, num_parameters, read_model

SMALL = {"layers": 2, "width": 24, "heads": 4, "vocab": 32, "sequence": 16}


@pytest.mark.parametrize("more", [
    {"gated": 0}, {"gated": 0, "tied": 0}, {"kv_heads": 2, "ffn": 40}, {"tied": 1},
    {"experts": 4, "top_k": 2, "expert_width": 16}, {"gated": 0, "experts": 4}], ids=str)
def test_parameters_are_those_of_the_module(more):
    model = model_of(SMALL | more)
    assert num_parameters(model) == GPT(model).num_parameters()


@pytest.mark.parametrize("name, billions", [
    ("gpt3-175b", 175), ("gpt3-1t", 1008), ("llama2-70b", 69), ("llama3-8b", 8.0),
    ("llama3-70b", 70.6), ("llama3-405b", 405.9), ("mixtral-8x7b", 46.7), ("1b", 1.34),
    ("80B", 80), ("gpt-oss-120b", 117)])
def test_published_sizes(name, billions):
    assert num_parameters(read_model(name)) / 1e9 == pytest.approx(billions, rel=0.02)


def test_flops_of_the_paper():
    """72 B s L h² (1 + s/6h + V/12Lh): Korthikanti et al. 2022, equation 7."""
    model = read_model("gpt3-175b")
    s, h, layers, vocab = model.context, model.width, model.num_layers, model.vocab_size
    paper = 72 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert model_flops(model, s) == pytest.approx(paper)


def test_every_known_model_can_be_made():
    for name in known_models():
        assert read_model(name, 1024).context == 1024


def test_mistakes():
    with pytest.raises(ValueError, match="unknown model 'gpt5': choose from gpt3-1.7b, "):
        read_model("gpt5")
    with pytest.raises(ValueError, match="a model needs layers, width, heads, vocab: width is"):
        model_of({"layers": 1, "heads": 1, "vocab": 8})
