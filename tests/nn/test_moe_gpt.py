"""A GPT with experts; the operations on their rows; what is refused."""

from functools import partial

import numpy as np
import pytest

from minipar.autograd import Tensor, gradcheck
from minipar.backend.shape_array import ShapeArray
from minipar.mixed_precision import BF16, precision_preset
from minipar.nn import GPT, GPTConfig, MoEConfig
from minipar.nn.moe.rows import add_rows, attach_loss, grouped_linear
from minipar.nn.step_context import training_step
from minipar.optim import NO_DECAY_FOR_VECTORS, SGD


def test_a_gpt_has_experts_in_every_second_block():
    config = GPTConfig(11, 8, 4, 2, 8, mlp="swiglu", bias=False,
                       experts=MoEConfig(4, every=2, width=5, num_shared=2))
    model = GPT(config).initialize(0, np.float64)
    kinds = [type(block.mlp).__name__ for block in model.h]
    assert kinds == ["GatedFeedForward", "MoE", "GatedFeedForward", "MoE"]
    shapes = {name.removeprefix("h.1.mlp."): p.shape for name, p in model.named_parameters()
              if name.startswith("h.1.mlp.")}
    assert shapes == {
        "router.weight": (8, 4), "experts.c_fc.weight": (4, 8, 5),
        "experts.c_proj.weight": (4, 5, 8), "experts.c_gate.weight": (4, 8, 5),
        "shared.c_fc.weight": (8, 10), "shared.c_proj.weight": (10, 8),
        "shared.c_gate.weight": (8, 10)}
    ids = np.random.default_rng(0).integers(0, 11, (2, 8))
    model.loss(ids, ids).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_arrays_without_numbers_assume_that_all_experts_are_used_alike():
    model = GPT(GPTConfig(11, 8, 2, 2, 8, experts=MoEConfig(3, 2, bias_rate=0.1, z_loss=0.1)))
    model.initialize(array=ShapeArray((), np.float32))
    ids = ShapeArray((2, 8), np.int64)
    with training_step(0, 0, range(2), shares=ShapeArray((2,), np.float64)):
        loss = model.loss(ids, ids, 16.0)
    loss.backward()
    assert model.h[0].mlp.experts.c_fc.weight.grad.shape == (3, 8, 32)


def test_biases_of_experts_do_not_decay():
    model = GPT(GPTConfig(11, 8, 1, 2, 8, experts=MoEConfig(2))).initialize(0)
    for parameter in model.parameters():
        parameter.data[...] = 1
    model.zero_grad()
    SGD(model.slabs, 1.0, weight_decay=0.5, groups=[NO_DECAY_FOR_VECTORS]).step()
    experts = model.h[0].mlp.experts
    assert (experts.c_fc.bias.data == 1).all() and (experts.c_fc.weight.data == 0.5).all()


def test_routers_compute_in_float32():
    model = GPT(GPTConfig(11, 8, 1, 2, 8, experts=MoEConfig(2)))
    for name in ("bf16", "fp16", "fp8"):
        presets = precision_preset(name, model)
        assert presets["h.0.mlp.router"].inputs is None and presets[""].inputs is not None
    assert precision_preset("bf16", model)[""] == BF16


def test_rows_of_experts():
    rng = np.random.default_rng(0)

    def t(*shape):
        return Tensor(rng.standard_normal(shape), requires_grad=True)
    for counts in ((2, 0, 3), (0, 0), (4,), (1, 1, 1, 1)):
        rows, experts = sum(counts), len(counts)
        gradcheck(partial(grouped_linear, counts=counts), t(rows, 3), t(experts, 3, 2),
                  t(experts, 2))
        gradcheck(lambda x, w, c=counts: grouped_linear(x, w, None, c), t(rows, 3),
                  t(experts, 3, 1))
    for ids in ([0, 3, 3, 1], [1], []):
        gradcheck(partial(add_rows, ids=np.array(ids, np.int64), num_rows=4), t(len(ids), 3))
    x, y = t(3, 2), t(3, 2)
    attach_loss(x, (y * y).sum()).backward(np.full((3, 2), 5.0))
    np.testing.assert_array_equal(x.grad, np.full((3, 2), 5.0))
    np.testing.assert_allclose(y.grad, 2 * y.data)
    with pytest.raises(ValueError, match="3 rows of 4"):
        grouped_linear(t(4, 3), t(2, 3, 2), None, (1, 2))
    with pytest.raises(ValueError, match="not all in 0 … 1"):
        add_rows(t(1, 3), np.array([2]), 2)


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"top_k": 5}, "cannot use 5 of 4 experts"), ({"num_experts": 0}, "num_experts must be"),
    ({"top_k": 1, "renormalize": True}, "the router would learn nothing"),
    ({"drop": "last"}, "unknown drop 'last': choose from choice, token, probability"),
    ({"capacity_factor": 0.0}, "a capacity factor is > 0"),
    ({"num_groups": 3}, "choose groups that divide the experts"),
    ({"num_groups": 2, "top_groups": 1, "top_k": 3}, "cannot use 3 of 2 experts"),
    ({"z_loss": -1.0}, "z_loss is not negative"), ({"scores": "relu"}, "unknown scores")])
def test_what_cannot_work_is_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        MoEConfig(**{"num_experts": 4, **changes})
