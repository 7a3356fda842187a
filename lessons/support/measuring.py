"""Count and time a call that every rank makes, on simulated or real ranks (most lessons)."""

from collections.abc import Callable
from math import inf
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import all_reduce, barrier, gather_trace, sum_over_ranks
from minipar.comm.simulated.replay import replay
from minipar.comm.trace import Trace
from support.kept_trace import keep


def links_of(cluster: Cluster) -> str:
    """The latency and the time of a byte on the links of a simulated cluster, in words."""
    return f"α = {cluster.latency * 1e6:g} µs, β = {1e9 / cluster.bandwidth:g} ns/B"


def counted(comm: Communicator, call: Callable[[], Any]) -> tuple[Trace, Any]:
    """(trace of all ranks during call(), empty on ranks other than 0; the result of call())."""
    comm.start_trace(replay=True)
    returned = call()
    return keep(gather_trace(comm, comm.stop_trace()) or Trace()), returned


def total(comm: Communicator, count: int) -> int:
    """The sum of a count over the ranks."""
    return int(sum_over_ranks(comm, count))


def rounds_of(trace: Trace, num_ranks: int) -> int:
    """The number of rounds: the time of the messages if each takes 1, whatever its size."""
    return round(replay(trace, Cluster(num_ranks, latency=1, bandwidth=inf), compute=0))


def path_of(trace: Trace, num_ranks: int) -> int:
    """Bytes on the critical path: the time of the messages if each byte takes 1."""
    return round(replay(trace, Cluster(num_ranks, latency=0, bandwidth=1), compute=0))


def seconds(comm: Communicator, call: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of call() on the slowest rank, by comm's clock; the median of `repeats`."""
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
    """The size at which both are equal, if each is a line through its values at two sizes."""
    ahead, behind = first(low) - second(low), first(high) - second(high)
    return low - ahead * (high - low) / (behind - ahead)


def thread_slowdown(call: Callable[[], Any], num_threads: int = 2, repeats: int = 7) -> float:
    """The time of call() in `num_threads` threads at once, divided by its time in one."""
    def seconds_of(num: int) -> float:
        threads = [Thread(target=call) for _ in range(num)]
        start = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return perf_counter() - start
    return float(np.median([seconds_of(num_threads) / seconds_of(1) for _ in range(repeats)]))
