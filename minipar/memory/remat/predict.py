"""Predict what a plan costs: peak bytes, recomputed FLOPs, and every step in order.

    part          0    1    2    3    plan (0, (1, 2), 3)
    forward       ●    ○    ○    ●    ● keeps what it saves, ○ drops it; (1, 2) keeps its input
    backward                     ◀    frees what part 3 kept
    again              ●    ●         up to the last array that is saved; then the input is freed
    backward      ◀    ◀    ◀

Before backward starts a part, it has finished the next part and freed everything that the next part
kept.  So a plan runs part by part, and the profile of each part (`profile.py`) determines which
bytes are alive in every step.  Griewank & Walther 2000; Chen et al. 2016.

Two parts share a storage only where one passes its output to the next: ReLU saves its result, and
the layer behind it saves the same array as its input.  (A part that returns its very input counts
as a copy.)
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from .plans import Plan, parts_of
from .profile import ChainProfile

FORWARD, AGAIN, LOSS, BACKWARD = "forward", "again", "loss", "backward"


class PartStep(NamedTuple):
    """One run of a part, of `kind` forward, again (a recomputed forward) or backward; or the loss.

    It computes `flops`; `recomputed` of them were computed before.  At most `live` bytes of
    activations are alive meanwhile.
    """

    kind: str
    part: int
    flops: int
    recomputed: int
    live: int


class PlanCost(NamedTuple):
    """The cost of a plan: peak bytes of activations, recomputed FLOPs, forwards of each part."""

    peak: int
    extra_flops: int
    runs: tuple[int, ...]


def predict(plan: Plan, costs: ChainProfile) -> PlanCost:
    """The cost of forward, loss and backward by `plan`, equal to what a ledger and a meter count.

    Raises ValueError unless the plan names all parts in order.
    """
    steps = list(run_steps(plan, costs))
    runs = Counter(step.part for step in steps if step.kind in (FORWARD, AGAIN))
    return PlanCost(max(step.live for step in steps), sum(step.recomputed for step in steps),
                    tuple([runs[i] for i in range(len(costs.parts))]))


def run_steps(plan: Plan, costs: ChainProfile) -> Iterator[PartStep]:
    """Yield every step of forward, loss and backward by `plan`, in order.

    Raises ValueError unless the plan names all parts in order.
    """
    count = len(costs.parts)
    if parts_of(plan) != list(range(count)):
        raise ValueError(f"the plan {plan} must name the parts 0 … {count - 1}, each once and in "
                         "this order")
    walk = _PlanWalk(costs)
    yield from walk.forward(plan)
    yield PartStep(LOSS, count, 0, 0, walk.live + costs.loss_bytes)
    yield from walk.backward(plan)


class LiveStorages:
    """The live storages of a chain, how many holders each has, and their total bytes, `live`.

    ("tape", i) is what part i alone saves.  ("input", i) is the input of part i.  Holders of an
    input are part i - 1 if it saves its output, part i if it saves its input, and a segment that
    starts at part i.
    """

    def __init__(self, costs: ChainProfile):
        self.parts, self.live = costs.parts, 0
        self.uses: Counter[tuple[str, int]] = Counter()

    def size(self, kind: str, i: int) -> int:
        """The bytes of a storage."""
        part = self.parts[i]
        if kind == "input":
            return part.input_bytes
        shared = self.parts[i + 1].input_bytes if self._shares_output(i) else 0
        return part.saved_bytes[1] - shared

    def _shares_output(self, i: int) -> bool:
        return bool(self.parts[i].saves_output) and i + 1 < len(self.parts)

    def saved_by(self, i: int) -> list[tuple[str, int]]:
        """The storages that part i saves."""
        return [("tape", i), *[("input", i)] * self.parts[i].saves_input,
                *[("input", i + 1)] * self._shares_output(i)]

    def keep(self, *storages: tuple[str, int]) -> None:
        """Add a holder to each of these storages."""
        for key in storages:
            self.uses[key] += 1
            self.live += self.size(*key) if self.uses[key] == 1 else 0

    def free(self, *storages: tuple[str, int]) -> None:
        """Remove a holder from each of these storages; the last one frees it."""
        for key in storages:
            self.uses[key] -= 1
            self.live -= 0 if self.uses[key] else self.size(*key)


class _PlanWalk(LiveStorages):
    """The steps of forward and backward by a plan."""

    def saves(self, plan: Plan) -> bool:
        """True if any part of the plan saves an array."""
        return any(self.parts[i].num_saved for i in parts_of(plan))

    def forward(self, plan: Plan, kind: str = FORWARD) -> Iterator[PartStep]:
        """Run the items in order; a recomputation stops after the last saved array."""
        for at, item in enumerate(plan):
            is_last = kind == AGAIN and not self.saves(plan[at + 1:])
            if isinstance(item, int):
                self.keep(*self.saved_by(item))
            elif self.saves(item):
                self.keep(("input", parts_of(item)[0]))
                if is_last:
                    return
            for i in parts_of((item,)):
                flops = self.parts[i].recompute_flops if is_last else self.parts[i].forward_flops
                yield PartStep(kind, i, flops, flops if kind == AGAIN else 0, self.live)
            if is_last:
                return

    def backward(self, plan: Plan) -> Iterator[PartStep]:
        """Run the backward of the items, last first; recompute a segment before its backward."""
        for item in reversed(plan):
            if isinstance(item, int):
                part = self.parts[item]
                held = self.uses["input", item] > part.saves_input
                nested = part.peak_bytes[held] - part.saved_bytes[held]     # of segments inside it
                yield PartStep(BACKWARD, item, part.backward_flops + part.nested_flops,
                               part.nested_flops, self.live + nested)
                self.free(*self.saved_by(item))
            else:
                if self.saves(item):
                    yield from self.forward(item, AGAIN)
                    self.free(("input", parts_of(item)[0]))
                yield from self.backward(item)
