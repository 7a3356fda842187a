"""Lesson 09; `size` is the number of microbatches."""

import numpy as np

from minipar.comm import Cluster
from minipar.nn import Parameter, Slab
from minipar.nn.parameter import zeros
from minipar.optim import AdamW
from tests.lessons.algorithms import Case, says


def data(comm, m):
    """Weights, and this rank's microbatches; their rows do not divide evenly."""
    rng = np.random.default_rng(m)
    x, labels = rng.random((m, 7, 5)), rng.integers(0, 5, (m, 7))
    return (rng.normal(0, 0.5, (3, 5, 5)),
            [(np.array_split(a, comm.size)[comm.rank], np.array_split(b, comm.size)[comm.rank])
             for a, b in zip(x, labels)])


def a_step(shares):
    """A step on `shares` of the states."""
    def run(function, comm, m, names):
        start, batches = data(comm, m)
        weights = [*start.copy()]
        states = [np.zeros((2, *(names["part"](comm, w.reshape(-1)) if shares else w).shape))
                  for w in weights]
        function(comm, weights, states, batches, 7 * m, 1)
        return weights
    return run


def by_library(name):
    def run(comm, m):
        from support.lesson_09 import library_step
        return list(library_step(comm, name, *data(comm, m)))
    return run


def adam_twice(function, comm, size, names):
    weight, state = np.linspace(-1, 1, size), np.zeros((2, size))
    for t, grad in enumerate(gradients_of(size), 1):
        function(weight, grad, state, t)
    return [weight, state]


def gradients_of(size):
    return np.random.default_rng(size).standard_normal((3, size))


def library_adam(comm, size):
    slab = Slab([("w", Parameter((size,), zeros))], np.empty(0))
    slab.data[...] = np.linspace(-1, 1, size)
    optimizer = AdamW([slab], lr=1e-3, weight_decay=0.0)
    for grad in gradients_of(size):
        slab.complete_grad()[...] = grad
        optimizer.step()
    return [slab.data, np.array([*optimizer.states[0].values()])]


def added_up(function, comm, m, names):
    weights, _ = data(comm, m)
    x = np.random.default_rng(m).random((m, 7, 5))
    batches = [(each, np.arange(7) % 5) for each in x]
    return function([*weights], batches, 7 * m)


def library_gradients(comm, m):
    from support.plain_mlp import mlp_of
    weights, _ = data(comm, m)
    model = mlp_of(weights)
    for x in np.random.default_rng(m).random((m, 7, 5)):
        model.loss(x, np.arange(7) % 5, 7 * m).backward()
    return [model[2 * i].weight.grad.copy() for i in range(3)]


CASES = [
    Case("adam", adam_twice, library_adam, (1, 7), 1e-12),
    Case("gradients", added_up, library_gradients, (1, 3), 1e-14),
    Case("data_parallel", a_step(False), by_library("ddp"), (1, 3), 1e-9),
    Case("zero1", a_step(True), by_library("zero1"), (1, 3), 1e-9),
    Case("zero2", a_step(True), by_library("zero2"), (1, 3), 1e-9),
]


def check_change(names):
    """Ranks agree on weights that one process does not have; alone they are right."""
    def body(comm):
        start, batches = data(comm, 2)
        weights = [*start.copy()]
        states = [np.zeros((2, names["part"](comm, w.reshape(-1)).size)) for w in weights]
        names["zero1"](comm, weights, states, batches, 14, 1)
        return np.array(weights)
    (alone,) = Cluster(1).run(body)[0]
    found = Cluster(4).run(body)[0]
    assert all(np.array_equal(weights, found[0]) for weights in found)
    assert np.abs(found[0] - alone).max() > 1e-4
    says("09", "They agree: one rank steps on each piece", "They are wrong, unless there is one")
