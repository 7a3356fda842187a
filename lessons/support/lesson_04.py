"""Lesson 04: the library's all-reduces, equal to the lesson's; times, crossovers, picture."""

from collections.abc import Callable
from functools import partial

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import all_reduce, sum_over_ranks
from minipar.comm.cost import Network, choose, crossings, network_of_cluster, predict, seconds_on
from minipar.comm.cost.choose import network_of
from minipar.comm.cost.measure import (
    measure_algorithms,
    measure_combining,
    measure_links,
    rows_of,
)
from minipar.comm.simulated.links import Link, Links
from minipar.viz import CostCurves, draw_crossovers

from .kit import ABOUT, AT_MOST, Lesson, Row, number
from .measuring import counted, path_of, rounds_of, seconds

NAMES = ["ring", "recursive_doubling", "rabenseifner", "hierarchical", "torus"]
SIZES = [64 * 4**k for k in range(9)]                           # bytes: 64 … 4 Mi
LINE = [64 * 2**k for k in range(19)]                           # … 16 Mi
NODES = {"nodes": 4, "devices_per_node": 6, "links": Links(Link(1e-6, 1e11), Link(1e-5, 1e10))}


def rows_for(comm: Communicator, n: int) -> list[Row]:
    """Predicted and counted costs of every algorithm on these ranks; rows on rank 0."""
    rows, p, per_node = [], comm.size, max(network_of(comm).runs)
    mine, right = np.arange(n) + float(comm.rank), p * np.arange(n) + p * (p - 1) / 2
    for name in NAMES:
        trace, total = counted(comm, partial(all_reduce, comm, mine, algorithm=name))
        assert np.array_equal(total, right), f"{name}: a wrong sum"
        cost = predict("all_reduce", name, p, n, ranks_per_node=per_node)
        if comm.rank == 0:
            rows += [Row(f"{name}: rounds", cost.rounds, rounds_of(trace, p)),
                     Row("    on the critical path", int(cost.num_bytes), path_of(trace, p), "B"),
                     Row("    messages of all ranks", cost.messages, trace.num_sent())]
    return rows


def one_round(comm: Communicator, num_bytes: int, network: Network) -> Row:
    """α + n β, and the time of a round in which all ranks send to the next at once."""
    sent, came = np.zeros(num_bytes, np.uint8), np.empty(num_bytes, np.uint8)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    took = seconds(comm, lambda: comm.sendrecv(sent, right, came, left), repeats=15)
    link = network.between if len(network.runs) > 1 else network.within
    return Row(f"one message from every rank, {num_bytes:,} bytes: α + n β",
               (link.latency + num_bytes / link.bandwidth) * 1e6, took * 1e6, "µs", "≈")


def lines_of(p: int, network: Network) -> dict[str, list]:
    """The model's seconds for each size."""
    return {name: [(n, seconds_on("all_reduce", name, p, n, network)) for n in LINE]
            for name in NAMES}


def difference(times: dict[str, list[float]], p: int, network: Network) -> Row:
    """On simulated links the model is exact, but for pieces that differ by an element."""
    return Row(f"{len(NAMES)} algorithms, {len(SIZES)} sizes: largest difference from the model",
               0.01, max(abs(seconds_on("all_reduce", name, p, n, network) - times[name][i]) * 1e6
                        for i, n in enumerate(SIZES) for name in NAMES), "µs", AT_MOST)


def dots_of(times: dict[str, list[float]]) -> dict[str, list]:
    """Measured seconds for each size."""
    return {name: list(zip(SIZES, times[name])) for name in NAMES}


def model_of(p: int, network: Network) -> list[tuple[int, str]]:
    """(bytes, algorithm) wherever the model's choice changes."""
    found = crossings(lambda num_bytes: choose("all_reduce", p, num_bytes, network), LINE)
    return [(start, name) for start, _, name in found]


def several_nodes() -> tuple[int, Network, dict]:
    """A simulated cluster of several nodes: ranks, network, the time of each algorithm."""
    cluster = Cluster(**NODES)
    times = cluster.run(partial(measure_algorithms, operation="all_reduce", sizes=SIZES,
                                num_rounds=1, names=NAMES))[0][0]
    return cluster.num_ranks, network_of_cluster(cluster, range(cluster.num_ranks)), times


