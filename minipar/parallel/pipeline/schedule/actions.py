"""Actions and rows: a schedule is a row of actions for each rank, plain data.

    1F1B, 4 ranks, 8 microbatches               2F0: stage 2's forward of microbatch 0

    rank 0   0F0 0F1 0F2│0F3 0B0 0F4 0B1 …
    rank 1   1F0 1F1│1F2 1B0 1F3 1B1 …
    rank 2   2F0│2F1 2B0 2F2 2B1 …
    rank 3   │3F0 3B0 3F1 3B1 …

A stage is a run of layers.  A rank starts the next action of its row as soon as the one before is
done, and its input has arrived from the neighbouring stage.

Before │ is the warm-up, forwards alone.  Behind it the steady part begins: a backward after every
forward (schedules.py).

B = I + W: I is the gradient of the stage's input, for which the stage before waits.  W is the
gradient of its weights, for which no rank waits.  A schedule may do them apart (zero_bubble.py).
"""

from collections.abc import Iterable
from typing import NamedTuple

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"      # the kinds of actions


class Action(NamedTuple):
    """One stage's work of one kind on one microbatch; prints as 2F0."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


class Together(Action):
    """An action that goes together with the next of its row; the pair is written 0F3+1B1.

    It begins when the inputs of both are there, and sends the results of both at its end.
    """


Schedule = list[list[Action]]       # for each rank its row: the actions, in order
Placement = list[int]               # for each stage its rank


class TwoWay(Placement):
    """Two directions: the microbatches of `other` go through the ranks the other way round.

    Each stage is on two ranks; the mirrored one computes it for the microbatches of `other`.
    """

    def __init__(self, ranks: Iterable[int], other: Iterable[int]):
        super().__init__(ranks)
        self.other = frozenset(other)


def stages_on(placement: Placement, rank: int) -> list[int]:
    """The stages whose weights a rank has."""
    return [stage for stage, owner in enumerate(placement) if rank in (
        owner, placement[-1 - stage] if isinstance(placement, TwoWay) else owner)]
