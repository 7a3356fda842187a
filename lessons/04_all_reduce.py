"""Lesson 04. All-reduce: which wins when?

    seconds = rounds · α + bytes / β          n bytes on p ranks = m nodes of g, powers of two

    ring                 2(p - 1)               2n(p - 1)/p               fewest bytes, any p
    recursive doubling   log₂ p                 n log₂ p                  fewest rounds
    Rabenseifner         2 log₂ p               2n(p - 1)/p               both, nearly
    hierarchical         2 log₂ g + 2 log₂ m    2n log₂ g + 2n(m - 1)/m   few bytes between nodes

Few rounds win while α decides, few bytes while β does; in between the curves cross.  Where p is a
power of two, doubling is hierarchical by itself: near ranks first.  Six ranks a node spoil that.

    python lessons/04_all_reduce.py          mpirun -n 4 python lessons/04_all_reduce.py
"""

from functools import partial
from math import inf

import numpy as np
from kit import Lesson, Row

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import agree_on_sum, all_reduce, gather_trace
from minipar.comm.collectives.automatic import network_of
from minipar.comm.cost import Network, choose, crossings, network_of_cluster, predict, seconds_on
from minipar.comm.measure import measure_algorithms, measure_combining, measure_links, rows_of
from minipar.comm.replay import replay
from minipar.comm.topology import Link, Links
from minipar.launch import launch
from minipar.viz import Curves, draw_crossovers

NAMES = ["ring", "recursive_doubling", "rabenseifner", "hierarchical"]
SIZES = [64 * 4**k for k in range(9)]                           # bytes: 64 … 4 Mi
LINE = [64 * 2**k for k in range(19)]                           # … 16 Mi
NODES = {"nodes": 4, "devices_per_node": 6, "links": Links(Link(1e-6, 1e11), Link(1e-5, 1e10))}


def counted(comm: Communicator, name: str, n: int) -> tuple[int, int, int]:
    """(rounds, bytes on the critical path, messages) of one all-reduce of n float64; asserts the
    sum.  The trace is played on links where only rounds, and where only bytes, take time."""
    p = comm.size
    comm.start_trace(replay=True)
    total = all_reduce(comm, np.arange(n) + float(comm.rank), algorithm=name)
    trace = comm.stop_trace()
    assert np.array_equal(total, p * np.arange(n) + p * (p - 1) / 2), f"{name}: a wrong sum"
    messages = int(agree_on_sum(comm, trace.num_sent()))
    whole, found = gather_trace(comm, trace), np.zeros(2)
    if comm.rank == 0:
        found[:] = (replay(whole, Cluster(p, latency=1, bandwidth=inf), compute=0),
                    replay(whole, Cluster(p, latency=0, bandwidth=1), compute=0))
    rounds, num_bytes = all_reduce(comm, found, algorithm="ring")
    return int(rounds), int(num_bytes), messages


def rows_for(comm: Communicator, n: int) -> list[Row]:
    """Counted against derived, for every algorithm on these ranks."""
    rows, per_node = [], max(network_of(comm).runs)
    for name in NAMES:
        cost = predict("all_reduce", name, comm.size, n, ranks_per_node=per_node)
        for what, predicted, measured in zip(("rounds", "bytes", "messages"),
                                             (cost.rounds, cost.num_bytes, cost.messages),
                                             counted(comm, name, n)):
            rows.append(Row(f"{name}: {what}", int(predicted), measured))
    return rows


def lines_of(p: int, network: Network) -> dict[str, list]:
    """The model's seconds over bytes."""
    return {name: [(n, seconds_on("all_reduce", name, p, n, network)) for n in LINE]
            for name in NAMES}


def dots_of(times: dict[str, list[float]]) -> dict[str, list]:
    """Measured seconds over bytes."""
    return {name: list(zip(SIZES, times[name])) for name in NAMES}


