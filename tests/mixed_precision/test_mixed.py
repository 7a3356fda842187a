"""Mixed precision in one process: what is rounded, what is kept in how many bytes, who decides."""

import numpy as np
import pytest

from minipar import autograd as ag
from minipar.autograd import Tensor, backward, no_grad
from minipar.autograd.ops.rounding import Round, round_to
from minipar.memory.ledger import Ledger
from minipar.memory.remat.plans import rematerialize, uniform
from minipar.memory.remat.selective import rematerialize_attention
from minipar.mixed_precision import BF16, FP8, FP16, FP32, precision_preset, set_precision
from minipar.nn import GPT, MLP, GPTConfig, LayerNorm, Linear, Module, Parameter
from minipar.nn.parameter import normal
from minipar.nn.step_context import training_step
from minipar.number_formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16

CONFIG = GPTConfig(23, context=16, num_layers=3, num_heads=2, width=16, dropout=0.1)
ROWS = 3


def is_on(fmt, array):
    return np.array_equal(fmt.round(array), array)


def gpt(precisions=None, config=CONFIG, change=lambda model: model):
    model = change(GPT(config))
    return (set_precision(model, precisions) if precisions else model).initialize(3)


def step(model, scale=1.0):
    """Loss, gradients, bytes of activations before backward."""
    ids, targets = np.random.default_rng(0).integers(0, 23, (2, ROWS, 16))
    ledger = Ledger(model.parameters())
    with ledger.recording(), training_step(1, 2, range(ROWS)):
        loss = model.loss(ids, targets, ROWS * 16 / scale)
        kept = ledger.live
        backward(loss)
    assert ledger.live == 0
    return float(loss.data), {name: p.grad.copy() for name, p in model.named_parameters()}, kept


class Pair(Module):
    """Two products, so that there is something to see in between."""

    def __init__(self):
        super().__init__()
        self.first = Parameter((5, 4), normal(1.0))
        self.second = Linear(4, 3)

    def forward(self, x):
        self.seen = ag.matmul(x, self.first)
        return self.second(self.seen)


@pytest.mark.parametrize("precision", [BF16, FP16])
def test_every_result_and_every_gradient_is_rounded(precision):
    fmt = precision.outputs
    pair = set_precision(Pair(), precision).initialize(0)
    x = Tensor(np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32), True)
    y = pair(x)
    backward(y, np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32))
    a, b = fmt.round(pair.first.data), fmt.round(pair.second.weight.data)
    g = fmt.round(np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32))
    seen = fmt.round(fmt.round(x.data) @ a)
    np.testing.assert_array_equal(pair.seen.data, seen)
    np.testing.assert_array_equal(y.data, fmt.round(seen @ b + pair.second.bias.data))
    np.testing.assert_array_equal(pair.second.weight.grad, fmt.round(seen.T @ g))
    np.testing.assert_array_equal(pair.second.bias.grad, fmt.round(np.einsum("ni->i", g)))
    d = fmt.round(g @ b.T)
    np.testing.assert_array_equal(pair.first.grad, fmt.round(fmt.round(x.data).T @ d))
    np.testing.assert_array_equal(x.grad, fmt.round(d @ a.T))
    assert not is_on(fmt, pair.first.data)                  # the master is what it was


def test_fp8_rounds_both_factors_to_e4m3_and_gradients_to_e5m2():
    layer = set_precision(Linear(64, 32), FP8).initialize(0)
    draw = np.random.default_rng(0)
    x = Tensor(draw.standard_normal((16, 64)).astype(np.float32), True)
    g = draw.standard_normal((16, 32)).astype(np.float32)
    y = layer(x)
    backward(y, g)
    narrow_x, narrow_w = FLOAT8_E4M3FN.round(x.data), FLOAT8_E4M3FN.round(layer.weight.data)
    np.testing.assert_array_equal(y.data, BFLOAT16.round(narrow_x @ narrow_w))
    narrow_g = FLOAT8_E5M2.round(g)
    np.testing.assert_array_equal(x.grad, BFLOAT16.round(narrow_g @ narrow_w.T))
    np.testing.assert_array_equal(layer.weight.grad, BFLOAT16.round(narrow_x.T @ narrow_g))


def test_fp8_leaves_biases_to_bfloat16():
    """Only factors of products have 8 bits: e4m3 would make 0.3125, 0 and 448 of this bias."""
    layer = set_precision(Linear(5, 3), FP8).initialize(0)
    weight, given = layer.parameters()
    given.data[...] = bias = np.array([.3, .0007, 500], np.float32)
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    product = FLOAT8_E4M3FN.round(x) @ FLOAT8_E4M3FN.round(weight.data)
    np.testing.assert_array_equal(layer(Tensor(x)).data,
                                  BFLOAT16.round(product + BFLOAT16.round(bias)))
    np.testing.assert_array_equal(layer(Tensor(0 * x)).data[0], BFLOAT16.round(bias))


def test_fp8_brings_a_saved_gain_back_in_bfloat16():
    """A layer norm's gain is no factor of a product, and is kept as its master."""
    norm = set_precision(LayerNorm(8), FP8).initialize(0)
    gain, _ = norm.parameters()
    gain.data[...] = np.random.default_rng(1).standard_normal(8)
    y = norm(Tensor(np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32), True))
    _, _, saved = y.grad_target.inputs[0].ctx.saved      # behind the rounding of the result
    assert not is_on(BFLOAT16, gain.data)
    np.testing.assert_array_equal(saved(), BFLOAT16.round(gain.data))


