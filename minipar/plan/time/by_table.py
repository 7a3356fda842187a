"""A schedule's time and memory by its own table, where its paper has no formula that holds here.

    the actions of each rank ─▶ simulated with the seconds of F, I, W ─▶ makespan
                             ─▶ counted ─▶ most microbatches in flight

Once all ranks are at work, 2p more microbatches take as long as the 2p before them.  So of many
microbatches only the first 4p to 6p are simulated.
"""

from functools import lru_cache

from ...parallel.pipeline.schedule.actions import Placement, Schedule
from ...parallel.pipeline.schedule.metrics import in_flight
from ...parallel.pipeline.schedule.registry import make_schedule
from ...parallel.pipeline.schedule.simulate import Times, simulate

DIGITS = 3              # of shares of F, I, W: layouts that hardly differ are simulated once


def makespan(name: str, num_ranks: int, num_microbatches: int, times: Times) -> float:
    """Seconds that schedule `name` takes, with the `times` of one stage, to 0.1 % of these."""
    stage = sum(times)
    forward, weight = (round(time / stage, DIGITS) for time in (times.forward, times.weight))
    shares = Times(forward, 1 - forward - weight, weight)
    m, period = simulated(num_ranks, num_microbatches), 2 * num_ranks
    stages = relative_makespan(name, num_ranks, m, shares)
    if m < num_microbatches:
        later = stages - relative_makespan(name, num_ranks, m - period, shares)
        stages += later * (num_microbatches - m) / period
    return stages * stage


def most_in_flight(name: str, rank: int, num_ranks: int, num_microbatches: int) -> int:
    """The most microbatches in flight on a rank, each counted once in each of its stages."""
    return all_in_flight(name, num_ranks, simulated(num_ranks, num_microbatches))[rank]


def simulated(num_ranks: int, num_microbatches: int) -> int:
    """The number of microbatches to simulate: whole periods fewer than there are."""
    period = 2 * num_ranks
    return min(num_microbatches, 2 * period + num_microbatches % period)


@lru_cache(64)
def table(name: str, num_ranks: int, num_microbatches: int,
          v: int | None = None) -> tuple[Schedule, Placement]:
    """The schedule, and the placement of its stages on ranks."""
    return make_schedule(name, num_ranks, num_microbatches, v)


@lru_cache(10_000)
def relative_makespan(name: str, num_ranks: int, num_microbatches: int, shares: Times) -> float:
    """The makespan, in units of one stage's work on one microbatch."""
    schedule, placement = table(name, num_ranks, num_microbatches)
    return simulate(schedule, shares, placement).makespan()


@lru_cache(10_000)
def all_in_flight(name: str, num_ranks: int, num_microbatches: int) -> list[int]:
    """The most microbatches in flight on each rank."""
    return [max(in_flight(row)) for row in table(name, num_ranks, num_microbatches)[0]]
