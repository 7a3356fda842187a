"""Exercises lamb_direction, lars_ratio and norms_of_whole_tensors, and moment_codes."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.nn import Module
from minipar.nn.parameter import Parameter, normal
from minipar.optim.moment_codes import BLOCK, Moment, levels
from minipar.optim.whole_tensors.lamb import LAMB
from minipar.optim.whole_tensors.lars import LARS
from minipar.optim.whole_tensors.layerwise import sum_squares
from minipar.parallel.registry import make_strategy
from tests.support.agreement import check_same
from tests.support.given_gradients import GivenGradients

SHAPES = {"w": (4, 3), "bias": (5,), "zeros": (3, 2)}


def given(step):
    draw = np.random.default_rng(step)
    return {name: draw.standard_normal(shape) for name, shape in SHAPES.items()}


def model_of_tensors() -> Module:
    model = Module()
    for name, shape in SHAPES.items():
        setattr(model, name, Parameter(shape, normal(1.0)))
    model.initialize(0, np.float64)
    model.zeros.data[...] = 0
    return model


def check_steps(kind, rule, **options):
    """Three steps of an optimizer against a rule for one tensor."""
    model = model_of_tensors()
    optimizer, right = kind(model.slabs, 0.1, **options), model.state_dict()
    states = {name: [np.zeros(shape)] * 2 for name, shape in SHAPES.items()}
    for step in range(1, 4):
        optimizer.zero_grad()
        for name, g in given(step).items():
            getattr(model, name).slot.accumulate(g)
            right[name], states[name] = rule(right[name], g, states[name], step, **options)
        optimizer.step()
        for name, w in model.state_dict().items():
            check_same(w, right[name], f"{name} after step {step}, {options}", rtol=1e-7)


def lamb(w, g, state, step, weight_decay=0.01, bias_correction=True):
    """You et al. 2020, algorithm 2."""
    m, v = 0.9 * state[0] + 0.1 * g, 0.999 * state[1] + 0.001 * g**2
    by = (1 - 0.9**step, 1 - 0.999**step) if bias_correction else (1, 1)
    u = (m / by[0]) / (np.sqrt(v / by[1]) + 1e-6) + weight_decay * w
    sizes = np.linalg.norm(w), np.linalg.norm(u)
    return w - 0.1 * (sizes[0] / sizes[1] if all(sizes) else 1) * u, (m, v)


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_lamb(bias_correction, weight_decay):
    check_steps(LAMB, lamb, weight_decay=weight_decay, bias_correction=bias_correction)


def lars(w, g, state, step, weight_decay=0.0, trust=0.01, momentum=0.9):
    """You, Gitman & Ginsburg 2017; vectors as in SGD, without decay."""
    size, ratio = np.linalg.norm(w), 1.0
    if w.ndim < 2:
        weight_decay = 0
    elif size and g.any():
        ratio = trust * size / (np.linalg.norm(g) + weight_decay * size)
    v = momentum * state[0] + ratio * (g + weight_decay * w)
    return w - 0.1 * v, (v, state[1])


@pytest.mark.parametrize("weight_decay, trust", [(0.0, 0.01), (0.5, 0.2)])
def test_lars(weight_decay, trust):
    check_steps(LARS, lars, weight_decay=weight_decay, trust=trust)


@pytest.mark.parametrize("p", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["ddp", "zero1"])
def test_squares_of_whole_tensors(p, name):
    """Of ZeRO's pieces, which end anywhere in a tensor, and of whole slabs."""
    values = {tensor: np.random.default_rng(i).standard_normal(shape)
              for i, (tensor, shape) in enumerate(SHAPES.items())}

    def body(comm):
        strategy = make_strategy(name, GivenGradients(SHAPES), comm)
        found = {}
        for slab in strategy.slabs:
            here = {}
            for segment in slab.segments:
                part = segment.local_part(values[segment.name])
                here[segment.name] = part, 2 * part
            found |= sum_squares(slab, here)
        return found
    for rank, found in enumerate(Cluster(p).run(body)[0]):
        for tensor, array in values.items():
            square = np.sum(array**2)
            assert tensor in found, f"{name}, rank {rank} of {p}: expected {tensor}, of which it " \
                                    f"may have no part, got only {', '.join(found)}"
            check_same(found[tensor], [square, 4 * square],
                       f"{name}, rank {rank} of {p}: Σ w² and Σ (2w)² of {tensor}")


def moments(size, signed):
    values = np.random.default_rng(size).standard_normal(size)**3
    values[BLOCK:] *= 1e-4                              # the second block
    values[5:9] = 0
    return values if signed else np.abs(values)


@pytest.mark.parametrize("size", [3, BLOCK, 2 * BLOCK + 7])
@pytest.mark.parametrize("signed", [True, False])
def test_a_code_is_the_nearest_level(size, signed):
    values, moment = moments(size, signed), Moment(np.empty(size), signed)
    moment.encode(0, values)
    found = moment.decode(0, size)
    for start in range(0, size, BLOCK):
        here = values[start:start + BLOCK]
        scale = np.float64(np.float32(np.abs(here).max()))
        choice = np.abs(here[:, None] / (scale or 1) - levels(signed)).argmin(1)
        if not signed:
            choice[(choice == 0) & (here > 0)] = 1
        check_same(found[start:start + BLOCK], levels(signed)[choice] * scale,
                   f"decoded, {'m' if signed else 'v'} from {start} on", rtol=1e-12, atol=0)


def test_a_block_of_zeros_stays_zeros():
    moment = Moment(np.empty(BLOCK), True)
    moment.encode(0, np.zeros(BLOCK))
    check_same(moment.decode(0, BLOCK), np.zeros(BLOCK), "a block of zeros")


def test_a_later_chunk_has_its_own_place():
    moment, values = Moment(np.empty(3 * BLOCK), True), np.arange(3.0 * BLOCK)
    moment.encode(0, values)
    moment.encode(BLOCK, 5 * values[BLOCK:2 * BLOCK][::-1])
    check_same(moment.scales, [BLOCK - 1, 5 * (2 * BLOCK - 1), 3 * BLOCK - 1], "the scales",
               rtol=1e-6)
    found = [moment.decode(0, 3 * BLOCK)[i] for i in (0, BLOCK - 1, BLOCK, 3 * BLOCK - 1)]
    check_same(found, [0, BLOCK - 1, 5 * (2 * BLOCK - 1), 3 * BLOCK - 1],
               "both ends of the first block, the first of the second, the last", rtol=1e-6)


def test_scales_may_be_given():
    """A checkpoint has decoded moments and the scale of each element."""
    moment = Moment(np.empty(2), True)
    moment.encode(0, np.array([0.5, -0.1]), np.array([4.0, 4.0]))
    assert moment.scales.tolist() == [4.0], f"expected the scale 4 that is given, got " \
                                            f"{moment.scales.tolist()}"
