"""What several lessons count and time, alike in both worlds: a call that every rank makes."""

from collections.abc import Callable
from math import inf
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import all_reduce, barrier, gather_trace
from minipar.comm.simulated.replay import replay
from minipar.comm.trace import Trace


def counted(comm: Communicator, call: Callable[[], Any]) -> tuple[Trace, Any]:
    """(what all ranks did in call(), on rank 0, an empty trace on the others; what it returned)."""
    comm.start_trace(replay=True)
    returned = call()
    return gather_trace(comm, comm.stop_trace()) or Trace(), returned


def rounds_of(trace: Trace, num_ranks: int) -> int:
    """How long the messages of `trace` take if each takes 1, however long."""
    return round(replay(trace, Cluster(num_ranks, latency=1, bandwidth=inf), compute=0))


def path_of(trace: Trace, num_ranks: int) -> int:
    """Bytes on the critical path: how long they take if each byte takes 1 and nothing else does."""
    return round(replay(trace, Cluster(num_ranks, latency=0, bandwidth=1), compute=0))


def seconds(comm: Communicator, call: Callable[[], Any], repeats: int = 5) -> float:
    """How long call() takes the slowest rank, on comm's clock; the median of `repeats`."""
    times = np.empty(repeats)
    for i in range(repeats):
        barrier(comm)
        start = comm.now()
        call()
        times[i] = comm.now() - start
    return float(np.median(all_reduce(comm, times, "max")))


def simulated(num_ranks: int, program: Callable[[Communicator], Any]) -> float:
    """Virtual seconds that program(comm) takes on a simulated cluster."""
    return Cluster(num_ranks).run(program)[1]


def crossing(first: Callable[[int], float], second: Callable[[int], float], low: int,
             high: int) -> float:
    """The size at which both take as long, each being a line through its values at two sizes."""
    ahead, behind = first(low) - second(low), first(high) - second(high)
    return low - ahead * (high - low) / (behind - ahead)


def thread_slowdown(call: Callable[[], Any], num_threads: int = 2, repeats: int = 7) -> float:
    """How many times as long call() takes in so many threads of this process at once as in one."""
    def seconds_of(num: int) -> float:
        threads = [Thread(target=call) for _ in range(num)]
        start = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return perf_counter() - start
    return float(np.median([seconds_of(num_threads) / seconds_of(1) for _ in range(repeats)]))
