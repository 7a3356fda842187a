"""Pipelines: layers spread over ranks in stages, a batch cut into microbatches, a schedule as data.

    schedules, zero_bubble, by_name     who does what in which order, as lists
    table                               the same as text, as PyTorch writes it
    validate                            what is wrong with one, in a sentence
    timing, timeline                    what is done when, simulated or measured

What runs a schedule is `executor`; its messages `exchange` derives from the schedule.
"""

from .schedule.by_name import NAMES, make_schedule
from .schedule.csv import from_csv, to_csv
from .schedule.schedules import (
    Action,
    Placement,
    Schedule,
    gpipe,
    in_a_loop,
    in_a_v,
    interleaved,
    looped_breadth_first,
    one_f_one_b,
    placement_of,
)
from .schedule.simulate import FREE, Times, simulate, simulate_until
from .schedule.timeline import Interval, Timeline
from .schedule.validate import Fault, find_fault
from .schedule.zero_bubble import zb_h1, zb_v

__all__ = ["FREE", "NAMES", "Action", "Fault", "Interval", "Placement", "Schedule", "Timeline",
           "Times", "find_fault", "from_csv", "gpipe", "in_a_loop", "in_a_v", "interleaved",
           "looped_breadth_first", "make_schedule", "one_f_one_b", "placement_of", "simulate",
           "simulate_until", "to_csv", "zb_h1", "zb_v"]
