"""How long it takes to make, check and simulate each schedule for 64 ranks, 1,024 microbatches.

An instructor turns the knobs of `minipar schedule` and waits for no more than a breath or two.
"""

import time
from statistics import median

from ..parallel.pipeline import SCHEDULES, find_fault, make_schedule, simulate
from .timing import Row

NUM_RANKS, NUM_MICROBATCHES, SECONDS = 64, 1024, 5.0


def measure(num_rounds: int) -> list[Row]:
    """A row for each schedule."""
    return [_row(name, max(3, num_rounds // 4)) for name in SCHEDULES]


def _row(name: str, num_runs: int, num_ranks: int = NUM_RANKS,
         num_microbatches: int = NUM_MICROBATCHES) -> Row:
    found = []
    for _ in range(num_runs):
        start = time.perf_counter()
        schedule, placement = make_schedule(name, num_ranks, num_microbatches)
        assert find_fault(schedule, placement, num_microbatches) is None
        simulate(schedule, placement=placement)
        found.append(time.perf_counter() - start)
    seconds, num_actions = median(found), sum(map(len, schedule))
    return Row(f"schedule {name}, {num_ranks} ranks, {num_microbatches:,} microbatches",
               f"{seconds:.2f} s, {num_actions:,} actions", f"wanted {SECONDS:g} s",
               seconds / SECONDS, 1.0, at_least=False)
