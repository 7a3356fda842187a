"""Lesson 23; `size` is the number of columns of a weight."""

import numpy as np

from minipar.comm import Cluster
from minipar.compress.pruning.distributed_topk import kth_smallest, mark_k_smallest, sortable_keys
from minipar.compress.pruning.masks import Masks
from minipar.compress.pruning.shrink import shrink
from minipar.compress.pruning.structured import unit_masks
from minipar.compress.pruning.two_of_four import n_of_m
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from tests.lessons.algorithms import Case, says


def weight(comm, size):
    """This rank's part (16, size) of all weights."""
    return np.random.default_rng(comm.rank).standard_normal((16, size))


def lengths(comm, size):
    return np.abs(weight(comm, size)).astype(np.float32).ravel()


def half(comm, size):
    return comm.size * 16 * size // 2


def own_kth(function, comm, size, names):
    return function(comm, lengths(comm, size), half(comm, size))


def library_kth(comm, size):
    key = kth_smallest(sortable_keys(lengths(comm, size)), half(comm, size), 4, comm).key
    return np.uint32(key - 1).view(np.float32)


def own_mask(function, comm, size, names):
    return function(comm, weight(comm, size), half(comm, size)).astype(int)


def library_mask(comm, size):
    keys = sortable_keys(lengths(comm, size))
    places = comm.rank * keys.size + np.arange(keys.size)
    gone = mark_k_smallest(keys, places, half(comm, size), comm.size * keys.size, comm)
    return (~gone).astype(int).reshape(16, size)


def own_fours(function, comm, size, names):
    return function(weight(comm, size)).astype(int)


def model_of(weights):
    from support.plain_mlp import mlp_of
    return mlp_of(weights)


def own_small(function, comm, size, names):
    return function(weight(comm, size), weight(comm, 16).T[:1].repeat(size, 0), size // 2)


def library_small(comm, size):
    model = model_of([weight(comm, size), weight(comm, 16).T[:1].repeat(size, 0)])
    Masks(model, unit_masks(model, (size // 2) / size))
    small, _ = shrink(model)
    return [small[0].weight.data, small[2].weight.data]


def training_data(size):
    rng = np.random.default_rng(size)
    weights = rng.normal(0, 0.5, (3, 8, 8))
    return weights, rng.random((3, 8, 8)) < 0.5, rng.random((20, 8)), rng.integers(0, 8, 20)


def own_training(function, comm, steps, names):
    return list(function(comm, *training_data(steps), steps))


def library_training(comm, steps):
    weights, masks, x, labels = training_data(steps)
    model = model_of(weights)
    names = [f"{2 * i}.weight" for i in range(3)]
    biases = {f"{2 * i}.bias": np.zeros(8, bool) for i in range(3)}     # the lesson has none
    Masks(model, {**dict(zip(names, masks)), **biases})
    strategy = make_strategy("ddp", model, comm)
    optimizer, mine = SGD(strategy.slabs, 0.5), np.array(strategy.rows(20), int)
    for _ in range(steps):
        optimizer.zero_grad()
        strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
        strategy.step(optimizer)
    return [strategy.state_dict()[name] for name in names]


CASES = [
    Case("kth_smallest", own_kth, library_kth, (1, 7)),
    Case("magnitude", own_mask, library_mask, (1, 7)),
    Case("two_of_four", own_fours, lambda comm, size: n_of_m(np.abs(weight(comm, size))).astype(
        int), (1, 7)),
    Case("without_neurons", own_small, library_small, (2, 8)),
    Case("train", own_training, library_training, (1, 3), 1e-13),
]
PARTS = {"masked"}


def check_change(names):
    """Kept weights train as before, and the pruned ones move, though no output depends on them."""
    weights, masks, x, labels = training_data(3)
    for p in (1, 4):
        right = np.array(Cluster(p).run(lambda comm: library_training(comm, 3))[0])
        found = np.array(Cluster(p).run(
            lambda comm: names["train"](comm, weights, masks, x, labels, 3))[0])
        assert np.allclose(found * masks, right * masks, rtol=0, atol=1e-13)
        assert np.all(right[:, ~masks] == weights[~masks])
        assert np.mean(found[:, ~masks] != weights[~masks]) > 0.5
    says("23", "Only the pruned weights change", "the kept weights train as before")
