"""Any operation in one way: every rank gives a vector of n elements and a name.

    operation                                   rank r gives                        gets
    all_reduce, reduce, scan, exscan            its vector                          n elements
    broadcast, scatter                          the root's counts, others' shape    n; its piece
    gather, all_gather                          its r-th piece                      n elements
    reduce_scatter, all_to_all                  its vector, cut into p pieces       its piece(s)

Pieces are cut by `chunk_bounds`, so that n need not be a multiple of p, and `predict(…, p, n)` is
what this costs.
"""

from ...backend import Array
from .. import collectives
from ..chunks import chunk_bounds
from ..communicator import Communicator
from .further import ALGORITHMS

REDUCTIONS = {"all_reduce", "reduce", "reduce_scatter", "scan", "exscan"}
ROOTED = {"broadcast", "scatter", "gather", "reduce"}


def table_of_pieces(p: int, n: int) -> list[list[int]]:
    """The counts of an all-to-all in which every rank cuts its n elements alike."""
    return [[stop - start for start, stop in chunk_bounds(n, p)]] * p


def call(operation: str, algorithm: str, comm: Communicator, vector: Array, op: str = "sum",
         root: int = 0) -> Array | None:
    """Run `operation` on this rank's vector, of one length on all ranks; return its result.

    `op` is for reductions, `root` for operations that have one.  Raises ValueError for an unknown
    operation or algorithm.
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
