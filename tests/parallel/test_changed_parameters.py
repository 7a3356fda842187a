"""A step between forward and backward is refused on every rank, by every way to hold parameters."""

import numpy as np
import pytest

from minipar.nn import MLP
from minipar.optim import AdamW
from minipar.testing import worlds
from tests.support.cases import ALL, STRATEGIES

NAMES = ["alone", *(name for name in STRATEGIES if name != "dp")]      # dp: ranks wait for rank 0


def train_between(comm, name):
    """Two forwards, then backward and step of the first, then backward of the second."""
    model = MLP([4, 6, 3]).initialize(0, np.float64)
    strategy = ALL[name](model, comm)
    x = np.random.default_rng(comm.rank).standard_normal((5, 4))
    labels = np.array([0, 1, 2, 0, 1])

    def loss():
        with strategy.forward_context():
            return model.loss(x, labels, 5 * comm.size)
    optimizer = AdamW(strategy.slabs, lr=0.1)
    first, second = loss(), loss()
    strategy.backward(first)
    strategy.step(optimizer)
    optimizer.zero_grad()
    try:
        strategy.backward(second)
    except RuntimeError as error:
        refusal = str(error)
    else:
        return "no refusal"
    strategy.backward(loss())           # a new forward is fine
    strategy.step(optimizer)
    return refusal


@pytest.mark.parametrize("name", NAMES)
@worlds(1, 3, mpi=(2,))
def test_a_step_between_forward_and_backward_is_refused(world, name):
    for refusal in world.run(lambda comm: train_between(comm, name)):
        assert "has changed since this forward, as by an optimizer's step" in refusal
