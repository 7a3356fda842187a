"""Units removed: the smaller model computes what the masked one does, in fewer FLOPs and bytes."""

import numpy as np
import pytest

from minipar.autograd import Meter, gelu
from minipar.compress.footprint import ModelVersion, measure, model_bytes, sparse_versions
from minipar.compress.pruning.masks import Masks, prunable_weights
from minipar.compress.pruning.prune import prune
from minipar.compress.pruning.saliency import magnitude
from minipar.compress.pruning.shrink import remove_units, shrink, without_masks
from minipar.compress.pruning.sparse import SparseLinear, bitmap_bytes
from minipar.compress.pruning.structured import unit_masks, unit_scores, units_of
from minipar.compress.pruning.two_of_four import TwoOfFourLinear, n_of_m
from minipar.nn import GPT, MLP, GPTConfig, Linear, RopeConfig, Sequential
from minipar.optim import AdamW

DRAW = np.random.default_rng(0)
X, IDS = DRAW.standard_normal((7, 12)), DRAW.integers(0, 11, (3, 6))
LLAMA = {"norm": "rms", "mlp": "swiglu", "rope": RopeConfig(), "num_kv_heads": 2}
MODELS = {
    "relu": (lambda: MLP([12, 10, 9, 5]), X), "tanh": (lambda: MLP([12, 10, 9, 5], "tanh"), X),
    "dropout": (lambda: MLP([12, 10, 5], "gelu", dropout=0.3), X),
    "gpt": (lambda: GPT(GPTConfig(11, 6, 2, 4, 16)), IDS),
    "grouped queries": (lambda: GPT(GPTConfig(11, 6, 2, 4, 16, num_kv_heads=2)), IDS),
    "llama": (lambda: GPT(GPTConfig(11, 6, 2, 4, 16, bias=False, **LLAMA)), IDS),
    "llama, biases": (lambda: GPT(GPTConfig(11, 6, 2, 4, 16, **LLAMA)), IDS),
    "one kv head": (lambda: GPT(GPTConfig(11, 6, 2, 4, 16, num_kv_heads=1, tied=False)), IDS)}


def new(kind):
    model = MODELS[kind][0]().initialize(0, np.float64)
    for name, p in model.named_parameters():
        p.data[...] += 0.3 * np.random.default_rng(len(name)).standard_normal(p.shape)
    return model


# A neuron with only its column masked outputs act(bias); or no layer uses its output.
PARTS = {"all": lambda name: True, "columns": lambda name: name.endswith("weight"),
         "columns alone": lambda name: name.endswith(("c_fc.weight", "c_gate.weight",
                                                       "c_attn.weight", "0.weight")),
         "rows alone": lambda name: name.endswith(("c_proj.weight", "2.weight", "3.weight"))}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", MODELS)
def test_the_smaller_model_computes_the_same(kind, part):
    model, inputs = new(kind), MODELS[kind][1]
    before = model.logits(inputs).data
    chosen = {name: m for name, m in unit_masks(model, 0.5).items() if PARTS[part](name)}
    if part in ("rows alone", "columns alone") and isinstance(model, MLP):
        last = sorted(chosen)[0]
        whole = unit_masks(model, 0.5)[last]
        axis = 0 if part == "rows alone" else 1
        chosen = {last: np.broadcast_to(whole.any(1 - axis, keepdims=True), whole.shape)}
    masks = Masks(model, chosen)
    masked = model.logits(inputs).data
    small, _ = shrink(model)
    assert np.max(np.abs(small.logits(inputs).data - masked)) < 1e-12
    assert np.max(np.abs(without_masks(model).logits(inputs).data - masked)) < 1e-12
    assert np.max(np.abs(before - masked)) > 1e-3
    expected = model.num_parameters() > small.num_parameters()
    assert expected or kind == "one kv head" and masks.sparsity() < 1


def test_sizes_of_what_is_left():
    small, _ = shrink(masked("relu", 0.4))
    assert small.sizes == (12, 6, 5, 5)         # 4 of 10, and 3.6 of 9, are gone
    config = shrink(masked("gpt", 0.5))[0].config
    assert (config.num_heads, config.head_width, config.mlp_width, config.width) == (2, 4, 32, 16)
    config = shrink(masked("grouped queries", 0.5))[0].config
    assert (config.num_heads, config.num_kv_heads, config.head_width) == (2, 1, 4)
    small, _ = shrink(masked("relu", 0.99))
    assert small.sizes == (12, 1, 1, 5)         # one stays
    twice, _ = shrink(small)
    assert twice.sizes == small.sizes


def masked(kind, amount):
    model = new(kind)
    Masks(model, unit_masks(model, amount))
    return model


