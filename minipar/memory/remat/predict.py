"""What a plan of rematerialization costs, before it runs: bytes at the peak, FLOPs, computations.

    part          0    1    2    3    plan (0, (1, 2), 3)
    forward       ●    ○    ○    ●    ● keeps what it saves, ○ drops it; (1, 2) keeps its input
    backward                     ◀    frees what part 3 kept
    again              ●    ●         up to the last array that is saved; then the input goes
    backward      ◀    ◀    ◀

Backward is through with a part, and has freed all that it kept, before it comes to the one before.
So a plan runs part by part, and the profile of each part (`profile.py`) determines which bytes are
alive in every step.  Griewank & Walther 2000; Chen et al. 2016.

Parts share storages only where one hands its output to the next: ReLU saves its result, and the
layer behind it the same array as its input.  (One that returns its very input counts as a copy.)
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from .plans import Plan, parts_of
from .profile import ChainProfile

FORWARD, AGAIN, LOSS, BACKWARD = "forward", "again", "loss", "backward"


class Step(NamedTuple):
    """One run of a part: forward for the first time, again, or backward; or the loss.

    `flops` that it computes, of which `recomputed` had been computed before; `live` bytes of
    activations, at the most.
    """

    kind: str
    part: int
    flops: int
    recomputed: int
    live: int


class PlanCost(NamedTuple):
    """What a plan costs: bytes of activations at the peak, FLOPs that are computed again, and how
    often the forward of each part is begun."""

    peak: int
    extra_flops: int
    runs: tuple[int, ...]


def predict(plan: Plan, costs: ChainProfile) -> PlanCost:
    """What running the parts by `plan`, the loss, and backward cost.

    Equal to what a ledger and a meter count.  Raises ValueError if the plan is not one of all
    parts in their order.
    """
    steps = list(run_steps(plan, costs))
    runs = Counter(step.part for step in steps if step.kind in (FORWARD, AGAIN))
    return PlanCost(max(step.live for step in steps), sum(step.recomputed for step in steps),
                 tuple([runs[i] for i in range(len(costs.parts))]))


def run_steps(plan: Plan, costs: ChainProfile) -> Iterator[Step]:
    """Every step of the forward and backward that `plan` describes, in order.

    Raises ValueError if the plan is not one of all parts in their order.
    """
    count = len(costs.parts)
    if parts_of(plan) != list(range(count)):
        raise ValueError(f"the plan {plan} is to name the parts 0 … {count - 1}, each once and in "
                         "this order")
    run = _PlanWalk(costs)
    yield from run.forward(plan)
    yield Step(LOSS, count, 0, 0, run.live + costs.loss)    # it is alone with all that was kept
    yield from run.backward(plan)


class LiveStorages:
    """What is alive, by who holds it, and its bytes, `live`.

    They are ("tape", i), what part i alone saves, and ("input", i), which part i - 1 may have
    saved as its output, and a segment that begins at i keeps.
    """

    def __init__(self, costs: ChainProfile):
        self.parts, self.live = costs.parts, 0
        self.uses: Counter[tuple[str, int]] = Counter()

    def size(self, kind: str, i: int) -> int:
        """Bytes of a storage."""
        part = self.parts[i]
        if kind == "input":
            return part.input
        return part.tape[1] - (self.parts[i + 1].input if self._shares_output(i) else 0)

    def _shares_output(self, i: int) -> bool:
        return bool(self.parts[i].saves_output) and i + 1 < len(self.parts)

    def saved_by(self, i: int) -> list[tuple[str, int]]:
        """The storages that part i saves."""
        return [("tape", i), *[("input", i)] * self.parts[i].saves_input,
                *[("input", i + 1)] * self._shares_output(i)]

    def keep(self, *storages: tuple[str, int]) -> None:
        """One more holds each of these."""
        for key in storages:
            self.uses[key] += 1
            self.live += self.size(*key) if self.uses[key] == 1 else 0

    def free(self, *storages: tuple[str, int]) -> None:
        """One fewer holds each of these."""
        for key in storages:
            self.uses[key] -= 1
            self.live -= 0 if self.uses[key] else self.size(*key)


class _PlanWalk(LiveStorages):
    """Forward and backward by a plan."""

    def saves(self, plan: Plan) -> bool:
        """Whether any part of it saves anything."""
        return any(self.parts[i].saves for i in parts_of(plan))

    def forward(self, plan: Plan, kind: str = FORWARD) -> Iterator[Step]:
        """Run the items; a recomputation ends as soon as the last array was saved."""
        for at, item in enumerate(plan):
            is_last = kind == AGAIN and not self.saves(plan[at + 1:])
            if isinstance(item, int):
                self.keep(*self.saved_by(item))
            elif self.saves(item):
                self.keep(("input", parts_of(item)[0]))
                if is_last:
                    return
            for i in parts_of((item,)):
                flops = self.parts[i].again if is_last else self.parts[i].forward
                yield Step(kind, i, flops, flops if kind == AGAIN else 0, self.live)
            if is_last:
                return

    def backward(self, plan: Plan) -> Iterator[Step]:
        """Undo the items, the last one first; each segment is computed again before."""
        for item in reversed(plan):
            if isinstance(item, int):
                part = self.parts[item]
                held = self.uses["input", item] > part.saves_input
                more = part.most[held] - part.tape[held]    # if it computes again by itself
                yield Step(BACKWARD, item, part.backward + part.inside, part.inside,
                           self.live + more)
                self.free(*self.saved_by(item))
            else:
                if self.saves(item):
                    yield from self.forward(item, AGAIN)
                    self.free(("input", parts_of(item)[0]))
                yield from self.backward(item)
