"""SGD, Adam and AdamW against their equations, one parameter at a time, in float64."""

import tracemalloc

import numpy as np
import pytest

from minipar.autograd import Meter, Tensor
from minipar.backend import arrays
from minipar.nn import MLP, Dropout, Module, Parameter, Sequential, normal
from minipar.optim import SGD, Adam, AdamW, Optimizer

RNG = np.random.default_rng(0)


def plain_sgd(p, g, state, t, lr, momentum=0.0, weight_decay=0.0, nesterov=False):
    g = g + weight_decay * p
    v = momentum * state.get("v", 0) + g
    state["v"] = v
    return p - lr * (g + momentum * v if nesterov else v)


def plain_adam(p, g, state, t, lr, betas=(0.9, 0.999), epsilon=1e-8, weight_decay=0.0,
               decoupled=False):
    if decoupled:
        p = p - lr * weight_decay * p
    else:
        g = g + weight_decay * p
    m = betas[0] * state.get("m", 0) + (1 - betas[0]) * g
    v = betas[1] * state.get("v", 0) + (1 - betas[1]) * g * g
    state["m"], state["v"] = m, v
    m_hat, v_hat = m / (1 - betas[0]**t), v / (1 - betas[1]**t)
    return p - lr * m_hat / (np.sqrt(v_hat) + epsilon)


def plain_adamw(p, g, state, t, lr, weight_decay=0.01, **options):
    return plain_adam(p, g, state, t, lr, weight_decay=weight_decay, decoupled=True, **options)


CASES = [
    (SGD, plain_sgd, {}), (SGD, plain_sgd, {"momentum": 0.9}),
    (SGD, plain_sgd, {"momentum": 0.9, "nesterov": True}), (SGD, plain_sgd, {"weight_decay": 0.1}),
    (SGD, plain_sgd, {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}),
    (Adam, plain_adam, {}), (Adam, plain_adam, {"weight_decay": 0.1}),
    (Adam, plain_adam, {"betas": (0.8, 0.95), "epsilon": 1e-3}), (AdamW, plain_adamw, {}),
    (AdamW, plain_adamw, {"weight_decay": 0.2, "epsilon": 1e-4}),
    (AdamW, plain_adamw, {"weight_decay": 0.0})]
IDS = [f"{kind.__name__}-{'-'.join(map(str, options.values()))}" for kind, _, options in CASES]


class Parameters(Module):
    """Parameters of the given shapes, called p0, p1, …"""

    def __init__(self, *shapes):
        super().__init__()
        for i, shape in enumerate(shapes):
            setattr(self, f"p{i}", Parameter(shape, normal(1.0)))


def set_gradients(model, step, without=()):
    """Fresh gradients for all parameters but `without`; returns them, 0 where there is none."""
    model.zero_grad()
    gradients = {}
    for name, p in model.named_parameters():
        g = np.random.default_rng((step, p.size)).standard_normal(p.shape)
        if name in without:
            g = np.zeros(p.shape)
        else:
            p.slot.accumulate(g.astype(p.dtype))
        gradients[name] = g
    return gradients


def worst_difference(kind, plain, options, model, num_steps=10, without=()):
    optimizer = kind(model.slabs, lr=0.05, **options)
    expected, states = model.state_dict(), {name: {} for name, _ in model.named_parameters()}
    for t in range(1, num_steps + 1):
        optimizer.lr = 0.05 / t                     # a schedule
        gradients = set_gradients(model, t, without if t > 3 else ())
        for name in expected:
            expected[name] = plain(expected[name], gradients[name], states[name], t, optimizer.lr,
                                   **options)
        optimizer.step()
    assert optimizer.num_steps == num_steps
    return max(np.max(np.abs(p.data - expected[name])) for name, p in model.named_parameters())


@pytest.mark.parametrize("kind, plain, options", CASES, ids=IDS)
def test_ten_steps(kind, plain, options):
    model = Parameters((4, 3), (5,), (), (2, 2, 2)).initialize(0, np.float64)
    assert worst_difference(kind, plain, options, model) < 1e-14


@pytest.mark.parametrize("kind, plain, options", CASES, ids=IDS)
def test_a_parameter_without_gradient_counts_as_gradient_zero(kind, plain, options):
    model = Parameters((4, 3), (5,), (2,)).initialize(0, np.float64)
    before = model.p1.data.copy()
    assert worst_difference(kind, plain, options, model, without={"p1"}) < 1e-14
    assert (model.p1.data != before).all()


