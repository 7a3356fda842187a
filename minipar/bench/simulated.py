"""The simulated cluster: messages per second of all-reduces on hundreds and thousands of ranks.

    ring                  512 ranks     2 p (p - 1) messages, each of one 512th of the array
    recursive doubling  16384 ranks     p log₂ p messages

Every message is rendezvous and traced.
"""

import time
from statistics import median

import numpy as np

from ..comm import Cluster, Communicator
from ..comm.collectives import all_reduce
from .timing import Row

RUNS = (("ring", 512, 512, 350_000), ("recursive_doubling", 16_384, 4, 220_000))


def measure(num_rounds: int) -> list[Row]:
    """A row for each of RUNS: (algorithm, ranks, elements, wanted messages per second)."""
    return [_row(*run, max(3, num_rounds // 4)) for run in RUNS]


def _row(algorithm: str, num_ranks: int, length: int, wanted: int, num_runs: int) -> Row:
    def main(comm: Communicator) -> None:
        array = np.full(length, comm.rank, np.float32)
        total = all_reduce(comm, array, algorithm=algorithm)
        assert total[0] == num_ranks * (num_ranks - 1) / 2

    rates = []
    for _ in range(num_runs):
        cluster = Cluster(num_ranks, trace=True)
        start = time.perf_counter()
        cluster.run(main)
        seconds = time.perf_counter() - start
        rates.append(len(cluster.trace.messages) / seconds)
    rate = median(rates)
    return Row(f"simulated all_reduce {algorithm}, {num_ranks} ranks, traced",
               f"{rate:,.0f} messages/s", f"wanted {wanted:,}", rate / wanted, 1.0)
