"""algorithm="auto": which one a communicator takes, for so many bytes.

    simulated   the model on the cluster's links
    real        the measured table, if there is one for as many nodes; else the model, on the
                links that were fitted
                                                (cost/choose.py, calibration.py)

What is chosen follows from the communicator's ranks, the operation and the number of bytes alone,
so all ranks choose the same.  It is worked out once for each size and then looked up.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from ..communicator import Communicator
from ..subgroup import Part
from . import Network, choose, network_of_cluster, runs_of

MOST_KEPT = 4096        # sizes of which a communicator remembers the choice


def network_of(comm: Communicator) -> Network:
    """The links of a communicator, the same value on all its ranks."""
    comm = whole(comm)
    if hasattr(comm, "cluster"):
        return network_of_cluster(comm.cluster, comm.cluster.groups[comm.group])
    known = comm.me.calibration
    return Network(known.within, known.between, known.combining,
                   runs_of([comm.node_of(rank) for rank in range(comm.size)]))


def chooser(comm: Communicator, algorithms: dict[str, dict]) -> Callable[[str, int], str]:
    """choose(operation, num_bytes) of a communicator; `algorithms` is every operation's, by name.

    All simulated ranks of a group share one.
    """
    comm = whole(comm)
    if not hasattr(comm, "cluster"):
        if comm.chooser is None:
            comm.chooser = lru_cache(MOST_KEPT)(partial(pick, comm, network_of(comm), algorithms))
        return comm.chooser
    # The channels of non-blocking collectives have the list of their communicator's ranks.
    choosers, key = comm.cluster.choosers, id(comm.cluster.groups[comm.group])
    if key not in choosers:
        network, p = network_of(comm), comm.size
        choosers[key] = lru_cache(MOST_KEPT)(
            lambda operation, num_bytes: choose(operation, p, num_bytes, network))
    return choosers[key]


def whole(comm: Communicator) -> Communicator:
    """The communicator itself of a Part, which only renumbers its ranks."""
    while isinstance(comm, Part):
        comm = comm.comm
    return comm


def pick(comm: Any, network: Network, algorithms: dict[str, dict], operation: str,
         num_bytes: int) -> str:
    """What real ranks take: the fastest measured that can run here, else the model's choice."""
    measured = comm.me.calibration.ranking(operation, num_bytes, comm.size, len(network.runs))
    for name in measured:
        if name not in ("auto", "mpi") and can_run(algorithms[operation].get(name), comm):
            return name
    return choose(operation, comm.size, num_bytes, network)


def can_run(algorithm: Callable | None, comm: Communicator) -> bool:
    """Whether there is such an algorithm and it says of no communicator like this that it cannot.

    One that does not run everywhere has an attribute `runs_on`, a function of the communicator that
    gives the same answer on all its ranks.
    """
    if algorithm is None:
        return False
    return not hasattr(algorithm, "runs_on") or algorithm.runs_on(comm)
