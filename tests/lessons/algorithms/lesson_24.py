"""Lesson 24; `size` is the number of inputs, or of steps of training."""

import numpy as np

from minipar.comm import Cluster
from minipar.compress import Granularity, IntGrid, affine_matmul, prepare_qat
from minipar.compress.quantization.gptq import gptq, hessian
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from tests.lessons.algorithms import Case, says

BITS = (2, 4, 8)


def weight(comm, size):
    """(size, 5); the last column has no negative number."""
    w = np.random.default_rng(comm.rank).standard_normal((size, 5))
    return np.concatenate([w[:, :4], np.abs(w[:, 4:])], axis=1)


def own_qparams(function, comm, size, names):
    return [part for bits in BITS for part in function(weight(comm, size), bits, 0)]


def library_qparams(comm, size):
    w = weight(comm, size)
    return [part.astype(float) for bits in BITS for part in IntGrid(
        bits, "asymmetric").calculate_qparams(w.min(0), w.max(0))]


def own_codes(function, comm, size, names):
    """Of numbers that go beyond the grid, too."""
    w = weight(comm, size)
    return [function(2 * w, *names["scale_and_zero"](w, bits, 0), bits) for bits in BITS]


def library_codes(comm, size):
    w, found = weight(comm, size), []
    for bits in BITS:
        grid = IntGrid(bits, "asymmetric")
        found.append(grid.encode(2 * w, *grid.calculate_qparams(w.min(0), w.max(0))).astype(int))
    return found


def codes(comm, size):
    draw = np.random.default_rng(comm.rank)
    return draw.integers(0, 256, (3, size)), 7, draw.integers(0, 256, (size, 5)), np.arange(5)


def own_values(function, comm, size, names):
    return function(codes(comm, size)[2], np.linspace(0.1, 1, 5), np.arange(5))


def own_product(function, comm, size, names):
    return function(*codes(comm, size))


def library_product(comm, size):
    a, za, b, zb = codes(comm, size)
    byte = np.uint8
    return affine_matmul(a.astype(byte), np.full((1, 1), za, byte), b.astype(byte),
                         zb.astype(byte)[None])


def inputs(comm, size):
    return np.random.default_rng(comm.rank + 9).standard_normal((40, size))


def own_gptq(function, comm, size, names):
    return [function(weight(comm, size)[:, 0], inputs(comm, size), bits) for bits in BITS]


def library_gptq(comm, size):
    w, h = weight(comm, size)[:, :1].T, hessian(inputs(comm, size))
    return [gptq(w, h, IntGrid(bits, "asymmetric"), Granularity("channel")).rows()[0]
            for bits in BITS]


def training_data():
    draw = np.random.default_rng(0)
    return draw.normal(0, 0.5, (2, 8, 8)), draw.random((20, 8)), draw.integers(0, 8, 20)


def own_training(function, comm, steps, names):
    weights, x, labels = training_data()
    return function(comm, list(weights), x, labels, 4, steps)[0]


def library_training(comm, steps):
    """Without biases: their gradients are set to 0."""
    from support.plain_mlp import mlp_of
    weights, x, labels = training_data()
    model = mlp_of(weights)
    strategy = make_strategy("ddp", prepare_qat(model, IntGrid(4, "asymmetric")), comm)
    optimizer, mine = SGD(strategy.slabs, 0.2), np.array(strategy.rows(20), int)
    for _ in range(steps):
        optimizer.zero_grad()
        strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
        strategy.step(optimizer)
        for i in range(2):
            model[2 * i].bias.data[...] = 0
    return [strategy.state_dict()[f"{2 * i}.weight"] for i in range(2)]


CASES = [
    Case("scale_and_zero", own_qparams, library_qparams, (1, 24), 1e-6),
    Case("encode", own_codes, library_codes, (7, 24)),
    Case("decode", own_values, lambda comm, size: IntGrid(8, "asymmetric").decode(
        codes(comm, size)[2], np.linspace(0.1, 1, 5), np.arange(5)), (1, 24), 1e-12),
    Case("product", own_product, library_product, (1, 24)),
    Case("gptq", own_gptq, library_gptq, (7, 24), 1e-5),
    Case("train", own_training, library_training, (1, 3), 1e-6),
]
PARTS = {"fake_quantized"}


def check_change(names):
    """No weight moves, and the loss stays."""
    weights, x, labels = training_data()
    for p in (1, 4):
        for found, losses in Cluster(p).run(
                lambda comm: names["train"](comm, list(weights), x, labels, 2, 5))[0]:
            assert np.array_equal(found, weights) and losses[0] == losses[-1]
    says("24", "no weight moves", "the loss after 50 steps is the loss before")
