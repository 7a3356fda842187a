"""GPT: GPT-2's names and sizes, and its equations written out without any of the library."""

import math

import numpy as np
import pytest

from minipar.autograd import gradcheck, no_grad
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW

SMALL = {"vocab_size": 11, "context": 6, "num_layers": 2, "num_heads": 2, "width": 8}
BLOCK = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
         "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight",
         "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"]
RNG = np.random.default_rng(0)
IDS, TARGETS = RNG.integers(0, 11, (2, 3, 5))


def build(**changes):
    model = GPT(GPTConfig(**{**SMALL, **changes})).initialize(0, np.float64)
    for p in model.parameters():            # nothing stays 0 or 1
        p.data[...] += 0.3 * np.random.default_rng(p.size).standard_normal(p.shape)
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_names_and_order_are_those_of_gpt2(tied):
    names = ["wte.weight", "wpe.weight", *[f"h.{i}.{part}" for i in (0, 1) for part in BLOCK],
             "ln_f.weight", "ln_f.bias", *([] if tied else ["lm_head.weight"])]
    model = GPT(GPTConfig(**SMALL, tied=tied))
    assert [name for name, _ in model.named_parameters()] == names
    assert list(build(tied=tied).state_dict()) == names


def test_shapes_are_those_of_gpt2():
    shapes = {name: p.shape for name, p in GPT(GPTConfig(**SMALL, tied=False)).named_parameters()}
    assert shapes["wte.weight"] == (11, 8) and shapes["wpe.weight"] == (6, 8)
    assert shapes["lm_head.weight"] == (8, 11)
    assert [shapes[f"h.1.{part}"] for part in BLOCK] == [
        (8,), (8,), (8, 24), (24,), (8, 8), (8,), (8,), (8,), (8, 32), (32,), (32, 8), (8,)]


@pytest.mark.parametrize("tied", [True, False])
def test_num_parameters(tied):
    v, c, layers, d = 11, 6, 2, 8
    expected = v * d + c * d + layers * (12 * d * d + 13 * d) + 2 * d + (0 if tied else v * d)
    assert GPT(GPTConfig(**SMALL, tied=tied)).num_parameters() == expected


@pytest.mark.parametrize("layers, heads, width, expected", [
    (12, 12, 768, 124_439_808), (24, 16, 1024, 354_823_168), (36, 20, 1280, 774_030_080),
    (48, 25, 1600, 1_557_611_200)])
def test_num_parameters_of_the_four_gpt2_models(layers, heads, width, expected):
    assert GPT(GPTConfig(50257, 1024, layers, heads, width)).num_parameters() == expected


def test_grouped_queries_have_fewer_keys_and_values():
    shapes = {n: p.shape for n, p in build(num_heads=4, num_kv_heads=1).named_parameters()}
    assert shapes["h.0.attn.c_attn.weight"] == (8, 8 + 2 * 2)


def plain_gpt(p, ids, heads, kv_heads, layers):
    """Logits of one sequence, one position at a time."""
    def norm(x, name):
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(x, name):
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    xs = [p["wte.weight"][token] + p["wpe.weight"][i] for i, token in enumerate(ids)]
    d = len(xs[0]) // heads
    for layer in range(layers):
        name, qs, ks, vs = f"h.{layer}", [], [], []
        for x in xs:
            q, k, v = np.split(linear(norm(x, f"{name}.ln_1"), f"{name}.attn.c_attn"),
                               [heads * d, (heads + kv_heads) * d])
            qs.append(q.reshape(heads, d))
            ks.append(k.reshape(kv_heads, d))
            vs.append(v.reshape(kv_heads, d))
        for i in range(len(xs)):
            mixed = []
            for h in range(heads):
                g = h * kv_heads // heads
                weights = np.exp([qs[i][h] @ ks[j][g] / math.sqrt(d) for j in range(i + 1)])
                mixed.append(sum(w * vs[j][g] for j, w in enumerate(weights)) / weights.sum())
            xs[i] = xs[i] + linear(np.concatenate(mixed), f"{name}.attn.c_proj")
            hidden = gelu(linear(norm(xs[i], f"{name}.ln_2"), f"{name}.mlp.c_fc"))
            xs[i] = xs[i] + linear(hidden, f"{name}.mlp.c_proj")
    head = p.get("lm_head.weight", p["wte.weight"].T)
    return np.array([norm(x, "ln_f") @ head for x in xs])


