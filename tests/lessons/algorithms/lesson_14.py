"""Lesson 14; `size` is the number of tokens.  Parts of weights are drawn by its support file."""

import numpy as np

from minipar import autograd as ag
from minipar.comm import Cluster
from minipar.parallel import conjugate
from tests.lessons.algorithms import Case, numbers, says


def support():
    from support import lesson_14
    return lesson_14


def on_numbers(function, comm, size, names):
    return support().lesson_values(lambda _, x: function(x, comm), [], numbers(comm, size))


def by_conjugate(name):
    def run(comm, size):
        x = ag.Tensor(numbers(comm, size), requires_grad=True)
        return support().library_values(getattr(conjugate, name)(x, comm), x, list)
    return run


def run_mlp(function, comm, size, names):
    return support().lesson_values(lambda ws, x: function(x, *ws, comm),
                                   *support().mlp_values(comm, size, size))


def run_attention(function, comm, size, names):
    return support().lesson_values(lambda ws, x: function(x, ws[:3], ws[3], comm),
                                   *support().attention_values(comm, size, size))


def run_cross_entropy(function, comm, size, names):
    z, labels = support().logits_and_labels(comm, size)
    return support().lesson_values(lambda _, x: function(x, labels, comm), [], z)


CASES = [
    Case("f", on_numbers, by_conjugate("copy_to"), tolerance=1e-15),
    Case("g", on_numbers, by_conjugate("reduce_from"), tolerance=1e-15),
    Case("mlp", run_mlp, lambda comm, size: support().library_mlp(
        comm, *support().mlp_values(comm, size, size)), (1, 7), 1e-12),
    Case("attention", run_attention, lambda comm, size: support().library_attention(
        comm, *support().attention_values(comm, size, size)), (1, 7), 1e-12),
    Case("cross_entropy", run_cross_entropy, lambda comm, size: support().library_cross_entropy(
        comm, *support().logits_and_labels(comm, size)), (1, 7, 24), 1e-12),
]
PARTS = {"heads"}


def check_change(names):
    """The loss and the gradient of the last layer are right; those before are not."""
    draw = np.random.default_rng(0)
    x, labels = draw.standard_normal((5, 6)), draw.integers(0, 24, 5)
    axes, shapes = (1, 1, 1, 0, 1, 0, 1), {1: (6, 32), 0: (32, 6)}
    weights = [draw.standard_normal(shapes[axis]) for axis in axes[:6]]
    weights.append(draw.standard_normal((6, 24)))

    def body(comm):
        *ws, last = [names["Tensor"](names["part"](comm, w, axis))
                     for w, axis in zip(weights, axes)]
        y = names["mlp"](names["attention"](names["Tensor"](x), ws[:3], ws[3], comm), ws[4],
                         ws[5], comm)
        loss = names["cross_entropy"](names["linear"](names["f"](y, comm), last), labels, comm)
        names["backward"](loss)
        return loss.data, [w.grad for w in (*ws, last)]
    (right, expected), = Cluster(1).run(body)[0]
    for p in (2, 4):
        for rank, (loss, found) in enumerate(Cluster(p).run(body)[0]):
            np.testing.assert_allclose(loss, right, rtol=1e-12)
            off = [np.abs(mine - np.array_split(grad, p, axis)[rank]).max()
                   for mine, grad, axis in zip(found, expected, axes)]
            assert off[-1] < 1e-12 and min(off[:-1]) > 1e-3
    says("14", "The loss is right", "So is the gradient of the last layer",
         "Every gradient before it is wrong")
