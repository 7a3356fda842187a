"""Every operation by name, called in one way: each rank passes a vector of n elements to `call`.

    operation                                   rank r gives                        gets
    all_reduce, reduce, scan, exscan            its vector                          n elements
    broadcast, scatter                          the root its vector                 n; its piece
    gather, all_gather                          its r-th piece                      n elements
    reduce_scatter, all_to_all                  its vector, cut into p pieces       its piece(s)
    barrier                                     nothing                             nothing

Only the root gets the result of a reduce or gather.  Pieces are cut by `chunk_bounds`, so that n
need not be a multiple of p.  The cost of such a call is `cost.predict(operation, algorithm, p, n)`;
an all_to_all also takes counts=`table_of_pieces(p, n)`.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

from ...backend import Array
from ..algorithms import ALGORITHMS
from ..arguments import chunk_bounds
from ..communicator import Communicator
from . import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    exscan,
    gather,
    reduce,
    reduce_scatter,
    scan,
    scatter,
)

OPERATIONS: dict[str, Callable] = {function.__name__: function for function in (
    all_gather, all_reduce, all_to_all, barrier, broadcast, exscan, gather, reduce, reduce_scatter,
    scan, scatter)}
REDUCTIONS = {"all_reduce", "reduce", "reduce_scatter", "scan", "exscan"}
ROOTED = {"broadcast", "scatter", "gather", "reduce"}
# all-reduces for several nodes of several ranks
OVER_NODES = [name for name, entry in ALGORITHMS["all_reduce"].items() if entry.parts]


def table_of_pieces(p: int, n: int) -> list[list[int]]:
    """The `counts` of an all-to-all in which every rank cuts its n elements alike."""
    return [[stop - start for start, stop in chunk_bounds(n, p)]] * p


def own_options(operation: str, algorithm: str) -> set[str]:
    """The options of this algorithm that some other algorithm of its operation lacks.

    Those that cut the vector into segments or blocks, or that need nodes, have {"num_segments"},
    {"block_bytes"} or {"ranks_per_node"}.  Most algorithms have none.
    """
    def options(function: Callable) -> set[str]:
        return {name for name, parameter in signature(function).parameters.items()
                if parameter.default is not parameter.empty}
    return {name for name in options(ALGORITHMS[operation][algorithm].run)
            if not all(name in options(other.run) for other in ALGORITHMS[operation].values())}


def call(operation: str, algorithm: str, comm: Communicator, vector: Array, op: str = "sum",
         root: int = 0) -> Array | None:
    """Collective.  Run `operation` on this rank's vector, of equal length on all ranks.

    Returns its result.  `op` is for reductions, `root` for operations that have one.  Raises
    ValueError for an unknown operation or algorithm.
    """
    if operation not in ALGORITHMS:
        raise ValueError(f"unknown operation {operation!r}: choose from {', '.join(ALGORITHMS)}")
    arrays, options = arguments_of(operation, comm, vector)
    if operation in REDUCTIONS:
        options["op"] = op
    if operation in ROOTED:
        options["root"] = root
    return OPERATIONS[operation](comm, *arrays, algorithm=algorithm, **options)


def arguments_of(operation: str, comm: Communicator,
                 vector: Array) -> tuple[list[Array], dict[str, Any]]:
    """The array, if any, and the options with which `operation` works on this rank's vector."""
    bounds = chunk_bounds(len(vector), comm.size)
    if operation == "barrier":
        return [], {}
    if operation == "all_gather":
        return [vector[slice(*bounds[comm.rank])]], {"total": len(vector)}
    if operation == "gather":
        lengths = [stop - start for start, stop in bounds]
        return [vector[slice(*bounds[comm.rank])]], {"counts": lengths}
    if operation == "all_to_all":
        return [vector], {"counts": table_of_pieces(comm.size, len(vector))}
    return [vector], {}
