"""Chimera and DualPipe: half of the microbatches go down the ranks, half of them up.

    p = 4    down: microbatches 0, 1    up: 2, 3         rank r has stage r for those that go down
                                                         and stage p - 1 - r for those that go up;
    rank 0   0F0 0F1 3F2 3B2 3F3 3B3 0B0 0B1             so each stage is on two ranks, which add
    rank 1   1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1             up their gradients
    rank 2   1F2 2F0 1F3 2F1 2B0 1B2 2B1 1B3
    rank 3   0F2 0F3 3F0 3B0 3F1 3B1 0B2 0B3

Each way fills the gaps of the other.  Chimera takes units of p microbatches, half of a unit each
way.  On stage s the k-th microbatch does F at slot s + 2k, and B at slot 2p - 1 - s + 2k.  A unit
begins 2p slots after the unit before.  No two actions of a rank meet if p is even.  With B = F a
rank is idle for p - 2 slots.

DualPipe is DualPipeV on p/2 ranks, unfolded.  What is a rank's second stage in DualPipeV is here
the stage of the microbatches that go up.  Half of m >= 2p microbatches go each way.  A rank is idle
for (p/2 - 1)(F&B + B - 3W), where F&B is the time of a pair, and holds p + 1 microbatches.  With an
odd p, DualPipe is Chimera's rule for one unit.

Li & Hoefler 2021, Chimera (SC), arXiv 2107.06925; DeepSeek-AI 2024, arXiv 2412.19437.
"""

from ..actions import BACKWARD, FORWARD, Action, Schedule, Together, TwoWay
from ..schedules import check_counts
from .dualpipe_v import dualpipe_v


def chimera_placement(num_ranks: int, num_microbatches: int) -> TwoWay:
    """In units of p microbatches: the second half of each goes up."""
    return TwoWay(range(num_ranks), [i for i in range(num_microbatches)
                                     if i % num_ranks >= (num_ranks + 1) // 2])


def dualpipe_placement(num_ranks: int, num_microbatches: int) -> TwoWay:
    """The second half of all microbatches goes up."""
    return TwoWay(range(num_ranks), range((num_microbatches + 1) // 2, num_microbatches))


def chimera(num_ranks: int, num_microbatches: int) -> Schedule:
    """Units of p microbatches, half of each down and half up, merged slot by slot."""
    check_counts(num_ranks, num_microbatches)
    return _by_slots(num_ranks, num_microbatches, num_ranks)


def _by_slots(p: int, m: int, unit: int) -> Schedule:
    """The actions of each rank in the order of their slots; down first where two meet."""
    slots: list[list[tuple[int, int, Action]]] = [[] for _ in range(p)]
    down = (unit + 1) // 2
    for i in range(m):
        number, within = divmod(i, unit)
        k, goes_up = within % down, within >= down
        for stage in range(p):
            row = slots[p - 1 - stage if goes_up else stage]
            begin = 2 * p * number + 2 * k
            row.append((begin + stage, goes_up, Action(FORWARD, stage, i)))
            row.append((begin + 2 * p - 1 - stage, goes_up, Action(BACKWARD, stage, i)))
    return [[action for _, _, action in sorted(row)] for row in slots]


def dualpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """DualPipeV unfolded: its rows on ranks 0 … p/2 - 1, mirrored on the others."""
    check_counts(num_ranks, num_microbatches)
    p, m, half = num_ranks, num_microbatches, (num_microbatches + 1) // 2
    if p % 2:
        return _by_slots(p, m, m + m % 2)
    folded = dualpipe_v(p // 2, half)
    schedule = []
    for rank in range(p):
        row = []
        for action in folded[min(rank, p - 1 - rank)]:
            goes_up = (action.stage >= p // 2) != (rank >= p // 2)
            row.append(type(action)(action.kind, action.stage, action.microbatch + half * goes_up))
        schedule.append(without(row, m))
    return schedule


def without(row: list[Action], num_microbatches: int) -> list[Action]:
    """The row without microbatches from `num_microbatches` on; a pair may become one action."""
    kept = []
    for at, action in enumerate(row):
        alone = at + 1 == len(row) or row[at + 1].microbatch >= num_microbatches
        if action.microbatch < num_microbatches:
            kept.append(Action(*action) if isinstance(action, Together) and alone else action)
    return kept
