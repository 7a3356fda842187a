"""Pipeline schedules as plain data, without an array: made, checked, simulated and measured.

    actions                     Action; a schedule is a row of actions for each rank
    one_f_one_b                 the row of 1F1B
    schedules, zero_bubble      functions that make schedules
    registry                    all of them by name, with their papers' formulas: add yours here
    dependencies                what an action waits for, and what it sends
    validate                    the first fault of a schedule, in a sentence
    simulate, timeline          when each action starts and ends; also of measured runs
    metrics                     idle time, microbatches in flight and messages
    csv                         a schedule as text, in the cells that PyTorch uses

To add a schedule, write its function and an entry in registry.py.
"""

from .actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Placement, Schedule
from .csv import from_csv, to_csv
from .metrics import Bubble, bubble, in_flight, num_messages, peak_memory
from .registry import SCHEDULES, make_schedule
from .schedules import (
    gpipe,
    interleaved,
    loop_placement,
    looped_breadth_first,
    one_f_one_b,
    placement_of,
    v_placement,
)
from .simulate import FREE_LINK, Times, simulate, simulate_until
from .timeline import Interval, Timeline
from .validate import Fault, find_fault
from .zero_bubble import zb_h1, zb_v

__all__ = ["BACKWARD", "FORWARD", "FREE_LINK", "INPUT", "SCHEDULES", "WEIGHT", "Action", "Bubble",
           "Fault", "Interval", "Placement", "Schedule", "Timeline", "Times", "bubble",
           "find_fault", "from_csv", "gpipe", "in_flight", "interleaved", "loop_placement",
           "looped_breadth_first", "make_schedule", "num_messages", "one_f_one_b", "peak_memory",
           "placement_of", "simulate", "simulate_until", "to_csv", "v_placement", "zb_h1", "zb_v"]
