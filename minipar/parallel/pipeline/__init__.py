"""Pipelines: layers spread over ranks in stages, a batch cut into microbatches, a schedule as data.

    schedules, zero_bubble, by_name     who does what in which order, as lists
    timeline                            what was done when, simulated or measured
"""

from .by_name import NAMES, make_schedule
from .schedules import (
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
from .timeline import Interval, Timeline
from .zero_bubble import zb_h1, zb_v

__all__ = ["NAMES", "Action", "Interval", "Placement", "Schedule", "Timeline", "gpipe",
           "in_a_loop", "in_a_v", "interleaved", "looped_breadth_first", "make_schedule",
           "one_f_one_b", "placement_of", "zb_h1", "zb_v"]
