"""Pipeline puzzle: built-in schedules as rows of actions, with their times by the simulator."""

from typing import Any

from minipar.parallel.pipeline.schedule.metrics import in_flight
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.simulate import Times, simulate

NAMES = ("gpipe", "1f1b", "zb_h1")
RANKS, MICROBATCHES = (2, 3, 4), (4, 6)


def data() -> dict[str, Any]:
    """{"schedules": {p: {m: {name: {"rows", "time", "peaks"}}}}}, for F = I = W = 1 and B = 2."""
    found: dict[int, Any] = {}
    for p in RANKS:
        for m in MICROBATCHES:
            for name in NAMES:
                schedule, placement = make_schedule(name, p, m)
                rows = [[[action.kind, action.microbatch] for action in row] for row in schedule]
                timeline = simulate(schedule, Times(), placement)
                found.setdefault(p, {}).setdefault(m, {})[name] = {
                    "rows": rows, "time": timeline.makespan(),
                    "peaks": [peak_of(row) for row in schedule]}
    return {"schedules": found, "times": {"F": 1, "B": 2, "I": 1, "W": 1}}


def peak_of(row: list) -> int:
    """The most microbatches that a rank keeps at once: from their F to the end of B or W."""
    return max(in_flight(row))
