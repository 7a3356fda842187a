"""Time to the right, a lane for each rank or request.

    bars                    a trace as plain data
    lanes                   the base of all that follow
    timeline, space_time    when each rank computed, sent, waited
    pipeline                a schedule's timetable
    memory_timeline, remat  live bytes; recomputation
    requests                who waits, gets tokens, has which block
    terminal                timelines as text

All but `terminal` draw with matplotlib on the base of `lanes`.
"""
