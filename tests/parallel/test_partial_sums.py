"""Partial sums beside numbers: check_types lets pass only what a sum over ranks commutes with."""

import numpy as np
import pytest

from minipar import autograd as ag
from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.nn import MLP, Parameter
from minipar.parallel import conjugate as pairs
from minipar.parallel.check_types import check_types
from minipar.parallel.tensor.parallelize import parallelize

P = 2
CONSTANT = np.array([[2.0, -1.0, 0.5]])
WITH_NUMBERS = {        # what a sum over ranks commutes with, and what it does not
    "p * 3": (True, lambda p: p * 3.0), "c * p": (True, lambda p: Tensor(CONSTANT) * p),
    "p / c": (True, lambda p: p / CONSTANT), "mean": (True, lambda p: p.mean()),
    "sum(p, p)": (True, lambda p: sum([p, p])), "p - p": (True, lambda p: p[:, :1] - p),
    "p + p": (True, lambda p: p + p * 2.0),
    "p beside p": (True, lambda p: ag.concatenate([p, p])),
    "3 / p": (False, lambda p: 3.0 / p), "c / p": (False, lambda p: Tensor(CONSTANT) / p),
    "p + c": (False, lambda p: p + CONSTANT), "c + p": (False, lambda p: Tensor(CONSTANT) + p),
    "c - p": (False, lambda p: 1.0 - p), "p - c": (False, lambda p: p - Tensor(CONSTANT)),
    "p beside c": (False, lambda p: ag.concatenate([p, Tensor(CONSTANT)])),
    "p p": (False, lambda p: p * p), "p / p": (False, lambda p: p / p),
    "p ** 2": (False, lambda p: p**2), "max": (False, lambda p: p.max(axis=0)),
}


@pytest.mark.parametrize("product", [ag.linear, ag.matmul])
@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_a_partial_sum_beside_numbers(name, product):
    """It is accepted exactly where all ranks together compute what one device does."""
    is_fine, use = WITH_NUMBERS[name]
    x, w = np.arange(1.0, 13).reshape(2, 6) % 5, np.arange(18.0).reshape(6, 3) % 7 + 1

    def body(comm):
        (weight := Parameter(w.shape, lambda rng, shape: w)).data = w
        weight.shard((rows := (3 * comm.rank, 3 * comm.rank + 3), (0, 3)))
        y = pairs.reduce_from(use(product(Tensor(x[:, slice(*rows)]), weight)), comm)
        try:
            check_types(y.sum(), comm, {"w": weight}, varying={"w"})
        except TypeError as error:
            assert "before the sum" in str(error)
            return False, y.data
        return True, y.data
    whole = use(product(Tensor(x), Tensor(w, requires_grad=True))).data
    for accepted, found in Cluster(P).run(body)[0]:
        assert accepted == np.allclose(found, whole) == is_fine


@pytest.mark.parametrize("wrap", [
    lambda bias, comm: Tensor(bias),
    lambda bias, comm: pairs.copy_to(Tensor(bias, requires_grad=True), comm)])
def test_a_bias_belongs_to_the_sum(wrap):
    def body(comm):
        model = parallelize(MLP([3, 4, 3]), comm).initialize(0, np.float64)
        named = dict(model.named_parameters())
        varying = {name for name, p in named.items() if "tp" not in p.replicated}
        y = ag.linear(model[1](model[0](Tensor(np.ones((2, 3))))), model[2].weight,
                      wrap(np.ones(3), comm))
        check_types(pairs.reduce_from(y, comm).sum(), comm, named, varying)
    with pytest.raises(TypeError, match="Linear: its weight is cut by rows, so each of the 2 ranks "
                                        "would add the bias"):
        Cluster(P).run(body)
