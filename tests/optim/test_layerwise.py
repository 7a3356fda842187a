"""LAMB and LARS in one process against their rules, one tensor at a time."""

import numpy as np
import pytest

from minipar.optim import NO_DECAY_FOR_VECTORS, ParameterGroup
from minipar.optim.whole_tensors.lamb import LAMB
from minipar.optim.whole_tensors.lars import LARS
from tests.optim.test_optimizers import Parameters, set_gradients

SHAPES = ((4, 3), (5,), (2, 3, 2))


def plain_lamb(w, g, state, t, lr, betas=(0.9, 0.999), epsilon=1e-6, weight_decay=0.01,
               bias_correction=True):
    m = state["m"] = betas[0] * state.get("m", 0) + (1 - betas[0]) * g
    v = state["v"] = betas[1] * state.get("v", 0) + (1 - betas[1]) * g**2
    if bias_correction:
        m, v = m / (1 - betas[0]**t), v / (1 - betas[1]**t)
    u = m / (np.sqrt(v) + epsilon) + weight_decay * w
    norms = np.linalg.norm(w), np.linalg.norm(u)
    return w - lr * (norms[0] / norms[1] if all(norms) else 1) * u


def plain_lars(w, g, state, t, lr, momentum=0.9, trust=0.01, weight_decay=0.0):
    if w.ndim < 2:
        weight_decay, ratio = 0, 1
    else:
        size = np.linalg.norm(w)
        ratio = trust * size / (np.linalg.norm(g) + weight_decay * size) if size else 1
    v = state["v"] = momentum * state.get("v", 0) + ratio * (g + weight_decay * w)
    return w - lr * v


CASES = [(LAMB, plain_lamb, {}), (LAMB, plain_lamb, {"bias_correction": False}),
         (LAMB, plain_lamb, {"betas": (0.8, 0.9), "weight_decay": 0.3}), (LARS, plain_lars, {}),
         (LARS, plain_lars, {"weight_decay": 0.2, "momentum": 0.5, "trust": 0.1})]


@pytest.mark.parametrize("zeros", [(), ("p0", "p1")])
@pytest.mark.parametrize("kind, plain, options", CASES)
def test_the_rule(kind, plain, options, zeros):
    """Also from weights that are 0, which would never move (cybertronai 6)."""
    model = Parameters(*SHAPES).initialize(0, np.float64)
    for name in zeros:
        getattr(model, name).data[...] = 0
    optimizer = kind(model.slabs, 0.1, **options)
    expected, states = model.state_dict(), {name: {} for name, _ in model.named_parameters()}
    for t in range(1, 6):
        optimizer.lr = 0.1 / t
        gradients = set_gradients(model, t)
        for name, w in expected.items():
            expected[name] = plain(w, gradients[name], states[name], t, optimizer.lr, **options)
        optimizer.step()
        for name, p in model.named_parameters():
            np.testing.assert_allclose(p.data, expected[name], rtol=1e-7, atol=1e-9, err_msg=name)
    assert all(p.data.any() for p in model.parameters())


def test_the_ratio_counts_the_corrected_moments():
    """jettify 443: at step 1 the norm of m alone is 10 times too small."""
    model = Parameters((4, 3)).initialize(0, np.float64)
    gradient, w = set_gradients(model, 1)["p0"], model.p0.data.copy()
    lamb = LAMB(model.slabs, 0.1, weight_decay=0)
    lamb.step()
    signs = gradient / (np.abs(gradient) + 1e-6)
    np.testing.assert_allclose(lamb.ratios["p0"], np.linalg.norm(w) / np.linalg.norm(signs),
                               rtol=1e-12)


def test_the_step_of_a_matrix_does_not_depend_on_the_scale_of_its_gradient():
    moved = {}
    for scale in (1, 1e4):
        for kind in (LAMB, LARS):
            model = Parameters((4, 3)).initialize(0, np.float64)
            before = model.p0.data.copy()
            model.p0.slot.accumulate(scale * np.random.default_rng(1).standard_normal((4, 3)))
            kind(model.slabs, 0.1, weight_decay=0.0).step()
            moved[kind, scale] = before - model.p0.data
    for kind in (LAMB, LARS):
        np.testing.assert_allclose(moved[kind, 1], moved[kind, 1e4], rtol=1e-4)


def test_groups_decay_and_learn_by_their_rules():
    groups = [ParameterGroup(lambda segment: segment.name == "p0", 0.7, 0.5), NO_DECAY_FOR_VECTORS]
    for kind, plain in ((LAMB, plain_lamb), (LARS, plain_lars)):
        model = Parameters(*SHAPES).initialize(0, np.float64)
        before, gradients = model.state_dict(), set_gradients(model, 1)
        kind(model.slabs, 0.1, weight_decay=0.3, groups=groups).step()
        for name, decay, lr in (("p0", 0.7, 0.05), ("p1", 0, 0.1), ("p2", 0.3, 0.1)):
            np.testing.assert_allclose(
                model.state_dict()[name], plain(before[name], gradients[name], {}, 1, lr,
                                                weight_decay=decay), rtol=1e-7)


@pytest.mark.parametrize("kind, options", [(kind, options) for kind, _, options in CASES])
def test_a_stopped_run_goes_on_from_its_states(kind, options):
    def steps(model, optimizer, numbers):
        for t in numbers:
            set_gradients(model, t)
            optimizer.step()
    one, two = (Parameters(*SHAPES).initialize(0, np.float64) for _ in range(2))
    through, first = kind(one.slabs, 0.1, **options), kind(two.slabs, 0.1, **options)
    steps(one, through, range(4))
    steps(two, first, range(2))
    resumed = kind(two.slabs, 0.1, **options)
    resumed.load_state_dict(first.state_dict(), first.num_steps)
    steps(two, resumed, range(2, 4))
    np.testing.assert_array_equal(one.slabs[0].data, two.slabs[0].data)
