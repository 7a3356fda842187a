"""Exercises choose_algorithm and fit_line."""

from math import inf

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce, reduce_scatter
from minipar.comm.cost import Network, choose, fit
from minipar.comm.simulated.links import Link, Links

FAST, SLOW = Link(1e-6, 1e11), Link(1e-5, 1e10)
ALL_REDUCES = ("ring", "recursive_doubling", "rabenseifner")


def simulated_seconds(operation, algorithm, p, num_bytes, **links):
    """The time on the simulated cluster's clock."""
    n = num_bytes // 8
    return Cluster(p, **links).run(lambda comm: operation(comm, np.ones(n), algorithm=algorithm))[1]


# choose

@pytest.mark.parametrize("p", [2, 3, 8])
@pytest.mark.parametrize("link", [FAST, SLOW, Link(1e-3, 1e9)], ids=["fast", "slow", "far"])
def test_the_choice_is_the_fastest_of_all(p, link):
    network = Network(link, link, inf)
    for num_bytes in (8 * p, 4096 * p, 262144 * p):
        for operation, names in ((all_reduce, ALL_REDUCES),
                                 (reduce_scatter, ("ring", "recursive_halving"))):
            times = {name: simulated_seconds(operation, name, p, num_bytes, latency=link.latency,
                                             bandwidth=link.bandwidth) for name in names}
            name = choose(operation.__name__, p, num_bytes, network)
            assert times[name] <= min(times.values()) * (1 + 1e-9), \
                f"{operation.__name__} of {num_bytes} bytes on {p} ranks: {name} is not the fastest"


def test_short_arrays_want_few_rounds_and_long_few_bytes():
    network = Network(SLOW, SLOW, inf)
    assert choose("all_reduce", 8, 64, network) == "recursive_doubling"
    assert choose("all_reduce", 8, 1 << 24, network) == "rabenseifner"
    assert choose("all_reduce", 5, 1 << 24, network) == "ring"
    assert choose("broadcast", 16, 64, network) == "binomial"


def test_slow_links_between_nodes_want_the_hierarchical_one():
    assert choose("all_reduce", 24, 1 << 17, Network(FAST, SLOW, inf, (6,) * 4)) == "hierarchical"
    assert choose("all_reduce", 24, 1 << 17, Network(FAST, FAST, inf, (6,) * 4)) != "hierarchical"
    links = Links(FAST, SLOW)
    n = 1 << 14
    times = {name: Cluster(nodes=4, devices_per_node=6, links=links).run(
        lambda comm, name=name: all_reduce(comm, np.ones(n), algorithm=name))[1]
        for name in (*ALL_REDUCES, "hierarchical")}
    assert min(times, key=times.get) == "hierarchical"


def test_of_equal_ones_the_first():
    network = Network(Link(0.0, 2.0**33), SLOW, inf)
    assert choose("all_reduce", 1, 64, network) == "ring"
    assert choose("all_reduce", 4, 1 << 24, network) == "ring", \
        "without latency Rabenseifner's takes as long as the ring, which comes first"
    assert choose("all_to_all", 2, 64, network) == "pairwise"


# fit

SIZES = [8, 64, 512, 4096, 32768, 262144]


@pytest.mark.parametrize("link", [FAST, SLOW, Link(1e-3, 1e6)])
def test_a_line_is_found_exactly(link):
    found = fit(SIZES, [link.latency + n / link.bandwidth for n in SIZES])
    assert np.allclose(found.link, link, rtol=1e-6), f"{found.link} is not {link}"
    assert found.worst < 1e-9


def test_relative_errors_count():
    """The largest message is off by a tenth: much in seconds, no more than others in relation."""
    times = [1e-6 + n / 1e9 for n in SIZES]
    times[-1] *= 1.1
    latency = fit(SIZES, times).link.latency
    assert abs(latency / 1e-6 - 1) < 0.02, f"the latency came out as {latency}"


def test_the_worst_error():
    times = [1e-6 + n / 1e9 for n in SIZES]
    times[2] *= 0.8
    (latency, bandwidth), worst = fit(SIZES, times)
    errors = [abs((latency + n / bandwidth) / t - 1) for n, t in zip(SIZES, times)]
    assert np.isclose(worst, max(errors)) and 0.1 < worst < 0.25
    rng = np.random.default_rng(0)
    for _ in range(100):                        # no line near it has a smaller sum of squares
        a, b = latency * rng.uniform(0.9, 1.1), bandwidth * rng.uniform(0.9, 1.1)
        assert sum(((a + n / b) / t - 1) ** 2 for n, t in zip(SIZES, times)) >= \
            sum(e * e for e in errors) - 1e-12


def test_nothing_is_negative():
    steep = fit([10, 20, 30], [1.0, 2.5, 4.0])                  # alone: -0.5 + 0.15 n
    assert steep.link.latency == 0
    per_byte = np.array([10, 8, 7.5])                           # n / t
    assert np.isclose(1 / steep.link.bandwidth, per_byte.sum() / (per_byte**2).sum())
    falling = fit([10, 20, 30], [4.0, 3.0, 2.0])
    assert falling.link.bandwidth == inf
    assert np.isclose(falling.link.latency, (1 / 4 + 1 / 3 + 1 / 2) / (1 / 16 + 1 / 9 + 1 / 4))


@pytest.mark.parametrize(("sizes", "times"), [
    ([8], [1.0]), ([8, 8], [1.0, 1.0]), ([8, 16], [1.0]), ([8, 16], [1.0, 0.0])])
def test_what_makes_no_line_is_refused(sizes, times):
    with pytest.raises(ValueError, match="do not make a line"):
        fit(sizes, times)
