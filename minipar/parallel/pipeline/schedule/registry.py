"""Every schedule by its name: its function, the ranks of its stages, its paper's closed forms.

The command `minipar schedule` and its page, `strategy.py`, `parallel/cost/`, `plan/` and the tests
read this table.
To add a schedule: CONTRIBUTING.md, "A pipeline schedule".

Each formula is text that both Python and JavaScript can evaluate, so the page has no formulas of
its own.  The formulas hold for equal stages and links that take no time:

    p, m, v, r       ranks, microbatches, stages on each rank, a rank
    F, I, W, B       seconds of one stage for one microbatch, B = I + W

Narayanan et al. 2021; Lamy-Poirier 2023; Qi et al. 2023.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

from .actions import Placement, Schedule
from .advanced.dualpipe_v import dualpipe_v
from .advanced.two_ways import chimera, chimera_placement, dualpipe, dualpipe_placement
from .advanced.v_shapes import v_half, v_min
from .advanced.zb_h2 import zb_h2
from .schedules import (
    gpipe,
    interleaved,
    loop_placement,
    looped_breadth_first,
    one_f_one_b,
    terapipe,
    v_placement,
)
from .zero_bubble import zb_h1, zb_v

compiled = cache(partial(compile, filename="a formula", mode="eval"))


class Formula(NamedTuple):
    """A closed form and the conditions under which it holds."""

    expression: str
    conditions: tuple[str, ...] = ()

    def __call__(self, **values: float) -> float | None:
        """Its value, or None where a condition does not hold."""
        def evaluate(text: str) -> float:
            return eval(compiled(text), {"__builtins__": {}, "min": min}, values)
        return evaluate(self.expression) if all(map(evaluate, self.conditions)) else None


class ScheduleEntry(NamedTuple):
    """One schedule of the table."""

    make: Callable[..., Schedule]           # of (p, m), or (p, m, v) if `any_stages`
    makespan: Formula | None = None         # of p, m, v, F, I, W, B, in seconds
    in_flight: Formula | None = None        # of r, p, m, v: most microbatches, each stage's counted
    placement: Callable[[int, int], Placement] = loop_placement     # of (p, v)
    two_ways: Callable[[int, int], Placement] | None = None     # or of (p, m)
    num_stages: int = 1                     # on each rank, unless the caller chooses
    any_stages: bool = False                # whether the caller may choose
    has_groups: bool = False                # whether it takes group_size
    is_quadratic: bool = False              # whether making it takes p² steps even for few m

    @property
    def keeps_all(self) -> bool:
        """True if all microbatches of a batch are in flight together, whatever the ranks."""
        return self.in_flight is not None and self.in_flight.expression in ("m", "v * m")


SCHEDULES: dict[str, ScheduleEntry] = {
    "gpipe": ScheduleEntry(gpipe, Formula("(m + p - 1) * (F + B)"), Formula("m")),
    "1f1b": ScheduleEntry(one_f_one_b, Formula("(m + p - 1) * (F + B)"), Formula("min(p - r, m)")),
    "interleaved": ScheduleEntry(
        interleaved, Formula("(v * m + p - 1) * (F + B)", ("m >= p",)),
        Formula("min(2 * (p - r - 1) + (v - 1) * p + 1, v * m)", ("m % p == 0",)),
        num_stages=2, any_stages=True, has_groups=True),
    "looped_breadth_first": ScheduleEntry(
        looped_breadth_first, Formula("(v * m + p - 1) * (F + B)", ("m >= p",)), Formula("v * m"),
        num_stages=2, any_stages=True),
    "zb_h1": ScheduleEntry(
        zb_h1, Formula("m * (F + B) + (p - 1) * (F + I - W)", ("m >= p", "W <= F", "W <= I")),
        Formula("min(p, m)")),
    "zb_v": ScheduleEntry(
        zb_v, Formula("(6 * m + p - 1) * F", ("m >= p", "F == I", "I == W")),
        placement=v_placement, num_stages=2, is_quadratic=True),
    "terapipe": ScheduleEntry(terapipe, Formula("(m + p - 1) * (F + B)"), Formula("m")),
    "chimera": ScheduleEntry(
        chimera, Formula("m * (F + B) + (m / p + 1) * (p - 2) * F",
                         ("p % 2 == 0", "m % p == 0", "B == 2 * F")), two_ways=chimera_placement),
    "dualpipe": ScheduleEntry(
        dualpipe, Formula("m * (F + B) + (p / 2 - 1) * (F + 2 * B - 3 * W)",
                          ("p % 2 == 0", "m % 2 == 0", "m >= 2 * p", "F == I", "I == W")),
        Formula("p + 1", ("p % 2 == 0", "m % 2 == 0", "m >= 2 * p")), two_ways=dualpipe_placement,
        is_quadratic=True),
    "zb_h2": ScheduleEntry(
        zb_h2, Formula("(3 * m + p - 1) * F", ("m >= 2 * p - 1", "F == I", "I == W"))),
    "v_half": ScheduleEntry(v_half, placement=v_placement, num_stages=2, is_quadratic=True),
    "v_min": ScheduleEntry(v_min, placement=v_placement, num_stages=2, is_quadratic=True),
    "dualpipe_v": ScheduleEntry(
        dualpipe_v, Formula("2 * m * (F + B) + (p - 1) * (F + 2 * B - 3 * W)",
                            ("m >= 2 * p", "F == I", "I == W")),
        Formula("2 * p + 1", ("m >= 2 * p",)), placement=v_placement, num_stages=2,
        is_quadratic=True),
}


def make_schedule(name: str, num_ranks: int, num_microbatches: int,
                  virtual_stages: int | None = None,
                  group_size: int | None = None) -> tuple[Schedule, Placement]:
    """The schedule of that name, and the rank of each of its stages.

    `virtual_stages` is the number of stages on each rank (by default 2 where a schedule takes any
    number); `group_size` is for "interleaved" alone.  Raises ValueError for what does not exist.
    """
    if name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}: choose from {', '.join(SCHEDULES)}")
    entry = SCHEDULES[name]
    if group_size is not None and not entry.has_groups:
        grouped = " and ".join(name for name, other in SCHEDULES.items() if other.has_groups)
        raise ValueError(f"{name} has no groups of microbatches: only {grouped} takes their size")
    v = entry.num_stages if virtual_stages is None else virtual_stages
    if v != entry.num_stages and not entry.any_stages:
        free = " and ".join(name for name, other in SCHEDULES.items() if other.any_stages)
        raise ValueError(f"{name} has {entry.num_stages} stage{'s' * (entry.num_stages > 1)} on "
                         f"each rank, not {virtual_stages}: {free} take any number")
    options = {} if group_size is None else {"group_size": group_size}
    counts = (num_ranks, num_microbatches, v)[:3 if entry.any_stages else 2]
    schedule = entry.make(*counts, **options)
    return schedule, (entry.two_ways(num_ranks, num_microbatches) if entry.two_ways else
                      entry.placement(num_ranks, v))
