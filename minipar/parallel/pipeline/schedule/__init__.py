"""Pipeline schedules as plain data, without an array: made, checked, simulated and measured.

    actions                     Action; a schedule is a row of actions for each rank
    schedules, zero_bubble      functions that make schedules
    advanced                    … that exchange memory for time, or go two ways at once
    registry                    all of them by name, with their papers' formulas: add yours here
    dependencies                what an action waits for, and what it sends
    validate                    the first fault of a schedule, in a sentence
    simulate, timeline          when each action starts and ends; also of measured runs
    metrics                     idle time, microbatches in flight and messages
    csv                         a schedule as text, in the cells that PyTorch uses

The files that run schedules with arrays are one folder up: executor.py trains by any schedule,
one_f_one_b.py by 1F1B alone.  Read that one first: of this folder it uses only the row of 1F1B.

To add a schedule: CONTRIBUTING.md, "A pipeline schedule".
"""
