"""The schedules whose backward is whole: GPipe, 1F1B, and both with several stages on each rank.

    gpipe                    all forwards, then all backwards      m microbatches in flight
    terapipe                 … in reverse: for slices of tokens    m slices in flight
    one_f_one_b              a backward as soon as there is one    p - s on stage s
    looped_breadth_first     GPipe with v stages on each rank
    interleaved              1F1B with v stages on each rank       bubble / v, more messages

An order is correct if, for each microbatch, stage s does its forward after stage s - 1 and its
backward after stage s + 1 (dependencies.py).  Orders differ in idle time and memory.  The schedules
in zero_bubble.py split the backward.

Huang et al. 2019, GPipe; Narayanan et al. 2019, PipeDream.  Narayanan et al. 2021, Efficient
large-scale language model training on GPU clusters (1F1B flushed, interleaved).  Lamy-Poirier 2023,
Breadth-first pipeline parallelism.
"""

from collections import Counter
from collections.abc import Sequence

from .actions import BACKWARD, FORWARD, Action, Placement, Schedule, TwoWay


def loop_placement(num_ranks: int, virtual_stages: int = 1) -> Placement:
    """Stage s on rank s mod p: the last rank's neighbour is the first."""
    return [stage % num_ranks for stage in range(num_ranks * virtual_stages)]


def v_placement(num_ranks: int, virtual_stages: int = 2) -> Placement:
    """Two stages on each rank, down and up again: the last rank has the two in the middle."""
    return [*range(num_ranks), *reversed(range(num_ranks))]


def placement_of(schedule: Schedule) -> Placement:
    """The rank of each stage: the one with most of its actions, and of equals the lowest.

    The result is a TwoWay if microbatches go through the ranks in two directions.

    Raises ValueError if there is a stage without any action, or none at all.
    """
    counted = Counter((action.stage, rank) for rank, row in enumerate(schedule) for action in row)
    most: dict[int, tuple[int, int]] = {}       # stage: (how many actions, -rank)
    if not counted:
        raise ValueError("the schedule has no actions: give it a row for each rank, from 0F0 on")
    for (stage, rank), number in counted.items():
        most[stage] = max(most.get(stage, (0, 0)), (number, -rank))
    for stage in range(max(most)):
        if stage not in most:
            raise ValueError(f"no rank does anything for stage {stage}: give it its actions, or "
                             "number the stages without a gap")
    return _two_ways(schedule, len(most)) or [-most[stage][1] for stage in sorted(most)]


def _two_ways(schedule: Schedule, num_stages: int) -> TwoWay | None:
    """The placement in two directions, if each microbatch goes through all ranks in one of them."""
    p = len(schedule)
    ways: dict[int, set[bool]] = {}
    for rank, row in enumerate(schedule):
        for _, stage, i in row:
            possible = {goes_up for goes_up in (False, True)
                        if stage == (p - 1 - rank if goes_up else rank)}
            ways[i] = ways.get(i, {False, True}) & possible
    other = [i for i, way in ways.items() if way == {True}]
    return TwoWay(range(p), other) if num_stages == p and other and all(ways.values()) else None


def gpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """All forwards, then all backwards, each in the order of the microbatches."""
    check_counts(num_ranks, num_microbatches)
    return [[Action(kind, stage, i) for kind in (FORWARD, BACKWARD)
             for i in range(num_microbatches)] for stage in range(num_ranks)]


def terapipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """All forwards, then all backwards in reverse, as slices of one sequence need (terapipe.py)."""
    check_counts(num_ranks, num_microbatches)
    return [[Action(FORWARD, stage, i) for i in range(num_microbatches)]
            + [Action(BACKWARD, stage, i) for i in reversed(range(num_microbatches))]
            for stage in range(num_ranks)]


def one_f_one_b(num_ranks: int, num_microbatches: int) -> Schedule:
    """Stage s runs p - s - 1 forwards ahead, then does a backward after every forward.

    So at most p - s microbatches are in flight there, whatever m is.
    """
    check_counts(num_ranks, num_microbatches)
    return [one_f_one_b_row(stage, num_ranks, num_microbatches) for stage in range(num_ranks)]


