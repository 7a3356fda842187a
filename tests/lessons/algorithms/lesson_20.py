"""Lesson 20; `size` is the number of layers.  Each rank works by itself."""

import math
from functools import partial

import numpy as np

from tests.lessons.algorithms import Case, says


def data(layers):
    rng = np.random.default_rng(layers)
    return rng.normal(0, 0.7, (layers, 5, 5)), rng.random((7, 5)), rng.integers(0, 5, 7)


def chain_of(names, layers):
    """Layers, their weights, and a backward from an output."""
    weights, x, labels = data(layers)
    ws = [names["Tensor"](w) for w in weights]

    def layer(w, h):
        return names["linear"](names["relu"](h), w)

    def gradients(y):
        names["backward"](names["cross_entropy"](y, labels, 7))
        return [w.grad for w in ws]
    return [partial(layer, w) for w in ws], names["Tensor"](x), gradients


def kept(function, comm, layers, names):
    chain, x, gradients = chain_of(names, layers)
    return gradients(function(chain, x))


def in_one(function, comm, layers, names):
    """All layers as one checkpoint."""
    chain, x, gradients = chain_of(names, layers)
    return gradients(function(partial(names["run_all"], chain), x))


def in_several(function, comm, layers, names):
    chain, x, gradients = chain_of(names, layers)
    size = math.isqrt(layers)
    return gradients(function(chain, [*range(size, layers, size), layers], x))


def by_library(comm, layers):
    from support.lesson_20 import library_gradients
    return library_gradients(*data(layers))


def fewest(function, comm, layers, names):
    peak, ends = function([1] * layers)
    assert ends[-1] == layers and [*ends] == sorted(set(ends))
    return np.array(peak)


def library_fewest(comm, layers):
    from support.lesson_20 import fewest_arrays
    return np.array(fewest_arrays(layers))


CASES = [
    Case("run_all", kept, by_library, (1, 4), 1e-14),
    Case("checkpoint", in_one, by_library, (1, 4), 1e-14),
    Case("in_segments", in_several, by_library, (1, 4, 9), 1e-14),
    Case("best_ends", fewest, library_fewest, (4, 16, 30)),
]


def check_change(names):
    """Only the last segment's gradients are right."""
    chain, x, gradients = chain_of(names, 6)
    found = gradients(names["in_segments"](chain, [2, 4, 6], x))
    wrong = [np.abs(a - b).max() > 1e-3 * np.abs(b).max()
             for a, b in zip(found, by_library(None, 6))]
    assert wrong == [True] * 4 + [False] * 2
    says("20", "Only the last segment's gradients are right")
