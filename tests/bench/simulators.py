"""The speed of the simulators: messages of the simulated cluster, schedules of pipelines.

    ring                  512 ranks     2 p (p - 1) messages, each of one 512th of the array
    recursive doubling  16384 ranks     p log₂ p messages, each rendezvous and traced
    every schedule         64 ranks     1,024 microbatches: made, checked, simulated

An instructor who turns the knobs of `minipar schedule` should wait for a few seconds at most.
"""

import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import all_reduce
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from minipar.parallel.pipeline.schedule.simulate import simulate
from minipar.parallel.pipeline.schedule.validate import find_fault

from .timing import Row

# (algorithm, ranks, elements, target in messages per second)
ALL_REDUCES = (("ring", 512, 512, 350_000), ("recursive_doubling", 16_384, 4, 220_000))
NUM_RANKS, NUM_MICROBATCHES, SECONDS = 64, 1024, 5.0


def measure(num_rounds: int, what: str) -> Iterator[Row]:
    """Yield a row for each of ALL_REDUCES ("cluster"), or for each schedule ("schedules")."""
    num_runs = max(3, num_rounds // 4)
    if what == "schedules":
        for name in SCHEDULES:
            yield schedule_row(name, num_runs, NUM_RANKS, NUM_MICROBATCHES)
    else:
        for all_reduce_of in ALL_REDUCES:
            yield cluster_row(*all_reduce_of, num_runs)


def cluster_row(algorithm: str, num_ranks: int, length: int, target: int, num_runs: int) -> Row:
    """Messages per second of one all-reduce on a traced cluster."""
    def main(comm: Communicator) -> None:
        array = np.full(length, comm.rank, np.float32)
        total = all_reduce(comm, array, algorithm=algorithm)
        assert total[0] == num_ranks * (num_ranks - 1) / 2

    def run() -> int:
        cluster = Cluster(num_ranks, trace=True)
        cluster.run(main)
        return len(cluster.trace.messages)
    seconds, num_messages = _median_seconds(run, num_runs)
    rate = num_messages / seconds
    return Row(f"simulated all_reduce {algorithm}, {num_ranks} ranks, traced",
               f"{rate:,.0f} messages/s", f"target {target:,}", rate / target, 1.0)


def schedule_row(name: str, num_runs: int, num_ranks: int, num_microbatches: int) -> Row:
    """Seconds to make, check and simulate one schedule."""
    def run() -> int:
        schedule, placement = make_schedule(name, num_ranks, num_microbatches)
        assert find_fault(schedule, placement, num_microbatches) is None
        simulate(schedule, placement=placement)
        return sum(map(len, schedule))
    seconds, num_actions = _median_seconds(run, num_runs)
    return Row(f"schedule {name}, {num_ranks} ranks, {num_microbatches:,} microbatches",
               f"{seconds:.2f} s, {num_actions:,} actions", f"target {SECONDS:g} s",
               seconds / SECONDS, 1.0, at_least=False)


def _median_seconds(run: Callable[[], int], num_runs: int) -> tuple[float, int]:
    """(median seconds of a run, what it returned)."""
    times = []
    for _ in range(num_runs):
        start = time.perf_counter()
        count = run()
        times.append(time.perf_counter() - start)
    return median(times), count
