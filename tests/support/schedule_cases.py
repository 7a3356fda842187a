"""With how many stages on each rank the tests run a schedule: it follows from the table."""

from minipar.parallel.pipeline.schedule.registry import SCHEDULES


def stages_per_rank(name: str) -> tuple[int, ...]:
    """1, 2 and 3 stages if the caller may choose, else the schedule's own number."""
    entry = SCHEDULES[name]
    return (1, 2, 3) if entry.any_stages else (entry.num_stages,)
