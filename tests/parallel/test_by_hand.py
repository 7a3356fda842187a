"""A training loop of one's own, without `accumulate`: as lessons and learners write it."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.parallel.strategies import NAMES, make_strategy
from minipar.parallel.strategy import Strategy

DRAW = np.random.default_rng(0)
X, LABELS = DRAW.standard_normal((3, 8, 4)), DRAW.integers(0, 3, (3, 8))


def train(comm, make):
    strategy = make(MLP([4, 6, 5, 3]).initialize(seed=comm.rank, dtype=np.float64), comm)
    optimizer = SGD(strategy.slabs, lr=0.2, momentum=0.9)
    mine = slice(*chunk_bounds(8, comm.size)[comm.rank])
    for x, labels in zip(X, LABELS):
        optimizer.zero_grad()
        with strategy.forward():
            loss = strategy.model.loss(x[mine], labels[mine], num_targets=8)
        strategy.backward(loss)
        strategy.step(optimizer)
    return strategy.state_dict()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_it_gives_what_one_process_gives(name, p):
    (alone,), _ = Cluster(1).run(lambda comm: train(comm, Strategy))
    results, _ = Cluster(p).run(
        lambda comm: train(comm, lambda model, comm: make_strategy(name, model, comm)))
    for state in results:
        for parameter, values in alone.items():
            np.testing.assert_allclose(state[parameter], values, rtol=1e-10, atol=1e-13)
