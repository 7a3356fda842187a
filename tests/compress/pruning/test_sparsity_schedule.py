"""Pruning little by little."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.compress.pruning.masks import Masks, prunable_weights
from minipar.compress.pruning.sparsity_schedule import GradualPruning, cubic_sparsity
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.parallel.flats import gather_parameter
from minipar.parallel.tensor.parallelize import parallelize

SIZES = [6, 8, 8, 4]
X, LABELS = np.random.default_rng(0).standard_normal((8, 6)), np.arange(8) % 4


def unmasked(model):
    return Masks(model, {name: np.ones(p.global_shape, bool)
                         for name, p in prunable_weights(model).items()})


def train(model, num_steps, before=lambda step: None):
    optimizer = SGD(model.slabs, 0.1, momentum=0.9)
    for step in range(num_steps):
        before(step)
        optimizer.zero_grad()
        model.loss(X, LABELS, 8).backward()
        optimizer.step()


def test_the_cubic_of_zhu_and_gupta():
    at = [cubic_sparsity(step, 10, 20, 0.2, 0.9) for step in range(40)]
    assert at[:11] == pytest.approx([0.2] * 11) and at[30:] == [0.9] * 10
    assert at[20] == pytest.approx(0.9 - 0.7 / 8) and at[15] == pytest.approx(0.9 - 0.7 * 27 / 64)
    steps = np.diff(at[10:31])
    assert np.all(steps > 0) and np.all(np.diff(steps) < 0)
    assert [cubic_sparsity(step, 5, 0, 0.0, 0.9) for step in (4, 5)] == [0, 0.9]


def test_gradual_pruning_follows_it_and_takes_nothing_back():
    model = MLP(SIZES).initialize(0, np.float64)
    masks = unmasked(model)
    gradual = GradualPruning(model, masks, 0.75, begin=2, length=9, every=3)
    seen = []

    def before(step):
        kept = masks.local_masks()
        gradual.step(step)
        assert all(not (mask & ~kept[name]).any() for name, mask in masks.local_masks().items())
        seen.append(masks.sparsity())
    train(model, 14, before)
    steps = [cubic_sparsity(t, 2, 9, 0, 0.75) for t in (5, 8)]
    for found, expected in zip(seen, [0] * 5 + [steps[0]] * 3 + [steps[1]] * 3 + [0.75] * 3):
        assert found == pytest.approx(expected, abs=1 / 144)


def test_gradual_pruning_of_a_cut_model_is_that_of_one_process():
    def run(model, mesh=None):
        masks = unmasked(model)
        if mesh is not None:
            parallelize(model, mesh["tp"])
        gradual = GradualPruning(model, masks, 0.8, begin=1, length=6, every=2, mesh=mesh)
        train(model, 9, gradual.step)
        return masks.local_masks()
    expected = run(MLP(SIZES).initialize(0, np.float64))

    def body(comm):
        mesh, model = DeviceMesh(comm, tp=2), MLP(SIZES).initialize(0, np.float64)
        found = run(model, mesh)
        for slab in model.slabs:
            for s in slab.segments:
                if s.name in found:
                    whole = gather_parameter(mesh["tp"], s, found[s.name])
                    assert np.array_equal(whole, expected[s.name])
    Cluster(2).run(body)
