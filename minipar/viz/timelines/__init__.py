"""Time to the right, a lane for each rank or request.

    bars                    a trace as plain data
    lanes                   the base of the pictures
    timeline, space_time    when each rank computed, sent, waited
    pipeline                a schedule's timetable
    memory_timeline, remat  live bytes; recomputation
    requests                requests of inference: their tokens, their blocks of the cache
    terminal                timelines as text

All but `bars` and `terminal` draw with matplotlib, with the functions of `lanes`.
"""
