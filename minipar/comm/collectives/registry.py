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

from ...backend import Array
from .. import collectives
from ..chunks import chunk_bounds
from ..communicator import Communicator
from .all_gather import ALGORITHMS as ALL_GATHER
from .all_reduce import ALGORITHMS as ALL_REDUCE
from .all_to_all import ALGORITHMS as ALL_TO_ALL
from .barrier import ALGORITHMS as BARRIER
from .broadcast import ALGORITHMS as BROADCAST
from .gather import ALGORITHMS as GATHER
from .reduce import ALGORITHMS as REDUCE
from .reduce_scatter import ALGORITHMS as REDUCE_SCATTER
from .scan import ALGORITHMS as SCAN
from .scatter import ALGORITHMS as SCATTER

ALGORITHMS: dict[str, dict[str, Callable]] = {
    "all_gather": ALL_GATHER, "all_reduce": ALL_REDUCE, "all_to_all": ALL_TO_ALL,
    "barrier": BARRIER, "broadcast": BROADCAST, "exscan": SCAN, "gather": GATHER,
    "reduce": REDUCE, "reduce_scatter": REDUCE_SCATTER, "scan": SCAN, "scatter": SCATTER,
}
REDUCTIONS = {"all_reduce", "reduce", "reduce_scatter", "scan", "exscan"}
ROOTED = {"broadcast", "scatter", "gather", "reduce"}


def table_of_pieces(p: int, n: int) -> list[list[int]]:
    """The `counts` of an all-to-all in which every rank cuts its n elements alike."""
    return [[stop - start for start, stop in chunk_bounds(n, p)]] * p


def call(operation: str, algorithm: str, comm: Communicator, vector: Array, op: str = "sum",
         root: int = 0) -> Array | None:
    """Collective.  Run `operation` on this rank's vector, of equal length on all ranks.

    Returns its result.  `op` is for reductions, `root` for operations that have one.  Raises
    ValueError for an unknown operation or algorithm.
    """
    if operation not in ALGORITHMS:
        raise ValueError(f"unknown operation {operation!r}: choose from {', '.join(ALGORITHMS)}")
    run, options = getattr(collectives, operation), {"algorithm": algorithm}
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
