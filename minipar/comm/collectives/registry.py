"""Every operation and algorithm by name, called in one way: each rank gives a vector of n elements.

    operation                                   rank r gives                        gets
    all_reduce, reduce, scan, exscan            its vector                          n elements
    broadcast, scatter                          the root its vector                 n; its piece
    gather, all_gather                          its r-th piece                      n elements
    reduce_scatter, all_to_all                  its vector, cut into p pieces       its piece(s)

Pieces are cut by `chunk_bounds`, so that n need not be a multiple of p.  The cost of such a call is
`cost.predict(operation, algorithm, p, n)`.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

from ...backend import Array
from ..arguments import chunk_bounds
from ..communicator import Communicator
from .all_gather import ALGORITHMS as ALL_GATHER
from .all_gather import all_gather
from .all_reduce import ALGORITHMS as ALL_REDUCE
from .all_reduce import all_reduce
from .all_to_all import ALGORITHMS as ALL_TO_ALL
from .all_to_all import all_to_all
from .barrier import ALGORITHMS as BARRIER
from .barrier import barrier
from .broadcast import ALGORITHMS as BROADCAST
from .broadcast import broadcast
from .gather import ALGORITHMS as GATHER
from .gather import gather
from .reduce import ALGORITHMS as REDUCE
from .reduce import reduce
from .reduce_scatter import ALGORITHMS as REDUCE_SCATTER
from .reduce_scatter import reduce_scatter
from .scan import ALGORITHMS as SCAN
from .scan import exscan, scan
from .scatter import ALGORITHMS as SCATTER
from .scatter import scatter

ALGORITHMS: dict[str, dict[str, Callable]] = {
    "all_gather": ALL_GATHER, "all_reduce": ALL_REDUCE, "all_to_all": ALL_TO_ALL,
    "barrier": BARRIER, "broadcast": BROADCAST, "exscan": SCAN, "gather": GATHER,
    "reduce": REDUCE, "reduce_scatter": REDUCE_SCATTER, "scan": SCAN, "scatter": SCATTER,
}
OPERATIONS: dict[str, Callable] = {
    "all_gather": all_gather, "all_reduce": all_reduce, "all_to_all": all_to_all,
    "barrier": barrier, "broadcast": broadcast, "exscan": exscan, "gather": gather,
    "reduce": reduce, "reduce_scatter": reduce_scatter, "scan": scan, "scatter": scatter,
}
REDUCTIONS = {"all_reduce", "reduce", "reduce_scatter", "scan", "exscan"}
ROOTED = {"broadcast", "scatter", "gather", "reduce"}
OVER_NODES = ("hierarchical", "torus")      # all-reduces for several nodes of several ranks


def table_of_pieces(p: int, n: int) -> list[list[int]]:
    """The `counts` of an all-to-all in which every rank cuts its n elements alike."""
    return [[stop - start for start, stop in chunk_bounds(n, p)]] * p


def own_options(operation: str, algorithm: str) -> set[str]:
    """The options of this algorithm that another one of the same operation does not have.

    {"num_segments"}, {"block_bytes"} or {"ranks_per_node"}: it cuts the vector in another way than
    into one chunk for each rank, or it needs nodes.  Empty for most algorithms.
    """
    def options(function: Callable) -> set[str]:
        return {name for name, parameter in signature(function).parameters.items()
                if parameter.default is not parameter.empty}
    return {name for name in options(ALGORITHMS[operation][algorithm])
            if not all(name in options(other) for other in ALGORITHMS[operation].values())}


def call(operation: str, algorithm: str, comm: Communicator, vector: Array, op: str = "sum",
         root: int = 0) -> Array | None:
    """Collective.  Run `operation` on this rank's vector, of equal length on all ranks.

    Returns its result.  `op` is for reductions, `root` for operations that have one.  Raises
    ValueError for an unknown operation or algorithm.
    """
    if operation not in ALGORITHMS:
        raise ValueError(f"unknown operation {operation!r}: choose from {', '.join(ALGORITHMS)}")
    run = OPERATIONS[operation]
    options: dict[str, Any] = {"algorithm": algorithm}
    if operation == "barrier":
        return run(comm, **options)
    if operation in REDUCTIONS:
        options["op"] = op
    if operation in ROOTED:
        options["root"] = root
    bounds = chunk_bounds(len(vector), comm.size)
    if operation in ("gather", "all_gather"):
        options.update({"total": len(vector)} if operation == "all_gather" else
                       {"counts": [stop - start for start, stop in bounds]})
        vector = vector[slice(*bounds[comm.rank])]
    if operation == "all_to_all":
        options["counts"] = table_of_pieces(comm.size, len(vector))
    return run(comm, vector, **options)
