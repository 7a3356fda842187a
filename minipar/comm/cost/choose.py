"""What algorithm="auto" means: which algorithm a communicator takes for how many bytes.

    simulated ranks   model_choice      by the cost model on the cluster's links (`choose`)
    real ranks        measured_choice   by a table measured on as many nodes, if there is one;
                                        else by the cost model on the fitted links

    seconds     ╲ doubling      ╱ doubling          few rounds while rounds · α decides,
                 ╲_____________╱_____ ring          few bytes while bytes · β does: where the lines
                      bytes ─▶  ▲                   cross, the choice changes

The cost model compares the algorithms that are candidates by their entries.  A table
(`calibration.py`) ranks all algorithms that were measured, `blocked_ring` included.

The choice follows from the communicator's ranks, its links or table, the operation and the number
of bytes.  These are equal on all ranks, so all choose alike.  A communicator remembers its choices.
"""

from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from typing import Any

from ..algorithms import ALGORITHMS
from ..communicator import Choose, Communicator
from ..subgroup import Subgroup
from .calibration import BUILT_IN, Calibration
from .network import UNKNOWN, Network, network_of_cluster, run_lengths, seconds_on

MOST_KEPT = 4096        # sizes whose choice a communicator remembers


def candidates(operation: str, network: Network) -> tuple[str, ...]:
    """The algorithms to choose from; those with parts need several nodes, one of several ranks.
    """
    several = len(network.runs) > 1 and max(network.runs) > 1
    return tuple(name for name, entry in ALGORITHMS[operation].items()
                 if entry.is_candidate and entry.rounds and (entry.form or several and entry.parts))


def choose(operation: str, p: int, num_bytes: int, network: Network = UNKNOWN) -> str:
    """The candidate that takes the fewest seconds for `num_bytes` on `p` ranks joined by `network`.

    If several are equally fast, it is the first of them.
    """
    return min(candidates(operation, network),
               key=lambda algorithm: seconds_on(operation, algorithm, p, num_bytes, network))


def network_of(comm: Any) -> Network:
    """The network of a communicator, the same value on all its ranks."""
    while isinstance(comm, Subgroup):
        comm = comm.comm
    if comm.is_simulated:
        return network_of_cluster(comm.cluster, comm.cluster.groups[comm.group])
    known = comm.rank_state.calibration or BUILT_IN
    return Network(known.within, known.between, known.combining,
                   run_lengths([comm.node_of(rank) for rank in range(comm.size)]))


def model_choice(comm: Communicator) -> Choose:
    """The cost model's choice on the links of `comm`: the chooser of simulated ranks."""
    network, p = network_of(comm), comm.size
    return lru_cache(MOST_KEPT)(
        lambda operation, num_bytes: choose(operation, p, num_bytes, network))


def measured_choice(comm: Any) -> Choose:
    """The fastest measured algorithm, else the cost model's: the chooser of real ranks."""
    network, p = network_of(comm), comm.size
    return lru_cache(MOST_KEPT)(lambda operation, num_bytes: pick(
        comm.rank_state.calibration or BUILT_IN, p, network, {*algorithms_of(comm, operation)},
        operation, num_bytes))


def algorithms_of(comm: Communicator, operation: str) -> list[str]:
    """The algorithms that "auto" may take on `comm`."""
    return [*ALGORITHMS[operation], *(name for (of, name), own in comm.own_algorithms.items()
                                      if of == operation and own.competes(comm))]


def pick(known: Calibration, p: int, network: Network, available: Container[str], operation: str,
         num_bytes: int) -> str:
    """The fastest of the `available` algorithms by measurement, else the cost model's choice."""
    for name in known.ranking(operation, num_bytes, p, len(network.runs)):
        if name in available:
            return name
    return choose(operation, p, num_bytes, network)


def crossings(best: Callable[[int], str], sizes: Sequence[int]) -> list[tuple[int, str, str]]:
    """The sizes at which best(num_bytes) changes, between the first and the last of `sizes`.

    They are [(first number of bytes of the new algorithm, the old one, the new one), …], found by
    bisection between neighbouring sizes whose choices differ.
    """
    found = []
    for low, high in zip(sizes, sizes[1:]):
        while best(low) != best(high):
            before, left, right = best(low), low, high
            while right - left > 1:
                middle = (left + right) // 2
                left, right = (middle, right) if best(middle) == before else (left, middle)
            found.append((right, before, best(right)))
            low = right
    return found