def one_f_one_b_row(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """The actions of a stage under 1F1B, in order.

        3 ranks, 4 microbatches      warm-up │ steady            │ drain

        stage 0                      F0 F1   │ F2 B0 F3 B1       │ B2 B3
        stage 1                      F0      │ F1 B0 F2 B1 F3 B2 │ B3
        stage 2                              │ F0 B0 … F3 B3     │

    Narayanan et al. 2021, figure 4.
    """
    forwards, backwards = ([Action(kind, stage, i) for i in range(num_microbatches)]
                           for kind in (FORWARD, BACKWARD))
    return alternate(forwards, backwards, ahead=num_stages - stage - 1)


def alternate(forwards: Sequence[Action], backwards: Sequence[Action], ahead: int) -> list[Action]:
    """The first `ahead` forwards, then a backward after every forward, then the last backwards."""
    ahead = min(ahead, len(forwards))
    row = [*forwards[:ahead]]
    for pair in zip(forwards[ahead:], backwards):
        row += pair
    return row + [*backwards[len(forwards) - ahead:]]


def looped_breadth_first(num_ranks: int, num_microbatches: int,
                         virtual_stages: int = 2) -> Schedule:
    """Each rank's stages in turn, all microbatches through one before the next: GPipe, looped.

    The backward takes them in the opposite order.
    """
    check_counts(num_ranks, num_microbatches, virtual_stages)
    schedule = []
    for rank in range(num_ranks):
        forwards = [Action(FORWARD, stage, i)
                    for stage in range(rank, num_ranks * virtual_stages, num_ranks)
                    for i in range(num_microbatches)]
        schedule.append(forwards + [a._replace(kind=BACKWARD) for a in reversed(forwards)])
    return schedule


def interleaved(num_ranks: int, num_microbatches: int, virtual_stages: int = 2,
                group_size: int | None = None) -> Schedule:
    """1F1B with `virtual_stages` on each rank; microbatches go through a rank's stages in groups.

        2 ranks, 4 microbatches, v = 2, groups 0 1 and 2 3      the first number is the stage

        rank 0   warm-up 0F0 0F1 2F0 2F1   steady 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1          drain …
        rank 1           1F0 1F1                  3F0 3B0 3F1 3B1 1F2 1B0 … 3F3 3B3

    A rank warms up with its earlier v - 1 stages for the first group, whose microbatches then go
    through its last stage.  It also does two forwards for each later rank: one while a microbatch
    goes up to the last rank, one while its gradient comes back.  After that a backward is due after
    every forward.  Messages cross p v - 1 boundaries, instead of p - 1.

    A group goes through all stages of a rank before the next group starts.  Groups have at least
    `group_size` microbatches (by default p) and equal sizes as far as possible: 10 microbatches on
    4 ranks are groups of 5 and 5.  With m < p all m are one group.  Raises ValueError unless
    min(p, m) ≤ group_size ≤ m: microbatches of smaller groups come back to a rank too late.
    """
    check_counts(num_ranks, num_microbatches, virtual_stages)
    p, m, v = num_ranks, num_microbatches, virtual_stages
    least = min(p, m)
    if group_size is None:
        group_size = least
    if not least <= group_size <= m:
        raise ValueError(f"interleaving {m} microbatches on {p} ranks takes groups of {least} to "
                         f"{m} microbatches, not of {group_size}")
    groups = _even_groups(m, m // group_size)
    schedule = []
    for rank in range(p):
        stages = range(rank, p * v, p)
        warm_up = (v - 1) * len(groups[0]) + 2 * (p - rank - 1)
        schedule.append(alternate(
            [Action(FORWARD, stage, i) for group in groups for stage in stages for i in group],
            [Action(BACKWARD, stage, i) for group in groups for stage in stages[::-1]
             for i in group], ahead=warm_up))
    return schedule


def _even_groups(count: int, num_groups: int) -> list[range]:
    """0 … count - 1 in `num_groups` groups, the first ones larger by one if need be."""
    size, larger = divmod(count, num_groups)
    starts = [i * size + min(i, larger) for i in range(num_groups + 1)]
    return [range(start, stop) for start, stop in zip(starts, starts[1:])]


def check_counts(num_ranks: int, num_microbatches: int, virtual_stages: int = 1) -> None:
    """Raise ValueError unless there is at least one of each."""
    for what, number in (("ranks", num_ranks), ("microbatches", num_microbatches),
                         ("virtual stages", virtual_stages)):
        if number < 1:
            raise ValueError(f"a pipeline needs at least 1 of its {what}, not {number}")
