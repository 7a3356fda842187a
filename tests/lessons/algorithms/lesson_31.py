"""Lesson 31; `size` is the number of steps, which remember what the ones before left out."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.parallel.wire_formats.gradient_compression import signs as by_signs
from minipar.parallel.wire_formats.gradient_compression.powersgd import PowerSGD
from minipar.parallel.wire_formats.gradient_compression.signs import Signs
from minipar.parallel.wire_formats.gradient_compression.top_k import DGC
from tests.lessons.algorithms import Case, says


def gradients(comm, steps):
    """This rank's, (steps, 8 p, 8)."""
    return np.random.default_rng((steps, comm.rank)).standard_normal((steps, 8 * comm.size, 8))


def own_dgc(dgc, comm, steps, names):
    u, v = np.zeros((2, 8 * comm.size, 8))
    return [dgc(comm, g, u, v, 4 * comm.size, 0.9) for g in gradients(comm, steps)]


def own_powersgd(power_sgd, comm, steps, names):
    from support.lesson_31 import first_q
    error = np.zeros((8 * comm.size, 8))
    q = first_q(error.shape, 2)
    return [power_sgd(comm, g, error, q) for g in gradients(comm, steps)]


def own_signs(signs, comm, steps, names):
    error, owner_error = np.zeros(64 * comm.size), np.zeros(64)
    return [signs(comm, g.ravel(), error, owner_error).reshape(g.shape)
            for g in gradients(comm, steps)]


def by_wire(make):
    def run(comm, steps):
        from support.lesson_31 import library_sums
        return library_sums(comm, make(), gradients(comm, steps))
    return run


def own_outer(diloco, comm, steps, names):
    from support.lesson_31 import own_outer_steps
    return own_outer_steps(comm, diloco, gradients(comm, steps))


def library_outer(comm, steps):
    from support.lesson_31 import library_outer_steps
    return library_outer_steps(comm, gradients(comm, steps))


def told(function, comm, size, names):
    """What a message says: both functions together."""
    numbers = gradients(comm, size).ravel()
    message = names["encode"](numbers, np.array([2.5]))
    assert message.size == 8 + numbers.size // 8
    return names["decode"](message)


def told_by_library(comm, size):
    numbers = gradients(comm, size).ravel()
    return by_signs.decode(by_signs.encode(numbers, np.array([2.5])), numbers.size, numbers)


CASES = [
    Case("dgc", own_dgc, by_wire(lambda: DGC(1 / 16)), (1, 4), 1e-12),
    Case("power_sgd", own_powersgd, by_wire(lambda: PowerSGD(2, start=0, min_rate=0)), (1, 4),
         1e-12),
    Case("signs", own_signs, by_wire(Signs), (1, 4), 1e-12),
    Case("encode", told, told_by_library, (1, 3)),
    Case("decode", told, told_by_library, (1, 3)),
    Case("diloco", own_outer, library_outer, (1, 4), 1e-12),
]


def check_change(names):
    """Dense and unmasked, DGC is SGD with momentum; masked it is SGD without.  And other answers.
    """
    def body(comm, dgc):
        u, v = np.zeros((2, 8 * comm.size, 8))
        return [dgc(comm, g, u, v, g.size, 0.9) for g in gradients(comm, 4)]

    def summed(comm, momentum):
        """The step of SGD with this momentum, by the sum of all ranks' gradients."""
        total, found = 0, []
        for parts in zip(*[np.random.default_rng((4, r)).standard_normal((4, 8 * comm.size, 8))
                           for r in range(comm.size)]):
            total = momentum * total + sum(parts)
            found.append(total)
        return found

    def check(comm):
        from runpy import run_path
        right = run_path(names["__file__"])["dgc"]
        for dgc, momentum in ((names["dgc"], 0.9), (right, 0.0)):
            np.testing.assert_allclose(body(comm, dgc), summed(comm, momentum), atol=1e-12)
    Cluster(4).run(check)
    says("31", "SGD with momentum: u is never cut off", "SGD without any momentum")

    def ring(num_bytes, rings=1):
        """(ms of the bytes, ms of the latency) of rings over 8 nodes."""
        return 1e3 * 2 * 7 / 8 * num_bytes / 12.5e6, rings * 14 * 0.5
    large, small, factors = ring(4 * 4096**2), ring(4 * 64**2), ring(4 * 4 * 2 * 4096, 2)
    assert large == (pytest.approx(9400, rel=1e-2), 7) and sum(factors) == pytest.approx(32, 0.02)
    assert sum(large) / sum(factors) == pytest.approx(290, rel=0.01)
    assert sum(small) == pytest.approx(9.3, 0.01)
    assert sum(ring(4 * 4 * 2 * 64, 2)) == pytest.approx(14.3, 0.01)
    says("31", "are 9.4 s", "14 ms: 32 ms, 290 times less", "= 9.3 ms", "= 14.3 ms")
