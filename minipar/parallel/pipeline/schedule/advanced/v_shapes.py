"""V-Half and V-Min: two stages on each rank in a V, with half and a third of 1F1B's activations.

    V-Min     rank 0   0 · · · · · · 7 …       the pattern: slots in which a microbatch goes down
    4 ranks   rank 1   · 1 · · · · 6 · …       and up (F), and then back (I).  The next one does so
              rank 2   · · 2 · · 5 · · …       6 slots later, as two stages do F, I and W.  The
              rank 3   · · · 3 4 · · · …       sooner one is back, the fewer a rank holds

A schedule is made in passes.  The pattern is repeated, with W in the free slots.  Then actions of
the first and of the last microbatches move to earlier free slots.  Their inputs must be there, and
no more microbatches may be held than before.  Actions move twice: with W as actions like others,
and then without W, which takes the slots that are left.  The order that comes out is the schedule.

At most 2⌊(p + 2)/2⌋ (V-Half) or 2⌊(p + 4)/3⌋ (V-Min) microbatches are held, each on a stage of half
the layers; 1F1B holds p on whole ones.  Qi, Wan, Amar & Lin 2024, Pipeline parallelism with
controllable memory, arXiv 2405.15362.
"""

from collections.abc import Iterable
from itertools import accumulate

from ..actions import FORWARD, INPUT, WEIGHT, Action, Schedule
from ..schedules import check_counts

# of a rank: for F down, F up, I up, I down, and perhaps W, the slot of each microbatch
Slots = list[list[int]]
KINDS = (FORWARD, FORWARD, INPUT, INPUT, WEIGHT, WEIGHT)
PERIOD, F_DOWN, I_UP, I_DOWN, W = 6, 0, 2, 3, 4


def v_half(num_ranks: int, num_microbatches: int) -> Schedule:
    """A microbatch takes two slots to the next rank on the way down, and one on the way up."""
    starts = pattern(num_ranks, slots_down=2, pause=0 if num_ranks % 2 else 3, turn=1)
    return _schedule(num_ranks, num_microbatches, starts)


def v_min(num_ranks: int, num_microbatches: int) -> Schedule:
    """Each way takes a slot a rank: the shortest way there is."""
    starts = pattern(num_ranks, slots_down=1, pause=0 if num_ranks % 3 else 2, turn=0)
    return _schedule(num_ranks, num_microbatches, starts)


def pattern(p: int, slots_down: int, pause: int, turn: int) -> Slots:
    """For each rank the slots at which F down, F up, I up and I down of microbatch 0 begin.

    It takes `slots_down` slots to the next rank on the way down, and one on the way up.  I waits
    `pause` slots on rank 0 and `turn` on the last rank, so that no two actions of a rank meet.
    """
    down = slots_down * (p - 1)
    back = down + p + 1 + pause
    return [[slots_down * r, down + p - r, back + slots_down * r, back + down + turn + p - r]
            for r in range(p)]


def _schedule(p: int, m: int, starts: Slots) -> Schedule:
    check_counts(p, m)
    rows = [[[start + PERIOD * i for i in range(m)] for start in row] for row in starts]
    rows = _squeeze(_move_early([_with_weights(row) for row in rows]))
    rows = _move_early([row[:W] for row in rows])
    rows = _squeeze([_with_weights(row) for row in rows])
    rows = [_with_weights(row[:W], apart=True) for row in rows]
    stages = [(rank, 2 * p - 1 - rank, 2 * p - 1 - rank, rank, 2 * p - 1 - rank, rank)
              for rank in range(p)]
    return [[Action(KINDS[kind], stages[rank][kind], i) for _, kind, i in _in_order(row)]
            for rank, row in enumerate(rows)]


def _in_order(row: Slots) -> list[tuple[int, int, int]]:
    """The actions of a rank as (slot, kind, microbatch), in the order of their slots."""
    return sorted((slot, kind, i) for kind, slots in enumerate(row) for i, slot in enumerate(slots))


def _all_in_order(rows: Iterable[Slots]) -> list[tuple[int, int, int, int]]:
    """The slots of all ranks, as (slot, rank, kind, microbatch)."""
    return sorted((slot, rank, kind, i) for rank, row in enumerate(rows)
                  for slot, kind, i in _in_order(row))


def _with_weights(row: Slots, apart: bool = False) -> Slots:
    """The row with W in free slots after I, the stage up first; `apart`: a list for each stage."""
    taken = {slot: kind for slot, kind, _ in _in_order(row)}
    weights: Slots = [[], []] if apart else [[]]
    due, slot, last = [0] * len(weights), 0, max(taken)
    while slot <= last or any(due):
        if slot not in taken:
            for stage, number in enumerate(due):
                if number:
                    weights[stage].append(slot)
                    due[stage] -= 1
                    break
        elif taken[slot] in (I_UP, I_DOWN):
            due[taken[slot] - I_UP if apart else 0] += 1
        slot += 1
    return [*row, *weights]


def _most_held(row: Slots) -> int:
    """The most microbatches in flight; a row without W gets each W as soon as a slot is free."""
    return max(accumulate((kind < I_UP) - (kind == W) for _, kind, _ in
                          _in_order(row if len(row) > W else _with_weights(row))))


def _earliest(rows: list[Slots], rank: int, kind: int, i: int) -> int:
    """The first slot at which an action has its inputs."""
    row, before = rows[rank], [-1]
    neighbour = rank - 1 if kind in (F_DOWN, I_UP) else rank + 1
    if kind < W and 0 <= neighbour < len(rows):
        before.append(rows[neighbour][kind][i])
    if 0 < kind < W:
        before.append(row[kind - 1][i])
    if kind == W:
        before.append(sorted(row[I_UP] + row[I_DOWN])[i])
    if i:
        before.append(row[kind][i - 1])
    return max(before) + 1


def _move_early(rows: list[Slots]) -> list[Slots]:
    """Move actions to earlier free slots.

    Those before rank 0's first I down move only if the rows have W, those after the last F down
    always.
    """
    most, with_weights = max(map(_most_held, rows)), len(rows[0]) > W
    taken: list[set[int]] = [set() for _ in rows]
    last, phase = len(rows[0][F_DOWN]) - 1, 0
    for slot, rank, kind, i in _all_in_order(rows):
        slots = rows[rank][kind]
        if phase == 0 and (rank, kind) == (0, I_DOWN):
            phase = 1
        moves = phase == 2 or phase == 0 and with_weights
        if phase == 1 and (kind, i) == (F_DOWN, last):
            phase = 2
        for earlier in range(_earliest(rows, rank, kind, i), slot) if moves else ():
            if earlier in taken[rank]:
                continue
            slots[i] = earlier
            if with_weights and kind >= I_UP or _most_held(rows[rank]) <= most:
                break                           # an earlier I or W holds no more microbatches
            slots[i] = slot
        taken[rank].add(slots[i])
    return rows


def _squeeze(rows: list[Slots]) -> list[Slots]:
    """The same order on each rank, each action as early as it can be."""
    squeezed = [[[0] * len(slots) for slots in row] for row in rows]
    free = [0] * len(rows)
    for _, rank, kind, i in _all_in_order(rows):
        earliest = _earliest(squeezed, rank, kind, i) if kind < W else 0
        squeezed[rank][kind][i] = max(free[rank], earliest)
        free[rank] = squeezed[rank][kind][i] + 1
    return squeezed
