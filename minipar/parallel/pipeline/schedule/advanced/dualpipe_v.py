"""DualPipeV: forwards and backwards of different microbatches together, on two stages in a V.

    rank 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3+3B1 3F2+0B0 3B2 3F3+0B1 3B3 0I2 0W2 0I3 0W3
    rank 1       1F0 2F0 1F1 2F1 1F2 2B0 2F2+1B0 1F3+2B1 2F3+1B1 2B2 1B2 2I3 1I3 2W3 1W3

Rank r has stage r, going down, and stage 2p - 1 - r, coming up.  In the steady part F of one stage
goes together with B of the other (+).  So the messages of a mixture of experts in one stage hide
behind the computation of the other.  Here a pair takes F + B: its inputs are there when it begins,
and its results when it ends.

With m >= 2p the idle time of a rank is (p - 1)(F&B + B - 3W), where F&B is the time of a pair.  The
rank holds 2p + 1 microbatches, each on a stage of half the layers.  For m < 2p the schedule is that
of 2p microbatches, without those that do not exist.
DeepSeek-AI 2024, arXiv 2412.19437 (DualPipe); Sea AI Lab 2025 (cut in half: DualPipeV).
"""

from collections import Counter, deque

from ..actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule, Together
from ..schedules import check_counts


def dualpipe_v(num_ranks: int, num_microbatches: int) -> Schedule:
    """Two stages on each rank in a V; rank r has stage r ("down") and 2p - 1 - r ("up")."""
    check_counts(num_ranks, num_microbatches)
    p, m = num_ranks, max(num_microbatches, 2 * num_ranks)
    schedule = []
    for rank in range(p):
        row = _Row(rank, 2 * p - 1 - rank)
        down, up, left = 0, 1, p - 1 - rank
        row.add(2 * left, (FORWARD, down))
        row.add(rank + 1, (FORWARD, down), (FORWARD, up))
        row.add(left, (INPUT, up), (WEIGHT, up), (FORWARD, up))
        steady = m - 2 * p + rank + 1
        if left == 0:                           # the last rank's first pair has just begun
            row.add(1, (FORWARD, down), (BACKWARD, up), (FORWARD + BACKWARD, up))
            steady -= 1
        row.add(steady, (FORWARD + BACKWARD, down), (FORWARD + BACKWARD, up))
        row.add(left, (BACKWARD, up), (FORWARD + BACKWARD, up))
        for i in range(2 * (rank + 1)):         # both stages by turns; the second half by I
            row.add(1, (BACKWARD if i <= rank else INPUT, down if i % 2 else up))
        row.add(left, (WEIGHT, down), (INPUT, down))
        row.add(rank + 1, (WEIGHT, down))
        schedule.append(row.of_microbatches(num_microbatches))
    return schedule


class _Row:
    """The row of a rank in the making: `add` knows the next microbatch of each kind and stage."""

    def __init__(self, *stages: int):
        self.stages = stages
        self.actions: list[tuple[Action, ...]] = []         # pairs are together
        self.num: Counter[tuple[str, int]] = Counter()
        self.waiting: deque[Action] = deque()               # I whose W is still to be done

    def add(self, times: int, *patterns: tuple[str, int]) -> None:
        """Add actions; "FB" of a stage is its F together with the other stage's B."""
        for kind, which in patterns * times:
            if kind == FORWARD + BACKWARD:
                pair = self.next(FORWARD, which), self.next(BACKWARD, 1 - which)
                self.actions.append(pair)
            else:
                self.actions.append((self.next(kind, which),))

    def next(self, kind: str, which: int) -> Action:
        """The next action of a kind on a stage; W belongs to the I that has waited longest."""
        if kind == WEIGHT:
            return self.waiting.popleft()._replace(kind=WEIGHT)
        group = FORWARD if kind == FORWARD else INPUT       # B and I count together
        action = Action(kind, self.stages[which], self.num[group, which])
        self.num[group, which] += 1
        if kind == INPUT:
            self.waiting.append(action)
        return action

    def of_microbatches(self, num: int) -> list[Action]:
        """The row without microbatches from `num` on."""
        row: list[Action] = []
        for cell in self.actions:
            kept = [action for action in cell if action.microbatch < num]
            row += [Together(*kept[0]), kept[1]] if len(kept) > 1 else kept
        return row
