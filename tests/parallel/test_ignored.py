"""Targets that do not count: -100 unless the model says otherwise, and every strategy asks it."""

from functools import cache

import numpy as np
import pytest

from minipar.autograd import IGNORE_INDEX, cross_entropy
from minipar.comm import Cluster
from minipar.compress.distillation.distill import Distillation, LocalTeacher, make_recipe
from minipar.nn import MLP
from minipar.parallel.strategy import Microbatch
from minipar.parallel.tensor.parallelize import parallelize
from tests.support.case_models import TIME, VOCABULARY, gpt
from tests.support.cases import ALL
from tests.support.sweeps import every_mesh

PAD = 3                 # a word that fills up what is short, and is no target
DRAW = np.random.default_rng(0)
IDS = DRAW.integers(0, VOCABULARY, (6, TIME))
TARGETS = np.where(DRAW.random(IDS.shape) < 0.4, PAD, DRAW.integers(0, VOCABULARY, IDS.shape))


def trained(comm, name, targets, ignored):
    """The loss, and the gradients that this rank knows, by name."""
    model = gpt(num_layers=6)().initialize(0, np.float64)
    model.ignore_index = ignored
    strategy = ALL[name](model, comm)
    rows = list(strategy.rows(len(IDS)))
    loss = strategy.forward_backward([Microbatch(IDS[rows], targets[rows], np.array(rows, int))])
    knows = not (name == "dp" and comm.rank)
    return loss, (strategy.slabs.gradients() if knows else {})


@cache
def expected():
    """With the same targets marked as usual."""
    marked = np.where(TARGETS == PAD, IGNORE_INDEX, TARGETS)
    return Cluster(1).run(lambda comm: trained(comm, "alone", marked, IGNORE_INDEX))[0][0]


@pytest.mark.parametrize("name", every_mesh(4, [
    name for name in ALL if "sequence" not in name]))
@pytest.mark.one_in(4)
def test_every_strategy_asks_the_model(name):
    loss, gradients = expected()
    for found, ours in Cluster(1 if name == "alone" else 4).run(
            lambda comm: trained(comm, name, TARGETS, PAD))[0]:
        assert found == pytest.approx(loss, rel=1e-12)
        for key, values in ours.items():
            np.testing.assert_allclose(values, gradients[key], rtol=1e-9, atol=1e-13, err_msg=key)


def test_the_loss_of_a_gpt_takes_it():
    model = gpt()().initialize(0, np.float64)
    usual = model.loss(IDS, np.where(TARGETS == PAD, -100, TARGETS)).item()
    assert model.ignore_index == IGNORE_INDEX == -100
    assert model.loss(IDS, TARGETS).item() != usual
    with pytest.raises(ValueError, match=r"targets -1 … \d+ are not all in 0"):
        model.loss(IDS, np.where(TARGETS == PAD, -1, TARGETS))
    model.ignore_index = PAD
    assert model.loss(IDS, TARGETS).item() == usual
    assert usual == cross_entropy(model(IDS), TARGETS, np.sum(TARGETS != PAD), PAD).item()

    def cut(comm):
        whole = parallelize(gpt()(), comm).initialize(0, np.float64)
        whole.ignore_index = PAD
        return whole.loss(IDS, TARGETS).item()
    assert Cluster(2).run(cut)[0] == pytest.approx([usual] * 2, rel=1e-12)


def test_of_an_mlp_too():
    model, labels = MLP([4, 5, 3]).initialize(0, np.float64), np.array([0, 2, 1, 2])
    x = DRAW.standard_normal((4, 4))
    model.ignore_index = 2
    assert model.loss(x, labels).item() == pytest.approx(
        cross_entropy(model.logits(x[[0, 2]]), labels[[0, 2]]).item(), rel=1e-12)


def test_what_the_student_ignores_is_not_taught():
    x, teacher = DRAW.standard_normal((3, 5)), MLP([5, 7, 4]).initialize(1, np.float64)

    def loss(labels, ignored):
        student = MLP([5, 6, 4])
        student.ignore_index = ignored
        recipe = make_recipe(student, teacher, hidden=1.0, alpha=0.5)
        model = Distillation(student, LocalTeacher(teacher, recipe), recipe)
        assert model.ignore_index == ignored
        return model.initialize(3, np.float64).loss(x, np.array(labels)).item()
    assert loss([1, 3, 2], 3) == loss([1, -100, 2], -100) != loss([1, 3, 2], -100)
