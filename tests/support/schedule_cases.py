"""The numbers of stages on each rank with which tests run a schedule, from its table."""

from minipar.parallel.pipeline.schedule.registry import SCHEDULES


def stages_per_rank(name: str) -> tuple[int, ...]:
    """1, 2 and 3 stages if the caller may choose, else the schedule's own number."""
    entry = SCHEDULES[name]
    return (1, 2, 3) if entry.any_stages else (entry.num_stages,)
