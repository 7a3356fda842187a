"""Lesson 15; `size` is the number of tokens of each rank."""

import numpy as np

from minipar import autograd as ag
from minipar.comm import Cluster
from minipar.parallel import conjugate
from tests.lessons.algorithms import Case, matrix, numbers, says

SOME = (1, 3, 8)


def support():
    from support import lesson_15
    return lesson_15


def tokens(comm, size):
    return numbers(comm, 5 * size).reshape(size, 5)


def of_each(comm, size):
    """The tokens of all ranks, in this rank's version."""
    return matrix(comm, 5 * size).reshape(-1, 5)


def moves(values, grads):
    """A lesson's operation: its result, and the gradient that it makes of `grads`."""
    def run(function, comm, size, names):
        x = names["Tensor"](values(comm, size))
        y = function(x, comm)
        names["backward"](y, grads(comm, size))
        return [y.data, x.grad]
    return run


def by_conjugate(name, values, grads):
    def run(comm, size):
        x = ag.Tensor(values(comm, size), requires_grad=True)
        y = getattr(conjugate, name)(x, comm)
        ag.backward(y, grads(comm, size))
        return [y.data, x.grad]
    return run


def normed(function, comm, size, names):
    draw = np.random.default_rng(size)
    x, gain = names["Tensor"](draw.standard_normal((size, 5))), names["Tensor"](np.arange(1.0, 6))
    y = function(x, gain)
    names["backward"](y, draw.standard_normal((size, 5)))
    return [y.data, x.grad, gain.grad]


def by_layer_norm(comm, size):
    draw = np.random.default_rng(size)
    x, gain = (ag.Tensor(each, requires_grad=True) for each in (
        draw.standard_normal((size, 5)), np.arange(1.0, 6)))
    y = ag.layer_norm(x, gain, ag.Tensor(np.zeros(5)), 0.0)
    ag.backward(y, draw.standard_normal((size, 5)))
    return [y.data, x.grad, gain.grad]


def run_layer(mode):
    return lambda function, comm, size, names: support().lesson_values(function, comm, mode, size)


CASES = [
    Case("norm", normed, by_layer_norm, SOME, 1e-12),
    Case("gather", moves(tokens, of_each), by_conjugate("all_gather", tokens, of_each), SOME),
    Case("scatter", moves(of_each, tokens), by_conjugate("reduce_scatter", of_each, tokens), SOME),
    *[Case(f"{mode}_layer", run_layer(mode), lambda comm, size, mode=mode:
           support().library_values(comm, mode, size), SOME, 1e-11)
      for mode in ("tensor", "sequence")],
]
PARTS = {"whole", "summed"}


def check_change(names):
    """Each rank has its own summand of the gradient of gain; all else is right."""
    def body(comm):
        found = support().lesson_values(names["sequence_layer"], comm, "sequence")
        return found, support().library_values(comm, "sequence")
    for p in (2, 4):
        ranks = Cluster(p).run(body)[0]
        for found, right in ranks:
            for i in (0, 1, 3, 4):              # the result; gradients of x, A, B
                np.testing.assert_allclose(found[i], right[i], rtol=0, atol=1e-12)
            assert np.abs(found[2] - right[2]).max() > 0.1
        assert np.abs(ranks[0][0][2] - ranks[1][0][2]).max() > 0.1
        np.testing.assert_allclose(sum(found[2] for found, _ in ranks), ranks[0][1][2], rtol=0,
                                   atol=1e-12)
    says("15", "and so do the gradients of x, A and B", "Their sum over the ranks is the right one")
