"""The choosers behind algorithm="auto": which algorithm a communicator takes for how many bytes.

    simulated ranks   model_choice      the cost model on the cluster's links
    real ranks        measured_choice   the measured table for as many nodes, if there is one;
                                        else the cost model on the fitted links

The choice follows from the communicator's ranks, the operation and the number of bytes alone, so
all ranks choose alike.  Each choice is worked out once for a size, and then looked up.
"""

from collections.abc import Container
from functools import lru_cache
from typing import Any

from ..algorithms import ALGORITHMS
from ..communicator import Choose, Communicator
from ..subgroup import Subgroup
from .calibration import BUILT_IN, Calibration
from .choose import choose
from .network import Network, network_of_cluster, runs_of

MOST_KEPT = 4096        # sizes whose choice a communicator remembers


def network_of(comm: Any) -> Network:
    """The links of a communicator, the same value on all its ranks."""
    while isinstance(comm, Subgroup):
        comm = comm.comm
    if comm.is_simulated:
        return network_of_cluster(comm.cluster, comm.cluster.groups[comm.group])
    known = comm.rank_state.calibration or BUILT_IN
    return Network(known.within, known.between, known.combining,
                   runs_of([comm.node_of(rank) for rank in range(comm.size)]))


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
