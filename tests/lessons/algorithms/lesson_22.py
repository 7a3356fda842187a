"""Lesson 22; `size` is the number of numbers, or of steps."""

from types import SimpleNamespace

import numpy as np
import pytest

from minipar.comm import Cluster, Deadlock
from minipar.comm.collectives import all_reduce
from minipar.mixed_precision import LossScaler, unscale
from minipar.number_formats import BFLOAT16, FLOAT16
from tests.lessons.algorithms import Case, says, waits


def floats(comm, size):
    """Numbers of all sizes, ties, and those around the ends of float16."""
    rng = np.random.default_rng(comm.rank)
    ends = np.float32([0, 2**-25, 2**-14, 1 + 2**-8, 1 + 3 * 2**-8, 65519, 65520, 1e30, np.inf])
    x = rng.standard_normal(size, np.float32) * np.exp2(rng.integers(-40, 20, size))
    return np.concatenate([ends, -ends, x.astype(np.float32)])


def on_floats(function, comm, size, names):
    return function(floats(comm, size))


def drop_digits(function, comm, size, names):
    return function(floats(comm, size), 16)


def many_times(rounded):
    """Smallest, largest and mean of many random roundings."""
    return [rounded.min(0), rounded.max(0), rounded.mean(0)]


def in_1_to_2(comm, size):
    return np.tile(1 + np.random.default_rng(comm.rank).random(size, np.float32), (4096, 1))


def at_random(function, comm, size, names):
    return many_times(function(in_1_to_2(comm, size), np.random.default_rng(1)))


def samples(comm, size):
    """Weights, this rank's rows, their targets."""
    rng = np.random.default_rng(comm.rank)
    return (np.linspace(-1, 1, size, dtype=np.float32), rng.random((6, size), np.float32),
            rng.random(6, np.float32))


def own_gradient(function, comm, size, names):
    return function(*samples(comm, size), 2.0**30)


def library_gradient(comm, size):
    w, x, y = samples(comm, size)
    error = FLOAT16.round((x @ FLOAT16.round(w) - y) * np.float32(2.0**30 / 2**29))
    return FLOAT16.round(x.T @ error)


def own_step(function, comm, size, names):
    """A step without overflow, and one that overflows on the last rank only."""
    found = []
    for is_bad in (False, True):
        w, grad = np.ones(size, np.float32), np.arange(size) + np.float32(comm.rank)
        if is_bad and comm.rank == comm.size - 1:
            grad[0] = np.inf
        after, overflow = function(comm, w, grad, 4.0)
        found += [after, float(overflow)]
    return found


def library_step(comm, size):
    found = []
    for is_bad in (False, True):
        grad = np.arange(size) + np.float32(comm.rank)
        if is_bad and comm.rank == comm.size - 1:
            grad[0] = np.inf
        grad = all_reduce(comm, grad)
        slab = SimpleNamespace(complete_grad=lambda grad=grad: grad)
        finite = unscale(SimpleNamespace(slabs=[slab], comm=comm), 4.0)
        w = np.ones(size, np.float32)
        found += [w - np.float32(2**-5 * 2**29) * grad if finite else w, float(not finite)]
    return found


def overflows(size):
    return np.random.default_rng(size).random(size) < 0.3


def own_scales(function, comm, size, names):
    scale, good, found = 2.0**16, 0, []
    for overflow in overflows(size):
        scale, good = function(scale, good, overflow, 2)
        found.append(scale)
    return np.array(found)


def library_scales(comm, size):
    scaler, found = LossScaler(interval=2), []
    for overflow in overflows(size):
        scaler.update(bool(overflow))
        found.append(scaler.scale)
    return np.array(found)


CASES = [
    Case("drop", drop_digits, lambda comm, size: BFLOAT16.round(floats(comm, size)), (0, 1000)),
    Case("bfloat16", on_floats, lambda comm, size: BFLOAT16.round(floats(comm, size)), (0, 1000)),
    Case("float16", on_floats, lambda comm, size: FLOAT16.round(floats(comm, size)), (0, 1000)),
    Case("bfloat16_at_random", at_random, lambda comm, size: many_times(BFLOAT16.round(
        in_1_to_2(comm, size), np.random.default_rng(2))), (1, 7), 4 * 2.0**-7 / 2 / 64 * 2**0.5),
    Case("gradient", own_gradient, library_gradient, (1, 7)),
    Case("step", own_step, library_step, (1, 7)),
    Case("next_scale", own_scales, library_scales),
]


def check_change(names):
    """Rank 3 alone skips three steps, moves 8 times as far, and is done; the others wait for it."""
    step, next_scale, gradient = names["step"], names["next_scale"], names["gradient"]
    skipped, weights = [0] * 4, [[], [], [], []]

    def body(comm):
        x, y = np.ones((1, 4), np.float32), np.float32([12 if comm.rank == 3 else 1])
        w, scale, good = np.zeros(4, np.float32), 2.0**44, 0
        for _ in range(5):
            w, overflow = step(comm, w, gradient(w, x, y, scale), scale)
            scale, good = next_scale(scale, good, overflow, 100)
            skipped[comm.rank] += overflow
            if not overflow:
                weights[comm.rank].append(w[0])
    with pytest.raises(Deadlock) as report:
        Cluster(4).run(body)
    assert waits(report)[0] == ("receive", 3) and 3 not in waits(report)
    assert skipped == [0, 0, 0, 3] and [len(done) for done in weights] == [2] * 4
    assert [done[0] / weights[0][0] for done in weights] == [1, 1, 1, 8]
    says("22", "Only rank 3 overflows. It skips three steps", "8 times as far as the others do",
         "they wait for rank 3 for ever")
