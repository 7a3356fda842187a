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

One folder up is what runs with arrays: executor.py trains by any schedule, one_f_one_b.py by 1F1B
alone.  That file writes its order out as a loop, so it uses no schedule and is read first.

To add a schedule: CONTRIBUTING.md, "A pipeline schedule".
"""
