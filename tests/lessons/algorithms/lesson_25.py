"""Lesson 25; `size` is the number of samples."""

import numpy as np

from minipar import autograd as ag
from minipar.compress.distillation.feature_loss import distance
from minipar.compress.distillation.soft_targets import soft_cross_entropy
from tests.lessons.algorithms import Case, says


def data(rows):
    """The student's weights and projection, the teacher's weights, samples and labels."""
    rng = np.random.default_rng(rows)
    return ([rng.normal(0, 0.5, shape) for shape in ((6, 4), (4, 3), (4, 8))],
            [rng.normal(0, 1, shape) for shape in ((6, 8), (8, 3))], rng.random((rows, 6)),
            rng.integers(0, 3, rows))


def logits(rows):
    return 3 * np.random.default_rng(rows).standard_normal((2, rows, 5))


def by_softmax(comm, rows):
    return ag.softmax(ag.Tensor(logits(rows)[0])).data


def own_loss(*more):
    """A loss of a student's and a teacher's outputs, and its gradient."""
    def run(function, comm, rows, names):
        z, teacher = logits(rows)
        z = names["Tensor"](z)
        loss = function(z, teacher, *more, rows)
        names["backward"](loss)
        return [np.array(loss.data), z.grad]
    return run


def library_loss(function):
    def run(comm, rows):
        z, teacher = logits(rows)
        z = ag.Tensor(z, requires_grad=True)
        loss = function(z, teacher, rows)
        loss.backward()
        return [loss.data, z.grad]
    return run


def two_losses(function, comm, rows, names):
    """0.3 of one loss and 0.7 of another, of one z."""
    z, teacher = logits(rows)
    z = names["Tensor"](z)
    loss = function([0.3, 0.7], [names["soft_targets"](z, teacher, 2.0, rows),
                                 names["squared_error"](z, teacher, rows)])
    names["backward"](loss)
    return [np.array(loss.data), z.grad]


def soft(temperature):
    return lambda z, teacher, rows: soft_cross_entropy(z, teacher, np.zeros(rows, int), temperature)


def squared(z, teacher, rows):
    return distance(z, teacher, np.ones(rows, bool), rows, "squared")


def distilled(function, comm, rows, names):
    weights, teacher, x, labels = data(rows)
    hidden = np.maximum(x @ teacher[0], 0)
    loss, grads = function(comm, weights, x, labels, hidden, hidden @ teacher[1])
    return [np.array(loss), *grads]


def by_library(comm, rows):
    from support.lesson_25 import library_gradients
    loss, *grads = library_gradients(comm, *data(rows))
    return [np.array(loss), *grads]


CASES = [
    Case("softmax", lambda function, comm, rows, names: function(logits(rows)[0]), by_softmax,
         (1, 7), 1e-15),
    Case("soft_targets", own_loss(4.0), library_loss(soft(4.0)), (1, 7), 1e-13),
    Case("squared_error", own_loss(), library_loss(squared), (1, 7), 1e-13),
    Case("weighted_sum", two_losses, library_loss(lambda z, teacher, rows: (
        0.3 * soft(2.0)(z, teacher, rows) + 0.7 * squared(z, teacher, rows))), (1, 7), 1e-13),
    Case("distill", distilled, by_library, (2, 7), 1e-13),
]


def check_change(names):
    """The loss is the same, the gradient 1/T of the right one: that of T Σ p ln(p/q)."""
    right, wrong = (library_loss(soft(4.0))(None, 7),
                    own_loss(4.0)(names["soft_targets"], None, 7, names))
    np.testing.assert_allclose(wrong[0], right[0])
    np.testing.assert_allclose(4 * wrong[1], right[1])
    says("25", "at T = 4 a quarter of what they were", "T makes it q − p")
