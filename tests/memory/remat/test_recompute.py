"""Rematerialization: bit for bit the same numbers, less memory, an exact price in FLOPs."""

from functools import partial

import numpy as np
import pytest

from minipar import autograd as ag
from minipar.autograd import Meter, Tensor, backward
from minipar.comm import Cluster
from minipar.launcher import simulate
from minipar.memory.ledger import Ledger
from minipar.memory.remat.plans import keep_all, rematerialize, run_plan, sqrt_segments, uniform
from minipar.memory.remat.recompute import checkpoint
from minipar.memory.remat.selective import rematerialize_attention
from minipar.nn import GPT, MLP, GPTConfig
from minipar.nn.chain import chain
from minipar.nn.step_context import training_step

CONFIG = GPTConfig(23, context=16, num_layers=6, num_heads=2, width=16, dropout=0.1)
PLANS = {
    "full": partial(uniform, 1),
    "every 4": partial(uniform, 4),
    "square root": sqrt_segments,
    "nested": lambda parts: (0, (((1, 2), 3), 4), (5, (6,)), 7),
    "all": lambda parts: ((0, 1, 2, 3, 4, 5, 6, 7),),
}


def step(change, dtype=np.float64, defer=False, config=CONFIG):
    """Loss, gradients, bytes at the peak and FLOPs of forward of one step."""
    model = change(GPT(config).initialize(3, dtype))
    rng = np.random.default_rng(0)
    ids, targets = rng.integers(0, 23, (2, 3, 16))
    ledger, meter = Ledger(model.parameters()), Meter()
    with ledger.recording(), meter.running(), training_step(1, 2, range(3)):
        loss = model.loss(ids, targets)
        rest = backward(loss, defer_weights=defer)
        if defer:
            rest()
        del rest
    assert ledger.live == 0
    gradients = {name: p.grad.copy() for name, p in model.named_parameters()}
    return float(loss.data), gradients, ledger.peak, meter.total_flops("forward")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("defer", [False, True])
@pytest.mark.parametrize("name", [*PLANS, "selective"])
def test_bitwise_the_same_with_less_memory(name, defer, dtype):
    change = rematerialize_attention if name == "selective" else \
        partial(rematerialize, policy=PLANS.get(name))
    plain, again = step(lambda model: model, dtype), step(change, dtype, defer)
    assert plain[0] == again[0]
    for parameter, gradient in plain[1].items():
        np.testing.assert_array_equal(again[1][parameter], gradient)
    assert again[2] < plain[2] or defer or name == "all"
    assert again[3] > plain[3]


def test_plans():
    parts = chain(GPT(CONFIG))
    assert keep_all(parts) == tuple(range(8))
    assert uniform(1, parts) == (0, (1,), (2,), (3,), (4,), (5,), (6,), 7)
    assert uniform(4, parts) == (0, (1, 2, 3, 4), (5, 6), 7)
    assert sqrt_segments(parts) == (0, (1, 2, 3), (4, 5, 6), 7)
    assert uniform(2, chain(MLP([3, 4, 4, 2]))) == ((0, 1), (2,))


def test_what_follows_the_last_saved_array_is_not_computed_again():
    """Without dropout a block ends with a product, of which backward needs the operands only."""
    config = GPTConfig(23, context=16, num_layers=6, num_heads=2, width=16)
    plain = step(lambda model: model, config=config)
    again = step(partial(rematerialize, policy=partial(uniform, 1)), config=config)
    meter = Meter()
    model = GPT(config).initialize(3, np.float64)
    x = Tensor(np.ones((3, 16, 16)), requires_grad=True)
    with meter.running():
        model.h[0](x)
    last = 2 * x.size * 64 + 2 * x.size         # the product, its bias and the residual sum
    assert again[3] - plain[3] == 6 * (meter.total_flops("forward") - last)


def test_a_trace_tells_what_is_computed_again():
    def body(comm):
        x = Tensor(np.ones((2, 3)), requires_grad=True)
        comm.start_trace()
        backward(ag.sum(ag.exp(checkpoint(lambda x: ag.tanh(ag.exp(x)), x))))
        return [span.name for span in comm.stop_trace().named_spans()]
    names = simulate(body, Cluster(1))[0][0]
    assert names == ["Exp forward", "Tanh forward", "Exp forward", "Sum forward", "Sum backward",
                     "Exp backward", "Exp again", "Tanh again", "Tanh backward", "Exp backward"]


def test_later_random_draws_are_unchanged():
    rng = np.random.default_rng(5)
    x = Tensor(np.ones(4), requires_grad=True)
    y = checkpoint(lambda x: ag.exp(x) * 2.0, x)
    backward(ag.sum(y))
    assert rng.random() == np.random.default_rng(5).random()
    np.testing.assert_array_equal(x.grad, 2 * np.exp(np.ones(4)))


def test_a_function_that_differs_is_refused():
    calls = []

    def changing(x):
        calls.append(0)
        return ag.exp(x) if len(calls) == 1 else ag.exp(x[:2])
    x = Tensor(np.ones(4), requires_grad=True)
    loss = ag.sum(checkpoint(changing, x))
    with pytest.raises(RuntimeError, match=r"saves \(2,\) float64 where it saved \(4,\) float64"):
        backward(loss)

    def shrinking(x):
        calls.append(0)
        return ag.exp(ag.exp(x)) if len(calls) < 4 else ag.exp(x)
    calls.clear()
    calls.extend([0, 0])
    loss = ag.sum(checkpoint(shrinking, x))
    with pytest.raises(RuntimeError, match="saves nothing where it saved"):
        backward(loss)


def test_without_gradients_it_is_a_call():
    with ag.no_grad():
        y = checkpoint(lambda x: x * 2.0, Tensor(np.ones(3), requires_grad=True))
    assert not y.requires_grad


def test_inputs_may_be_arrays_and_unused_results_cost_nothing():
    ids = np.array([0, 2])
    table = Tensor(np.eye(3), requires_grad=True)
    loss = ag.sum(checkpoint(lambda ids: ag.embedding(table, ids) * 3.0, ids))
    backward(loss)
    np.testing.assert_array_equal(table.grad, 3.0 * np.eye(3)[ids].T @ np.ones((2, 3)))


def test_run_plan_is_the_composition():
    parts = [lambda x, i=i: x * float(i + 2) for i in range(4)]
    x = Tensor(np.ones(2), requires_grad=True)
    y = run_plan((((0, 1), 2), 3), parts, x)
    backward(ag.sum(y))
    np.testing.assert_array_equal(x.grad, np.full(2, 120.0))