def test_the_weakest_units_go():
    model = new("relu")
    units = units_of(model)[0]
    w, v = model[0].weight.data, model[2].weight.data
    scores = unit_scores(model.state_dict(), units)
    for j in range(10):
        assert scores[j] == pytest.approx(np.sqrt(np.sum(w[:, j]**2) * np.sum(v[j]**2)))
    gone = ~unit_masks(model, 0.3)["0.bias"]
    assert gone.sum() == 3 and scores[gone].max() < scores[~gone].min()
    model[0].weight.data[...] *= 8                  # the same function but for its bias
    model[2].weight.data[...] /= 8
    assert np.array_equal(unit_scores(model.state_dict(), units), scores)


def test_what_a_removed_neuron_said_is_said_by_the_bias():
    model = new("gpt")
    units = units_of(model)[1]
    values = model.state_dict()
    gone = np.arange(64) == 5
    found = remove_units(values, units, gone)
    bias = values["h.0.mlp.c_fc.bias"][5]
    expected = values["h.0.mlp.c_proj.bias"] + float(gelu(model.h[0].mlp.c_fc.bias).data[5]) \
        * values["h.0.mlp.c_proj.weight"][5]
    np.testing.assert_allclose(found["h.0.mlp.c_proj.bias"], expected, rtol=1e-14)
    assert bias not in found["h.0.mlp.c_fc.bias"]
    kept = remove_units(values, units, gone, fold=False)
    assert np.array_equal(kept["h.0.mlp.c_proj.bias"], values["h.0.mlp.c_proj.bias"])


def test_moments_are_cut_like_their_weights():
    model = masked("relu", 0.5)
    optimizer = AdamW(model.slabs)
    model.loss(X, np.zeros(7, int), 7).backward()
    optimizer.step()
    moments = {key.partition("/")[2]: m for key, m in optimizer.state_dict().items()
               if key.startswith("second")}
    small, (cut,) = shrink(model, moments)
    kept = unit_masks(new("relu"), 0.5)["0.bias"]
    assert {n: m.shape for n, m in cut.items()} == {n: p.shape for n, p in small.named_parameters()}
    assert np.array_equal(cut["0.weight"], moments["0.weight"][:, kept])


def test_units_of_other_models_are_not_known():
    with pytest.raises(TypeError, match="the units of a Sequential are not known"):
        units_of(Sequential(Linear(2, 2)))


@pytest.mark.parametrize("kind", ["relu", "gpt"])
@pytest.mark.parametrize("pattern", ["2:4", "magnitude"])
def test_sparse_layers_compute_the_same_in_fewer_flops(kind, pattern):
    model, inputs = new(kind), MODELS[kind][1]
    if kind == "relu":
        model = MLP([12, 8, 5]).initialize(0, np.float64)
    scores = magnitude(prunable_weights(model))
    masks = Masks(model, {n: n_of_m(s) for n, s in scores.items()} if pattern == "2:4"
                  else prune(model, scores, 0.8)).local_masks()
    if pattern == "magnitude":
        masks[next(iter(masks))][:, :2] = False         # outputs without any input
    expected = model.logits(inputs).data
    versions = sparse_versions(model, masks, pattern == "2:4")
    assert len(versions) == 2 + (pattern == "2:4")
    for version in versions.values():
        np.testing.assert_allclose(version.model.logits(inputs).data, expected, atol=1e-12)
    found = measure(versions, inputs, repeats=1)
    rows = inputs.size if kind == "gpt" else len(inputs)
    kept, size = (sum(int(m.sum()) for m in masks.values()), sum(m.size for m in masks.values()))
    dense, *others = found.values()
    for sparse in others:
        assert dense.flops - sparse.flops == 2 * rows * (size - kept)
        assert sparse.seconds > 0


def test_bytes():
    masks = {"a": np.arange(20).reshape(4, 5) % 2 == 0, "b": np.ones((2, 2), bool)}
    assert [bitmap_bytes(mask) for mask in masks.values()] == [10 * 4 + 3, 4 * 4 + 1]
    model = MLP([4, 5, 2]).initialize(0)
    assert model_bytes(model) == 4 * (20 + 5 + 10 + 2)
    assert model_bytes(model, {"0.weight": masks["a"]}) == 43 + 4 * (5 + 10 + 2)
    model = MLP([8, 6]).initialize(0)
    Masks(model, {"0.weight": n_of_m(np.abs(model[0].weight.data))})
    assert TwoOfFourLinear(model[0]).nbytes == 24 * 4 + 24 * 2 // 8
    assert SparseLinear(model[0]).nbytes == 24 * (4 + 4) + 7 * 4
    with pytest.raises(ValueError, match="more than 2 of 4"):
        TwoOfFourLinear(MLP([8, 6]).initialize(0)[0])


def test_flops_of_a_smaller_model():
    model = masked("relu", 0.5)
    small, _ = shrink(model)
    with Meter().running() as meter:
        small.logits(X)
    sizes = small.sizes
    assert meter.total_flops("forward", ("Linear",)) == sum(
        7 * (2 * a * b + b) for a, b in zip(sizes, sizes[1:]))
    versions = {"a": ModelVersion(1, without_masks(model)), "b": ModelVersion(2, small)}
    found = measure(versions, X, repeats=1)
    assert found["b"].flops < found["a"].flops and found["b"].num_bytes == 2
