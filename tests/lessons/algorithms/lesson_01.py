"""Lesson 01."""

import numpy as np

from minipar.comm import Cluster, collectives
from minipar.comm.cost import fit
from tests.lessons.algorithms import Case, numbers, says


def times_of(size):
    """Seconds of messages, a line with noise, and their bytes."""
    n = np.array([8 * 4**k for k in range(8 + size)])      # so that no part is negative
    return n, (5e-6 + n * 1e-10) * (1 + 0.1 * np.random.default_rng(size).random(len(n)))


def library_fit(comm, size):
    link, _ = fit(*times_of(size))
    return [link.latency, 1 / link.bandwidth]


def from_the_left(function, comm, size, names):
    """Of a rank alone only what does not wait for itself."""
    x = numbers(comm, size)
    return x if comm.size == 1 else function(comm, x)


def gathered_from_the_left(comm, size):
    return collectives.all_gather(comm, numbers(comm, size)[None])[comm.rank - 1]


CASES = [
    Case("fit", lambda function, comm, size, names: function(*times_of(size)), library_fit,
         (0, 1, 6), 1e-15),
    Case("at_once", from_the_left, gathered_from_the_left),
    Case("without_waiting", from_the_left, gathered_from_the_left),
    Case("in_turn", from_the_left, gathered_from_the_left),
]
PARTS = {"neighbours", "ping_pong", "send_first"}


def check_change(names):
    """It ends, after p rounds, with what the left rank has."""
    for p in (2, 3, 4, 7):
        found, rounds = Cluster(p, latency=1, bandwidth=np.inf).run(
            lambda comm: names["in_turn"](comm, np.full(3, comm.rank))[0])
        assert found == [(rank - 1) % p for rank in range(p)] and rounds == p
    says("01", "It still ends", "but after p rounds")
