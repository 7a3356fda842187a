"""All-reduce crossovers: rounds, bytes and combined bytes of each algorithm, for any size."""

from typing import Any

from minipar.comm import Cluster
from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.collectives.operations import own_options
from minipar.comm.cost import predict

RANKS = [2, 4, 8, 16, 32, 64, 128, 256]
LARGE = 256 * 4096          # elements: all chunks are equal


def data() -> dict[str, Any]:
    """{"ranks", "costs": {p: {algorithm: [rounds, bytes / n, combined / n]}}, "links", …}.

    "unpredicted" are the algorithms whose entry has no rounds.
    """
    costs = {}
    unpredicted = [name for name, entry in ALGORITHMS["all_reduce"].items() if not entry.rounds]
    for p in RANKS:
        costs[p] = {}
        for name in ALGORITHMS["all_reduce"]:
            # One with options needs nodes, or its rounds grow with the bytes.
            if name in unpredicted or own_options("all_reduce", name):
                continue
            cost = predict("all_reduce", name, p, LARGE, itemsize=8)
            costs[p][name] = [cost.rounds, cost.num_bytes / (8 * LARGE), cost.reduced / (8 * LARGE)]
    cluster = Cluster(2)
    return {"ranks": RANKS, "costs": costs, "unpredicted": unpredicted,
            "latency": cluster.latency, "bandwidth": cluster.bandwidth, "combining": 2e10}
