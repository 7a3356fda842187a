"""Zero-bubble schedules split the backward; the half that no rank waits for fills the gaps.

    ZB-H1, stage 2 of 4                         I: gradient of the input, for stage 1
                                                W: gradient of the weights, at any time
    1F1B    F0 F1 B0 F2 B1 F3 B2 … B7
    ZB-H1   F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 … I7 W5 W6 W7

Stage s delays its W by s microbatches.  So the later stages do W at the end, where they are idle
under 1F1B.  A stage holds at most p microbatches, as many as 1F1B's first stage.
With m >= p and W <= min(F, I) the bubble is (p - 1)(F + I - W), where 1F1B's is
(p - 1)(F + I + W).

ZB-V has two stages on each rank, in a V.  The last rank has the two in the middle, and the first
rank has the first and the last stage.  So a backward starts where its forward ends, without a
message.  With F = I = W = 1 and m >= p it takes 6m + p - 1.  Rank r is idle for a time of r before
its first forward, and of p - 1 - r at the end.  A rank holds at most 2p microbatches, each on a
stage of half the layers.  They need as much memory as p microbatches under 1F1B.

Qi, Wan, Huang & Lin 2023, Zero bubble pipeline parallelism (ZB-V: section 6).
"""

from collections import Counter

from .actions import FORWARD, INPUT, WEIGHT, Action, Schedule
from .dependencies import Op, needs
from .schedules import check_counts


def zb_h1(num_ranks: int, num_microbatches: int) -> Schedule:
    """1F1B in which stage s does W for microbatch i - s after I for microbatch i."""
    check_counts(num_ranks, num_microbatches)
    m = num_microbatches
    schedule = []
    for stage in range(num_ranks):
        ahead = min(num_ranks - stage - 1, m)
        row = [Action(FORWARD, stage, i) for i in range(ahead)]
        for i in range(m):
            if ahead + i < m:
                row.append(Action(FORWARD, stage, ahead + i))
            row.append(Action(INPUT, stage, i))
            if i >= stage:
                row.append(Action(WEIGHT, stage, i - stage))
        row += [Action(WEIGHT, stage, i) for i in range(max(m - stage, 0), m)]
        schedule.append(row)
    return schedule


def zb_v(num_ranks: int, num_microbatches: int) -> Schedule:
    """Two stages on each rank in a V; rank r has stage r ("down") and 2p - 1 - r ("up")."""
    check_counts(num_ranks, num_microbatches)
    if 2 * num_microbatches < 3 * num_ranks - 1:
        return _first_ready(num_ranks, num_microbatches)
    return _in_phases(num_ranks, num_microbatches)


def _in_phases(p: int, num_microbatches: int) -> Schedule:
    """Each row is a few phases; a phase repeats a pattern, each time with the next microbatches."""
    m = max(num_microbatches, 2 * p - 1)        # the phases need 2p - 1: the surplus is left out
    schedule = []
    for rank in range(p):
        down, up = rank, 2 * p - 1 - rank
        phases = [
            (2 * (p - rank) - 1, [(FORWARD, down)]),
            (rank, [(FORWARD, up), (FORWARD, down)]),
            (p - rank, [(FORWARD, up), (INPUT, up), (WEIGHT, up)]),
            (m - p, [(FORWARD, down), (INPUT, down), (WEIGHT, down),
                     (FORWARD, up), (INPUT, up), (WEIGHT, up)]),
            (rank, [(INPUT, down), (INPUT, up)]),
            (p - rank, [(INPUT, down), (WEIGHT, down)]),
            (rank, [(WEIGHT, up)]),
            (rank, [(WEIGHT, down)])]
        done: Counter[tuple[str, int]] = Counter()
        row = []
        for times, pattern in phases:
            for what in pattern * times:
                row.append(Action(*what, done[what]))
                done[what] += 1
        schedule.append([action for action in row if action.microbatch < num_microbatches])
    return schedule


def _first_ready(p: int, m: int) -> Schedule:
    """The schedule for few microbatches, for which the phases do not fit together.

    In each unit of time, every rank does the first action on its list that is ready.  W, for which
    no rank waits, comes last, but first when the rank holds 2p microbatches.
    """
    schedule: Schedule = [[] for _ in range(p)]
    done: set[Op] = set()
    num_done: Counter[tuple[str, int]] = Counter()
    while len(done) < 6 * p * m:
        step = []
        for rank, row in enumerate(schedule):
            down, up = rank, 2 * p - 1 - rank
            held = sum(num_done[FORWARD, stage] - num_done[WEIGHT, stage] for stage in (down, up))
            weights = [(WEIGHT, down), (WEIGHT, up)]
            wanted = ([*weights, (INPUT, down), (INPUT, up)] if held == 2 * p else
                      [(FORWARD, up), (INPUT, down), (INPUT, up), (FORWARD, down), *weights])
            following = [Action(*what, num_done[what]) for what in wanted if num_done[what] < m]
            action = next((a for a in following if done.issuperset(needs(a, 2 * p))), None)
            if action is not None:
                row.append(action)
                step.append(action)
        done.update(step)
        num_done.update(action[:2] for action in step)
    return schedule