def test_saved_bytes_are_halved_but_for_statistics():
    """Per layer norm one number a row stays in 4 bytes; ids and dropout masks are no floats."""
    whole, narrow = step(gpt())[2], step(gpt(FP16))[2]
    rows, blocks = ROWS * 16, CONFIG.num_layers
    statistics = 4 * rows * (2 * blocks + 1)
    masks = rows * 16 * (1 + 2 * blocks) + ROWS * blocks * 2 * 16 * 16     # of one byte each
    ids = 8 * rows
    dlogits = 4 * rows * 23                                 # the criterion is in float32
    same = statistics + masks + ids + dlogits
    assert narrow - same == (whole - same) / 2


def test_fp8_keeps_one_byte_of_what_enters_a_product():
    """In each block 4 linear layers save their input, 3 of width d and one of 4 d."""
    model = GPT(CONFIG)
    eight, sixteen = step(gpt(precision_preset("fp8", model)))[2], step(gpt(BF16))[2]
    assert sixteen - eight == CONFIG.num_layers * ROWS * 16 * (3 + 4) * 16


def test_no_copy_of_a_weight_is_kept():
    """For a rounded weight a product saves its master, which exists anyway."""
    model = MLP([40, 50, 60])
    set_precision(model, BF16).initialize(0)
    ledger = Ledger(model.parameters())
    with ledger.recording():
        loss = model.loss(np.ones((1, 40), np.float32), np.zeros(1, int))
        assert ledger.live < 40 * 50
        backward(loss)


def test_rematerialization_changes_no_bit():
    for change in (lambda m: rematerialize(m, lambda parts: uniform(1, parts)),
                   lambda m: rematerialize(m, lambda parts: ((0, (1, 2)), 3, (4,))),
                   rematerialize_attention):
        for precision in (FP16, precision_preset("fp8", GPT(CONFIG))):
            plain = step(gpt(precision))
            for model in (gpt(precision, change=change), change(gpt(precision))):
                again = step(model)
                assert plain[0] == again[0] and again[2] < plain[2]
                for name, gradient in plain[1].items():
                    np.testing.assert_array_equal(again[1][name], gradient)


def test_the_innermost_pattern_decides_and_names_that_do_not_exist_are_refused():
    seen = {}

    def spy(model):
        for name, module in model.named_modules():
            if isinstance(module, Linear):
                module.forward = lambda x, m=module, n=name: seen.setdefault(
                    n, Linear.forward(m, x))
        return model
    precisions = {"": FP32, "h.*": BF16, "h.1.mlp": FP16, "h.*.attn.c_proj": FP32}
    model = gpt(precisions, change=spy)
    model(np.zeros((1, 4), int))

    def formats(name):
        target = seen[name].grad_target
        return target.ctx.formats if target.function is Round else None
    assert formats("h.0.attn.c_attn") == (BFLOAT16, BFLOAT16)
    assert formats("h.1.mlp.c_fc") == (FLOAT16, FLOAT16)
    assert formats("h.1.attn.c_attn") == (BFLOAT16, BFLOAT16)
    assert formats("h.2.attn.c_proj") is None
    with pytest.raises(ValueError, match="no module is called 'h.*.mpl': this model has ''"):
        gpt({"h.*.mpl": FP16})
    with pytest.raises(ValueError, match="not float32"):
        set_precision(GPT(CONFIG).initialize(0, np.float64), FP16)
    with pytest.raises(ValueError, match="choose from fp32, bf16"):
        precision_preset("int8", model)


def test_embedding_and_head_can_be_chosen_by_name():
    logits = gpt({"": BF16, "head": FP32})(np.zeros((1, 4), int))
    assert not is_on(BFLOAT16, logits.data)
    assert is_on(BFLOAT16, gpt(BF16)(np.zeros((1, 4), int)).data)


def test_float32_is_what_it_is_without():
    plain, same = step(gpt()), step(gpt(FP32))
    assert (plain[0], plain[2]) == (same[0], same[2])
    for name, gradient in plain[1].items():
        np.testing.assert_array_equal(same[1][name], gradient)


def test_small_gradients_vanish_in_float16_unless_the_loss_is_scaled():
    """A batch of 2²⁰ times as many targets has gradients so much smaller."""
    exact = step(gpt(), 2.0**-20)[1]
    lost, kept = step(gpt(FP16), 2.0**-20)[1], step(gpt(FP16), 2.0**-4)[1]
    assert all((g == 0).all() for g in lost.values())
    for name, g in exact.items():
        np.testing.assert_allclose(kept[name] * 2.0**-16, g, atol=0.02 * np.abs(g).max())


def test_rounding_keeps_no_array_and_a_rounded_one_is_not_rounded_again():
    x = Tensor(np.ones((2, 2), np.float32) / 3, requires_grad=True)
    y = round_to(x, FLOAT16, BFLOAT16)
    assert not y.grad_target.ctx.saved and round_to(y, FLOAT16, BFLOAT16) is y
    assert round_to(y, BFLOAT16, BFLOAT16) is not y
    with no_grad():
        assert is_on(FLOAT16, round_to(x, FLOAT16, FLOAT16).data)