@pytest.mark.parametrize("size", [1, 7, 8, 9, 15, 16, 17, 24, 25, 100])
@pytest.mark.parametrize("kind, plain, options", [CASES[4], CASES[6], CASES[8]])
def test_blocks_of_eight_numbers_tile_slabs_of_any_size(size, kind, plain, options, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 64)
    model = Parameters((size,)).initialize(0, np.float64)
    assert worst_difference(kind, plain, options, model, num_steps=3) < 1e-14


@pytest.mark.parametrize("kind, options", [(k, o) for k, _, o in CASES], ids=IDS)
def test_a_step_works_in_place_and_allocates_nothing(kind, options):
    model = Parameters((1000, 1000)).initialize()
    optimizer = kind(model.slabs, lr=0.1, **options)
    slab, arrays = model.slabs[0], [v for state in optimizer.states for v in state.values()]
    set_gradients(model, 0)
    gradient = slab.grad.copy()
    optimizer.step()
    tracemalloc.start()
    try:
        optimizer.step()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < slab.data.nbytes / 100                    # 4 MB
    assert model.slabs[0] is slab and np.shares_memory(model.p0.data, slab.data)
    assert all(a is b for a, b in zip(arrays, optimizer.states[0].values()))
    np.testing.assert_array_equal(slab.grad, gradient)      # only read


def test_states_have_the_dtype_of_the_parameters():
    for dtype in (np.float32, np.float64):
        model = Parameters((3,)).initialize(dtype=dtype)
        assert {v.dtype for v in AdamW(model.slabs).states[0].values()} == {np.dtype(dtype)}


def test_a_stopped_run_goes_on_from_its_states():
    def steps(model, optimizer, numbers):
        for t in numbers:
            set_gradients(model, t)
            optimizer.step()
    for kind, _, options in CASES:
        one, two = (Parameters((3, 2), (4,)).initialize(0, np.float64) for _ in range(2))
        through, first = kind(one.slabs, 0.1, **options), kind(two.slabs, 0.1, **options)
        steps(one, through, range(6))
        steps(two, first, range(3))
        resumed, state = kind(two.slabs, 0.1, **options), first.state_dict()
        assert {key.split("/")[1] for key in state} in ({"p0", "p1"}, set())
        resumed.load_state_dict(state, first.num_steps)
        steps(two, resumed, range(3, 6))
        np.testing.assert_array_equal(one.slabs[0].data, two.slabs[0].data)


def test_states_of_another_optimizer_are_refused_by_name():
    model = Parameters((3, 2)).initialize()
    adam, sgd = AdamW(model.slabs), SGD(model.slabs, momentum=0.9)
    with pytest.raises(ValueError, match=r"needs first_moment/p0 of shape \(3, 2\)"):
        adam.load_state_dict(sgd.state_dict(), 3)
    with pytest.raises(ValueError, match="needs velocity/p0 .*resume with the optimizer"):
        sgd.load_state_dict({"velocity/p0": np.zeros((2, 3))}, 3)


def test_several_slabs_and_empty_ones():
    models = [Parameters((3,)).initialize(0, np.float64), Parameters((0,)).initialize(),
              Parameters((4,)).initialize(1, np.float64)]
    optimizer = AdamW([model.slabs[0] for model in models], lr=0.1)
    before = [model.slabs[0].data.copy() for model in models]
    for model in models:
        set_gradients(model, 1)
    optimizer.step()
    for model, old in zip(models, before):
        assert (model.slabs[0].data != old).all()
    optimizer.zero_grad()
    assert all(p.grad is None for model in models for p in model.parameters())
    Adam(Sequential(Dropout(0.1)).initialize().slabs).step()


def test_what_cannot_work_is_refused():
    model = MLP([2, 3])
    with pytest.raises(ValueError, match="call model.initialize"):
        AdamW(model.slabs)
    model.initialize()
    with pytest.raises(ValueError, match="a learning rate is a number >= 0, not -1"):
        SGD(model.slabs, lr=-1)
    with pytest.raises(ValueError, match="Nesterov momentum needs momentum > 0"):
        SGD(model.slabs, nesterov=True)
    with pytest.raises(TypeError, match="Optimizer defines no compute_step"):
        Optimizer(model.slabs, 0.1).step()


def test_the_meter_is_told_of_every_step():
    model = MLP([2, 3]).initialize()                        # 9 parameters of 4 bytes
    model(Tensor(np.ones((1, 2), np.float32))).sum().backward()
    with Meter().running() as meter:
        AdamW(model.slabs).step()
    assert meter.calls == {("AdamW", "optimizer"): 1}
    assert meter.bytes["AdamW", "optimizer"] == 9 * 4 * 4   # parameters, gradients, two states
    assert meter.flops["AdamW", "optimizer"] == 9 * AdamW.flops_per_parameter