def compare_with_library(lesson: Lesson, ring: Callable, double: Callable,
                         halve_and_double: Callable, on_any_number: Callable,
                         two_levels: Callable) -> None:
    """Compare the lesson's functions with the library's, count and time all of the library's."""
    comm = lesson.comm
    own = {"ring": ring, "recursive_doubling": partial(on_any_number, double),
           "rabenseifner": partial(on_any_number, halve_and_double),
           "torus": partial(two_levels, per_node=comm.size)}       # one node
    x = np.random.default_rng(comm.rank).standard_normal(1001)
    lesson.say("The library's functions work in place on flat arrays of any type. On 1,001 random "
               "numbers of each rank they agree; another order of additions may change last bits:")
    lesson.table([Row(f"{name}: largest difference from the library's", 1e-12, sum_over_ranks(
        comm, np.abs(all_reduce(comm, x, algorithm=name) - function(comm, x)).max()), "", AT_MOST)
        for name, function in own.items()])
    lesson.counts(rows_for(comm, 1000), f"Rounds, bytes and messages on {comm.size} ranks")
    if comm.rank == 0:
        for p in (3, 5):            # not powers of two, and 3 does not divide 1,000
            Cluster(p).run(partial(check, lesson))
    simulated, network = comm.is_simulated, network_of(comm)
    if not simulated:
        within, between = measure_links(comm)
        network = network._replace(combining=measure_combining(comm), **{
            name: fitted.link for name, fitted in (("within", within), ("between", between))
            if fitted})
    times = measure_algorithms(comm, "all_reduce", SIZES, 1 if simulated else 7, NAMES)
    rows = [Row(f"{name}, {n:,} bytes", seconds_on("all_reduce", name, comm.size, n, network) * 1e6,
                times[name][SIZES.index(n)] * 1e6, "µs", ABOUT)
            for n in (SIZES[0], SIZES[-1]) for name in NAMES]
    rows.append(one_round(comm, SIZES[-1] // comm.size, network))
    if simulated:
        lesson.table([difference(times, comm.size, network)], f"{comm.size} ranks", "simulated")
    else:
        lesson.table(rows, "seconds")
        lesson.say("The model is off, especially for long arrays: α and β were fitted to a "
                   "ping-pong of **two** ranks while the others slept. In an all-reduce all ranks "
                   "send, receive and add at once, and share the cores and the memory that the "
                   "pair had to itself. The last row shows this in a single round, without any "
                   "algorithm.")
    if comm.rank == 0:
        compare(lesson, comm.size, network, times, simulated)


def check(lesson: Lesson, comm: Communicator) -> None:
    """Assert the rows of `rows_for` on all ranks, without printing them."""
    assert all(row.holds() for row in rows_for(comm, 1000)), f"p = {comm.size}"


def compare(lesson: Lesson, p: int, network: Network, times: dict, simulated: bool) -> None:
    """Show where the curves cross, here and on a cluster of four nodes; draw the picture."""
    q, its_network, its_times = several_nodes()
    lesson.table([difference(its_times, q, its_network)], "4 nodes of 6 ranks", "simulated")
    lesson.grid([f"{SIZES[-1]:,} bytes on 4 nodes of 6", "µs"],
                [(name, number(its_times[name][-1] * 1e6)) for name in NAMES])
    lesson.say("Between nodes **hierarchical** and **torus** send equally many bytes, 2n(N − 1)/N "
               "for each node. But in torus all six ranks of a node send, each over its own link; "
               "in hierarchical one sends and five wait. Within a node torus also sends pieces "
               "instead of all n bytes. If the ranks of a node share one network card, only this "
               "second advantage remains.")
    found = [(start, names[0]) for start, names in rows_of(SIZES, times) if start]
    here, there = model_of(p, network), model_of(q, its_network)
    for where, first, crossed in (
            ("Model, these ranks", choose("all_reduce", p, LINE[0], network), here),
            ("By the clock, these ranks", min(times, key=lambda name: times[name][0]), found),
            ("Model, 4 nodes of 6", choose("all_reduce", q, LINE[0], its_network), there)):
        lesson.say(f"{where}: **{first}**" + "".join(
            f", **{name}** from {start:,} bytes" for start, name in crossed) + ".")
    kind, found_by = ("simulated", "its clock") if simulated else ("real", "measured")
    lesson.picture(lambda path: draw_crossovers(path, [
        CostCurves(f"{p} {kind} ranks: the model", lines_of(p, network), {}, here),
        CostCurves(f"{p} {kind} ranks: {found_by}", {}, dots_of(times), found),
        CostCurves("4 nodes of 6 simulated ranks", lines_of(q, its_network), dots_of(its_times),
               there)], "All-reduce: which wins when?"))