def model_of(p: int, network: Network) -> list[tuple[int, str]]:
    """From how many bytes on which algorithm is the model's choice, beginning with the second."""
    found = crossings(lambda num_bytes: choose("all_reduce", p, num_bytes, network), LINE)
    return [(start, name) for start, _, name in found]


def several_nodes() -> tuple[int, Network, dict]:
    """A simulated cluster of several nodes: ranks, network, and what its clock says of each."""
    cluster = Cluster(**NODES)
    times = cluster.run(partial(measure_algorithms, operation="all_reduce", sizes=SIZES,
                                num_rounds=1, names=NAMES))[0][0]
    return cluster.num_ranks, network_of_cluster(cluster, range(cluster.num_ranks)), times


def main(comm: Communicator) -> None:
    """See the module."""
    lesson = Lesson(comm, __file__, "All-reduce: which wins when?", 2)
    lesson.table(rows_for(comm, 1000), f"1,000 float64 on {comm.size} ranks")
    if comm.rank == 0:
        for p in (3, 5):            # no powers of two, and 1,000 is no multiple of 3
            Cluster(p).run(partial(check, lesson))
    simulated, network = hasattr(comm, "cluster"), network_of(comm)
    if not simulated:
        within, between = measure_links(comm)
        network = network._replace(combining=measure_combining(comm), **{
            name: fitted.link for name, fitted in (("within", within), ("between", between))
            if fitted})
    times = measure_algorithms(comm, "all_reduce", SIZES, 1 if simulated else 15, NAMES)
    rows = [Row(f"{name}, {n:,} bytes", seconds_on("all_reduce", name, comm.size, n, network) * 1e6,
                times[name][SIZES.index(n)] * 1e6, "µs", "≈")
            for n in (SIZES[0], SIZES[-1]) for name in NAMES]
    lesson.table(rows, "seconds")
    if comm.rank == 0:
        compare(lesson, comm.size, network, times, simulated)
    lesson.takeaway("Few rounds for short arrays, few bytes for long ones, and few bytes over the "
                    "slow links: no all-reduce is best, so choose by size, ranks and links.")
    lesson.exercises(questions=[
        "A ring has the fewest bytes for any p, also for p = 5. Why does Rabenseifner's not?",
        "`minipar calibrate`, under mpirun (see the README), measures all collectives on these "
        "ranks. Does it agree?"])


def check(lesson: Lesson, comm: Communicator) -> None:
    """`rows_for` other numbers of ranks, asserted on all of them and not printed."""
    assert all(row.holds() for row in rows_for(comm, 1000)), f"p = {comm.size}"


def compare(lesson: Lesson, p: int, network: Network, times: dict, simulated: bool) -> None:
    """Where the curves cross, here and on a cluster of four nodes; the picture."""
    q, its_network, its_times = several_nodes()
    for name in NAMES:              # on simulated links the model is no approximation
        model = [seconds_on("all_reduce", name, q, n, its_network) for n in SIZES]
        assert np.allclose(its_times[name], model, rtol=1e-9), name
    found = [(start, names[0]) for start, names in rows_of(SIZES, times) if start]
    here, there = model_of(p, network), model_of(q, its_network)
    for where, first, crossed in (
            ("Model, these ranks", choose("all_reduce", p, LINE[0], network), here),
            ("Measured, these ranks", min(times, key=lambda name: times[name][0]), found),
            ("Model, 4 nodes of 6", choose("all_reduce", q, LINE[0], its_network), there)):
        lesson.say(f"{where}: **{first}**" + "".join(
            f", **{name}** from {start:,} bytes" for start, name in crossed) + ".")
    kind = "simulated" if simulated else "real"
    lesson.picture(lambda path: draw_crossovers([
        Curves(f"{p} {kind} ranks: the model", lines_of(p, network), {}, here),
        Curves(f"{p} {kind} ranks: measured", {}, dots_of(times), found),
        Curves("4 nodes of 6 simulated ranks", lines_of(q, its_network), dots_of(its_times),
               there)], path, "All-reduce: which wins when?"))


if __name__ == "__main__":
    launch(main)
