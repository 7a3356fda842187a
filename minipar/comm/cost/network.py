"""The network of a communicator, and the seconds that an algorithm takes on it.

    node 0  [0]══[1]──────[2]══[3]  node 1        ══ within     ── between (slower)

    recursive doubling      1 round ══ , 1 round ──           near ranks first, then far ones
    ring                    every round lasts as long as ──
    hierarchical            2 rounds ══ , 2 rounds ── of half the bytes, by one rank of each node
    torus                   2 rounds ══ of half the bytes, 2 rounds ── of a quarter, by all ranks

Up to 64 ranks the time is simulated round by round, each message on its own link.  For more ranks
the closed forms of the textbook are used, if the algorithm has one.  An algorithm with a `pattern`
has rounds within nodes and rounds between nodes.  This holds if the numbers of nodes and of ranks
per node are powers of two.  An algorithm with `parts` is the sum of these.  In all other cases
on several nodes every round counts as slow, an upper bound.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from ..algorithms import ALGORITHMS, HALVING
from ..collectives.broadcast import BANDWIDTH, LATENCY
from ..simulated.links import Link
from .alpha_beta import Cost, duration, seconds
from .predict import Call, rounds_of
from .textbook import textbook

MOST_BY_ROUNDS = 64     # ranks
COMBINING = 1e10        # bytes per second, if nothing else is known


class Network(NamedTuple):
    """The links of a communicator, the same value on all its ranks.

    `within` is the slowest link between two ranks of a node, `between` that between two nodes.
    `combining` is the bytes per second that a rank adds up.  `runs` are the numbers of consecutive
    ranks that share a node; if it is empty, all ranks share one.
    """

    within: Link = Link(LATENCY, BANDWIDTH)
    between: Link = Link(LATENCY, BANDWIDTH)
    combining: float = COMBINING
    runs: tuple[int, ...] = ()


UNKNOWN = Network()


def run_lengths(nodes: Sequence[int]) -> tuple[int, ...]:
    """The lengths of runs of equal numbers: 0 0 0 1 1 2 gives 3, 2, 1."""
    return tuple(sum(1 for _ in run) for _, run in groupby(nodes))


def network_of_cluster(cluster: Any, members: Sequence[int]) -> Network:
    """The network of the ranks `members` (world numbers) of a simulated cluster that runs.

    Combining is free there: collectives do not report their sums to the cluster as computation.
    """
    common = Link(cluster.latency, cluster.bandwidth)
    within, between = cluster.links.slowest(members) if cluster.links else (common, common)
    return Network(within, between, float("inf"),
                   run_lengths([rank // cluster.devices_per_node for rank in members]))


def seconds_on(operation: str, algorithm: str, p: int, num_bytes: int, network: Network) -> float:
    """Seconds that the algorithm takes on `p` ranks joined by `network`, root 0.

    `num_bytes` counts the whole vector, see `predict`.  Raises ValueError for an algorithm without
    a known cost.
    """
    runs = network.runs or (p,)
    entry = ALGORITHMS.get(operation, {}).get(algorithm)
    if p <= MOST_BY_ROUNDS or not (entry and (entry.form or entry.parts)):
        node = [number for number, length in enumerate(runs) for _ in range(length)]
        # Segments of a chain are chosen by bytes, so an element is a byte.
        rounds = rounds_of(operation, algorithm, Call(p, num_bytes, itemsize=1, node_sizes=runs))
        return duration(rounds, p, network.combining, lambda source, dest: (
            network.within if node[source] == node[dest] else network.between))
    return sum(seconds(cost, link.latency, link.bandwidth, network.combining)
               for cost, link in closed_parts(operation, algorithm, p, num_bytes, network))


def closed_parts(operation: str, algorithm: str, p: int, num_bytes: float,
                 network: Network) -> list[tuple[Cost, Link]]:
    """The textbook's cost of each part of the algorithm, with the link that it uses."""
    within, between, case = network.within, network.between, (operation, algorithm)
    runs = network.runs or (p,)
    num_nodes, largest = len(runs), max(runs)
    entry = ALGORITHMS[operation][algorithm]
    if entry.parts:
        return [(textbook(*part), within if link == "within" else between)
                for link, part in entry.parts(runs, num_bytes)]
    splits = num_nodes > 1 and num_nodes * largest == p and p.bit_count() == 1
    if splits and entry.pattern:
        near = num_bytes / num_nodes if entry.pattern == HALVING else num_bytes
        return [(textbook(*case, largest, near), within),
                (textbook(*case, num_nodes, num_bytes), between)]
    slowest = within if num_nodes == 1 else between if largest == 1 else within.worse(between)
    return [(textbook(*case, p, num_bytes), slowest)]
