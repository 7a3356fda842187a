"""A step in which every part has it its own way, played on three lanes: what it takes, and when.

    compute   ▐F0▌▐F1▌▐F2▌▐F3▌┃▐B3▌▐A2▌▐B2▌▐B1▌▒▒▒▐B0▌      0, 1  offload   wait on the host
    copy out      ▐─0─▌▐─1─▌  ┃                             2     recompute (A) from its input
    copy in                   ┃        ▐─1─▌▐──0──▌         3     keep      ▒ nothing to compute

What a part keeps leaves in one copy when its forward has ended, and has until the forward of the
part `ahead` after it has ended: then the program waits, and its memory is free.  It comes back from
the moment when backward begins with the part `ahead` after it.  Each lane does one thing after the
other.  So what is alive follows from the order alone, the same on every machine; the time follows
from

    compute   FLOPs / flops_per_second          copy   bytes / bytes_per_second, each direction

A storage that two parts save, the output of one and input of the next, is copied by each that
offloads it.  The loss is the last part.  vDNN, Rhu et al. 2016; Capuchin, Peng et al. 2020.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..remat.predict import AGAIN, BACKWARD, FORWARD, LiveStorages
from ..remat.profile import ChainProfile, PartProfile

KEEP, RECOMPUTE, OFFLOAD, OFFLOAD_INPUT = "keep", "recompute", "offload", "offload input"
DECISIONS = KEEP, RECOMPUTE, OFFLOAD, OFFLOAD_INPUT     # the last: recompute, its input on the host
COMPUTE, COPY_OUT, COPY_IN = "compute", "copy out", "copy in"
WAITING = "waiting"
BACK = "back"           # a storage: what came back


class Machine(NamedTuple):
    """How fast it computes, in FLOP/s, and copies to and from its host, in bytes/s each way; how
    many parts `ahead` a copy begins before it must have ended, 1 at least."""

    flops_per_second: float
    bytes_per_second: float
    ahead: int = 1


class LaneStep(NamedTuple):
    """What a lane does for a part from `start` to `end`, in seconds.

    `kind` is forward, again, backward, waiting, or the lane's name.  `num_bytes` are those alive
    meanwhile, at the most, or those copied.
    """

    lane: str
    kind: str
    part: int
    start: float
    end: float
    num_bytes: int


def possible_decisions(cost: PartProfile) -> list[str]:
    """What can be decided for a part: nothing that would change nothing."""
    return [KEEP, *[RECOMPUTE] * bool(cost.saves), *[OFFLOAD] * bool(cost.tape[0]),
            *[OFFLOAD_INPUT] * bool(cost.saves and cost.input)]


def copied(decision: str, cost: PartProfile) -> int:
    """Bytes that leave, and come back."""
    return {OFFLOAD: cost.tape[0], OFFLOAD_INPUT: cost.input}.get(decision, 0)


def step_cost(decisions: Sequence[str], costs: ChainProfile, machine: Machine) -> tuple[float, int]:
    """Seconds that the step takes, and bytes of activations at its peak; see `simulate_step`."""
    computing = [step for step in simulate_step(decisions, costs, machine) if step.lane == COMPUTE]
    return max(step.end for step in computing), max(step.num_bytes for step in computing)


def simulate_step(decisions: Sequence[str], costs: ChainProfile,
                  machine: Machine) -> list[LaneStep]:
    """What each lane does, in the order in which it begins to be wanted.

    Raises ValueError for decisions that cannot be made, or costs with a loss that is no part.
    """
    check_machine(machine, costs)
    if len(decisions) != len(costs.parts):
        raise ValueError(f"{len(costs.parts)} parts need as many decisions, not {len(decisions)}")
    for i, (decision, cost) in enumerate(zip(decisions, costs.parts)):
        if decision not in possible_decisions(cost):
            raise ValueError(f"part {i} cannot {decision!r}: {', '.join(possible_decisions(cost))}")
    run = _Simulation(decisions, costs, machine)
    for i in range(len(decisions)):
        run.forward(i)
    for i in reversed(range(len(decisions))):
        run.backward(i)
    return run.steps


def check_machine(machine: Machine, costs: ChainProfile) -> None:
    """Raise ValueError for a machine that is none, or for costs with a loss that is no part."""
    if not (machine.flops_per_second > 0 and machine.bytes_per_second > 0 and machine.ahead >= 1):
        raise ValueError("a machine computes and copies with positive speeds, at least 1 part "
                         f"ahead, not as {machine}")
    if costs.loss:
        raise ValueError("the loss takes time, too: measure it as the last part")


class _Simulation(LiveStorages):
    """Three lanes: `clock` is that of computation, `free` when each of the others has ended."""

    def __init__(self, decisions: Sequence[str], costs: ChainProfile, machine: Machine):
        super().__init__(costs)
        self.decisions, self.machine, self.steps = decisions, machine, []
        self.clock, self.free_at = 0.0, {COPY_OUT: 0.0, COPY_IN: 0.0}
        self.out: dict[int, float] = {}         # copies that nobody waited for, and their ends
        self.back: dict[int, float] = {}

    def size(self, kind: str, i: int) -> int:
        """See LiveStorages."""
        return copied(self.decisions[i], self.parts[i]) if kind == BACK else super().size(kind, i)

    def kept_by(self, i: int) -> list[tuple[str, int]]:
        """The storages that part i holds after its forward."""
        recomputes = self.decisions[i] in (RECOMPUTE, OFFLOAD_INPUT)
        return [("input", i)] if recomputes else self.saved_by(i)

    def forward(self, i: int) -> None:
        """Part i; then what left `ahead` parts before is gone, and what part i keeps leaves."""
        self.keep(*self.kept_by(i))
        self.compute(FORWARD, i, self.parts[i].forward)
        self.wait_out(i - self.machine.ahead)
        if copied(self.decisions[i], self.parts[i]):
            self.out[i] = self.copy(COPY_OUT, i)

    def backward(self, i: int) -> None:
        """What is wanted in `ahead` parts begins to come; part i, whose own has to be there."""
        for j in range(i, max(-1, i - self.machine.ahead - 1), -1):
            self.bring(j)
        self.wait(i, self.back.get(i, 0.0))
        part, saved = self.parts[i], self.saved_by(i)
        decision, came = self.decisions[i], (BACK, i)
        if decision == OFFLOAD:
            saved = [came]
        elif decision != KEEP:
            source = came if decision == OFFLOAD_INPUT else ("input", i)
            saved = [source if key == ("input", i) else key for key in saved]
            self.keep(*saved)
            self.compute(AGAIN, i, part.again)
            self.free(source)
        held = self.uses["input", i] > 1 and ("input", i) in saved
        more = part.most[held] - part.tape[held]        # if it computes again by itself
        self.compute(BACKWARD, i, part.inside + part.backward, more)
        self.free(*saved)

    def bring(self, i: int) -> None:
        """Begin to copy in what part i has on the host, if that has not begun."""
        if copied(self.decisions[i], self.parts[i]) and i not in self.back:
            self.wait_out(i)
            self.keep((BACK, i))
            self.back[i] = self.copy(COPY_IN, i)

    def wait_out(self, i: int) -> None:
        """Wait until what part i sends out has left."""
        if i in self.out:
            self.wait(i, self.out.pop(i))
            self.free(*self.kept_by(i))

    def copy(self, lane: str, i: int) -> float:
        """Put the bytes of part i on a lane; return when they are through."""
        count, start = copied(self.decisions[i], self.parts[i]), max(self.clock, self.free_at[lane])
        self.free_at[lane] = end = start + count / self.machine.bytes_per_second
        self.steps.append(LaneStep(lane, lane, i, start, end, count))
        return end

    def compute(self, kind: str, i: int, flops: int, more: int = 0) -> None:
        """Compute, with so many bytes more than those that are kept."""
        start, self.clock = self.clock, self.clock + flops / self.machine.flops_per_second
        self.steps.append(LaneStep(COMPUTE, kind, i, start, self.clock, self.live + more))

    def wait(self, i: int, end: float) -> None:
        """Compute nothing until then."""
        if end > self.clock:
            self.steps.append(LaneStep(COMPUTE, WAITING, i, self.clock, end, self.live))
            self.clock = end
