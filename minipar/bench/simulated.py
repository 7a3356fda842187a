"""The simulated cluster: messages per second of a ring all-reduce on 512 ranks.

Every message is rendezvous and traced; 2 p (p - 1) messages, each of one 512th of the array.
"""

import time
from statistics import median

import numpy as np

from ..comm import Cluster, Communicator
from ..comm.collectives import all_reduce
from .timing import Row

NUM_RANKS, TARGET = 512, 350_000


def measure(num_rounds: int) -> list[Row]:
    """One row."""
    def main(comm: Communicator) -> None:
        array = np.full(NUM_RANKS, comm.rank, np.float32)
        total = all_reduce(comm, array, algorithm="ring")
        assert total[0] == NUM_RANKS * (NUM_RANKS - 1) / 2

    rates = []
    for _ in range(max(3, num_rounds // 4)):
        cluster = Cluster(NUM_RANKS, trace=True)
        start = time.perf_counter()
        cluster.run(main)
        seconds = time.perf_counter() - start
        rates.append(len(cluster.trace.messages) / seconds)
    return [Row(f"simulated ring all-reduce, {NUM_RANKS} ranks, traced",
                f"{median(rates):,.0f} messages/s", f"wanted {TARGET:,}",
                median(rates) / TARGET, 1.0)]