@pytest.mark.parametrize("changes", [{}, {"tied": False}, {"num_heads": 4, "num_kv_heads": 2},
                                     {"num_layers": 1, "num_heads": 1}])
def test_the_model_is_gpt2(changes):
    model = build(**changes)
    config = model.config
    kv_heads = config.num_kv_heads or config.num_heads
    expected = [plain_gpt(model.state_dict(), ids, config.num_heads, kv_heads, config.num_layers)
                for ids in IDS]
    np.testing.assert_allclose(model(IDS).data, expected, rtol=1e-10, atol=1e-12)
    rows = np.concatenate(expected)
    logs = rows[range(15), TARGETS.ravel()] - np.log(np.exp(rows).sum(-1))
    np.testing.assert_allclose(model.loss(IDS, TARGETS).item(), -logs.mean(), rtol=1e-12)
    np.testing.assert_allclose(model.loss(IDS, TARGETS, 60.0).item(), -logs.sum() / 60, rtol=1e-12)


def test_no_position_sees_the_future():
    model, changed = build(), IDS.copy()
    changed[:, 3] = (changed[:, 3] + 1) % 11
    before, after = model(IDS).data, model(changed).data
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).all()


@pytest.mark.parametrize("changes", [{}, {"tied": False}, {"num_kv_heads": 1}])
@pytest.mark.one_in(3)
def test_the_gradient_of_the_whole_model(changes):
    small = {"vocab_size": 5, "context": 3, "num_layers": 2, "width": 4, **changes}
    model, targets = build(**small), np.array([[4, 4, -100], [1, 3, 0]])
    ids = np.array([[0, 4, 4], [2, 1, 3]])
    assert gradcheck(lambda *_: model.loss(ids, targets), *model.parameters()) < 1e-7


def test_initial_values_are_those_of_gpt2():
    """Normal with deviation 0.02; 0.02 / √(2 layers) where a layer adds to the residual stream."""
    config = GPTConfig(500, 100, num_layers=2, num_heads=2, width=96, tied=False)
    for name, value in GPT(config).initialize(0, np.float64).state_dict().items():
        if "ln_" in name or name.endswith("bias"):
            assert (value == (0 if name.endswith("bias") else 1)).all()
        else:
            expected = 0.02 / math.sqrt(4) if "c_proj" in name else 0.02
            assert abs(value.std() / expected - 1) < 0.03 and abs(value.mean()) < expected / 30


def test_a_new_model_knows_nothing_and_learns():
    model = GPT(GPTConfig(**SMALL)).initialize(0, np.float32)
    assert abs(model.loss(IDS, TARGETS).item() - math.log(11)) < 0.02
    optimizer = AdamW(model.slabs, lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        model.loss(IDS, TARGETS).backward()
        optimizer.step()
    with no_grad():
        logits = model(IDS)
    assert model.loss(IDS, TARGETS).item() < 0.05
    np.testing.assert_array_equal(logits.data.argmax(-1), TARGETS)


def test_a_sequence_longer_than_the_context_teaches():
    with pytest.raises(ValueError, match="7 tokens is longer than the model's context of 6: .*=7"):
        build()(np.zeros((1, 7), int))


@pytest.mark.parametrize("changes, message", [
    ({"width": 9}, "a width of 9 does not divide into 2 heads: choose a width that is a multiple"),
    ({"num_kv_heads": 3}, "2 heads cannot share 3 heads of keys"),
    ({"num_kv_heads": 0}, "cannot share 0"), ({"num_layers": 0}, "num_layers must be at least 1"),
    ({"vocab_size": -1}, "vocab_size must be at least 1, not -1"),
    ({"dropout": 1.0}, "rate is in")])
def test_sizes_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**{**SMALL, **changes})
