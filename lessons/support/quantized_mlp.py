"""Lesson 24: the MLP that is trained, quantized and scored."""

import numpy as np

from minipar.autograd import no_grad
from minipar.comm import Communicator
from minipar.compress import pack_quantized
from minipar.data import Batches, digits
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch

SIZES = [64, 96, 48, 10]


def train(comm: Communicator, model: MLP, first: int, last: int, lr: float = 0.1) -> MLP:
    """Train steps first … last - 1, data-parallel."""
    strategy, data = DistributedDataParallel(model, comm), digits()
    optimizer, batches = SGD(strategy.slabs, lr, 0.9), Batches(data.train_x, data.train_y, 64, 0)
    for step in range(first, last):
        optimizer.zero_grad()
        batch = batches.batch(step)
        rows = strategy.rows(len(batch[0]))
        strategy.forward_backward([Microbatch(*(a[rows.start:rows.stop] for a in batch))], 0, step)
        strategy.step(optimizer)
    return model


def fresh(state: dict[str, np.ndarray]) -> MLP:
    """A new model with these parameters, without any strategy."""
    model = MLP(SIZES).initialize(0)
    model.load_state_dict(state)
    return model


def score(model: MLP) -> tuple[float, float]:
    """Loss in nats and accuracy on the test images."""
    data = digits()
    with no_grad():
        logits = model.logits(data.test_x)
        loss = float(model.criterion(logits, data.test_y).data)
    return loss, float(np.mean(logits.data.argmax(axis=1) == data.test_y))


def num_bytes(model: MLP) -> int:
    """The bytes of a plain or quantized model in a checkpoint."""
    plain = all(hasattr(m, "weight") and not hasattr(m, "quantized") for m in list(model)[::2])
    arrays = model.state_dict() if plain else pack_quantized(model)[0]
    return sum(array.nbytes for array in arrays.values())
