"""Lesson 06; `size` is the number of layers."""

import numpy as np

from minipar import autograd as ag
from minipar.comm import Cluster
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from tests.lessons.algorithms import Case, says


def data(layers):
    rng = np.random.default_rng(layers)
    return rng.normal(0, 0.5, (layers, 5, 5)), rng.random((9, 5)), rng.integers(0, 5, 9)


def operation(make, library):
    """Outputs and gradients of an operation whose output is used twice, and by the library."""
    def own(function, comm, size, names):
        inputs = [names["Tensor"](array) for array in arrays()]
        y = function(*inputs[:make])
        names["backward"](names["cross_entropy"](names["add"](y, y), np.arange(5), 5))
        return [y.data, *(each.grad for each in inputs[:make])]

    def by_library(comm, size):
        inputs = [ag.Tensor(array, requires_grad=True) for array in arrays()][:make]
        y = library(*inputs)
        ag.cross_entropy(y + y, np.arange(5), 5).backward()
        return [y.data, *(each.grad for each in inputs)]
    return own, by_library, (0,), 1e-14


def arrays():
    return np.random.default_rng(0).standard_normal((2, 5, 5))


def through_mlp(function, comm, layers, names):
    """The gradients of an MLP's weights: backward, or along all paths."""
    weights, x, labels = data(layers)
    ws, h = [names["Tensor"](w) for w in weights], names["Tensor"](x)
    for i, w in enumerate(ws):
        h = names["linear"](names["relu"](h) if i else h, w)
    function(names["cross_entropy"](h, labels, 9))
    return [w.grad for w in ws]


def model_of(weights):
    from support.plain_mlp import mlp_of
    return mlp_of(weights)


def library_gradients(comm, layers):
    weights, x, labels = data(layers)
    model = model_of(weights)
    model.loss(x, labels).backward()
    return [model[2 * i].weight.grad for i in range(layers)]


def differences(function, comm, layers, names):
    weights, x, labels = data(layers)
    model = model_of(weights)
    return [function(lambda: model.loss(x, labels).data, model[2 * i].weight.data)
            for i in range(layers)]


def trained(function, comm, layers, names):
    """A step: in the library biases would learn, too."""
    weights, x, labels = data(layers)
    function(comm, weights := [*weights], x, labels, steps=1)
    return weights


def library_training(comm, layers):
    weights, x, labels = data(layers)
    strategy = make_strategy("ddp", model_of(weights), comm)
    mine = np.array(strategy.rows(9), int)
    strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
    strategy.step(SGD(strategy.slabs, lr=0.1))
    return [strategy.state_dict()[f"{2 * i}.weight"] for i in range(layers)]


CASES = [
    Case("add", *operation(2, lambda x, y: x + y)),
    Case("linear", *operation(2, ag.linear)),
    Case("relu", *operation(1, ag.relu)),
    Case("along_paths", through_mlp, library_gradients, (1, 3), 1e-14),
    Case("backward", through_mlp, library_gradients, (1, 3), 1e-14),
    Case("finite_differences", differences, library_gradients, (1, 3), 1e-8),
    Case("train", trained, library_training, (1, 3), 1e-14),
]
PARTS = {"Tensor", "in_order"}


def check_change(names):
    """An MLP's gradients are right; ten doublings have 1, and two microbatches only the second."""
    for found, right in zip(through_mlp(names["backward"], None, 3, names),
                            library_gradients(None, 3)):
        np.testing.assert_allclose(found, right, atol=1e-14)
    x = y = names["Tensor"](1.0)
    for _ in range(10):
        y = names["add"](y, y)
    names["backward"](y)
    assert x.grad == 1
    w, found = names["Tensor"](np.eye(5)), []
    for rows in 3, 4:                   # two microbatches; each backward begins from nothing
        x = names["Tensor"](np.random.default_rng(rows).random((rows, 5)))
        names["backward"](names["cross_entropy"](names["linear"](x, w), np.arange(rows), 7))
        found.append(w.grad)
    alone = names["Tensor"](np.eye(5))
    names["backward"](names["cross_entropy"](names["linear"](x, alone), np.arange(4), 7))
    assert np.array_equal(found[1], alone.grad) and np.abs(found[0]).max() > 0.01
    for found, right in Cluster(3).run(lambda comm: (
            trained(names["train"], comm, 2, names), library_training(comm, 2)))[0]:
        np.testing.assert_allclose(found, right, atol=1e-14)
    says("06", "Ten doublings then have a gradient of 1", "so training is still right")
