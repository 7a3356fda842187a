"""Zero-bubble schedules: backward in two halves, and the half nobody waits for fills the gaps.

    ZB-H1, stage 2 of 4                         I: gradient of the input, which stage 1 waits for
                                                W: gradient of the weights, whenever there is time
    1F1B    F0 F1 B0 F2 B1 F3 B2 … B7
    ZB-H1   F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 … I7 W5 W6 W7

Stage s puts its W off by s microbatches.  The last stage, which 1F1B would leave idle at the end,
does them then; a stage never holds more than p microbatches, as 1F1B's first one does.  With
m >= p and W <= min(F, I) the bubble is (p - 1)(F + I - W), where 1F1B's is (p - 1)(F + I + W).

ZB-V has two stages on each rank, in a V: the last rank has the two in the middle, the first rank
the first and the last one, so a backward starts where its forward ends, without a message.

Qi, Wan, Huang & Lin 2023, Zero bubble pipeline parallelism.
"""

from collections import Counter

from .schedules import FORWARD, INPUT, WEIGHT, Action, Schedule, check_counts


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
    """Two stages on each rank in a V; rank r has stage r ("down") and 2p - 1 - r ("up").

    Each row is a few phases, each a pattern that is repeated and in which every action takes its
    stage's next microbatch.
    """
    check_counts(num_ranks, num_microbatches)
    p = num_ranks
    m = max(num_microbatches, 2 * p - 1)        # the phases need so many: the others are left out
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
