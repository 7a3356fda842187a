"""Simulate a step whose parts are kept, recomputed or offloaded, on three lanes.

    compute   ▐F0▌▐F1▌▐F2▌▐F3▌┃▐B3▌▐A2▌▐B2▌▐B1▌▒▒▒▐B0▌      0, 1  offload   wait on the host
    copy out      ▐─0▌▐─1▌    ┃                             2     recompute (A) from its input
    copy in                   ┃    ▐─1─▌   ▐──0──▌          3     keep      ▒ nothing to compute

Here ahead = 1.  When an offloaded part has run, all that it saved is copied out in one copy.  The
copy may last until the forward of the part `ahead` after it has ended.  Then the program waits for
the copy and frees the memory.  The copy in starts when backward begins with the part `ahead` after
it.  Each lane does one thing after the other.  So the order alone decides which bytes are alive,
the same on every machine.  The time follows from

    compute   FLOPs / flops_per_second          copy   bytes / bytes_per_second, each direction

If two parts save one storage, the output of the first and the input of the second, each of them
that is offloaded copies it.  The loss is the last part.  vDNN, Rhu et al. 2016; Capuchin, Peng
et al. 2020.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..remat.predict import AGAIN, BACKWARD, FORWARD, LiveStorages
from ..remat.profile import ChainProfile, PartProfile

KEEP, RECOMPUTE, OFFLOAD, OFFLOAD_INPUT = "keep", "recompute", "offload", "offload input"
DECISIONS = KEEP, RECOMPUTE, OFFLOAD, OFFLOAD_INPUT     # the last one also recomputes
COMPUTE, COPY_OUT, COPY_IN = "compute", "copy out", "copy in"
WAITING = "waiting"
BACK = "back"           # a kind of storage: what was copied in


class OffloadMachine(NamedTuple):
    """A device that computes in FLOP/s, and copies to and from its host in bytes/s each way.

    A copy starts `ahead` parts (at least 1) before it must have ended.
    """

    flops_per_second: float
    bytes_per_second: float
    ahead: int = 1


class LaneStep(NamedTuple):
    """The work of a lane for one part, from `start` to `end`, in seconds.

    `kind` is forward, again, backward or waiting on the lane of computation, and the lane's name on
    a lane of copies.  `num_bytes` is the peak of the bytes alive meanwhile, or the bytes copied.
    """

    lane: str
    kind: str
    part: int
    start: float
    end: float
    num_bytes: int


def possible_decisions(cost: PartProfile) -> list[str]:
    """The decisions that make a difference for a part, keep first."""
    return [KEEP, *[RECOMPUTE] * bool(cost.num_saved), *[OFFLOAD] * bool(cost.saved_bytes[0]),
            *[OFFLOAD_INPUT] * bool(cost.num_saved and cost.input_bytes)]


def copied(decision: str, cost: PartProfile) -> int:
    """The bytes that a decision copies out, and back in."""
    return {OFFLOAD: cost.saved_bytes[0], OFFLOAD_INPUT: cost.input_bytes}.get(decision, 0)


def step_cost(decisions: Sequence[str], costs: ChainProfile,
              machine: OffloadMachine) -> tuple[float, int]:
    """Seconds that the step takes, and bytes of activations at its peak; see `simulate_step`."""
    computing = [step for step in simulate_step(decisions, costs, machine) if step.lane == COMPUTE]
    return max(step.end for step in computing), max(step.num_bytes for step in computing)


def simulate_step(decisions: Sequence[str], costs: ChainProfile,
                  machine: OffloadMachine) -> list[LaneStep]:
    """The steps of all lanes, in the order in which the program starts them.

    Raises ValueError for impossible decisions, for an impossible machine, and for a profile whose
    loss is not a part.
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


def check_machine(machine: OffloadMachine, costs: ChainProfile) -> None:
    """Raise ValueError for an impossible machine, and for a profile whose loss is not a part."""
    if not (machine.flops_per_second > 0 and machine.bytes_per_second > 0 and machine.ahead >= 1):
        raise ValueError("a machine computes and copies with positive speeds, at least 1 part "
                         f"ahead, not as {machine}")
    if costs.loss_bytes:
        raise ValueError("the loss takes time, too: profile it as the last part")


class _Simulation(LiveStorages):
    """Three lanes: the `clock` of computation, and when each copy lane is free (`free_at`)."""

    def __init__(self, decisions: Sequence[str], costs: ChainProfile, machine: OffloadMachine):
        super().__init__(costs)
        self.decisions, self.machine, self.steps = decisions, machine, []
        self.clock, self.free_at = 0.0, {COPY_OUT: 0.0, COPY_IN: 0.0}
        self.out: dict[int, float] = {}         # ends of the copies out in flight, by part
        self.back: dict[int, float] = {}        # ends of the copies in, by part

    def size(self, kind: str, i: int) -> int:
        """The bytes of a storage, or of the copy that came back."""
        return copied(self.decisions[i], self.parts[i]) if kind == BACK else super().size(kind, i)

    def kept_by(self, i: int) -> list[tuple[str, int]]:
        """The storages that part i holds after its forward."""
        recomputes = self.decisions[i] in (RECOMPUTE, OFFLOAD_INPUT)
        return [("input", i)] if recomputes else self.saved_by(i)

    def forward(self, i: int) -> None:
        """Run part i, wait for the copy of the part `ahead` before, start its own copy."""
        self.keep(*self.kept_by(i))
        self.compute(FORWARD, i, self.parts[i].forward_flops)
        self.wait_out(i - self.machine.ahead)
        if copied(self.decisions[i], self.parts[i]):
            self.out[i] = self.copy(COPY_OUT, i)

    def backward(self, i: int) -> None:
        """Start the copies in of part i and of the `ahead` parts before, wait for its own, run it.
        """
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
            self.compute(AGAIN, i, part.recompute_flops)
            self.free(source)
        held = self.uses["input", i] > 1 and ("input", i) in saved
        more = part.peak_bytes[held] - part.saved_bytes[held]       # of segments inside the part
        self.compute(BACKWARD, i, part.nested_flops + part.backward_flops, more)
        self.free(*saved)

    def bring(self, i: int) -> None:
        """Start the copy in of part i, unless it has started."""
        if copied(self.decisions[i], self.parts[i]) and i not in self.back:
            self.wait_out(i)
            self.keep((BACK, i))
            self.back[i] = self.copy(COPY_IN, i)

    def wait_out(self, i: int) -> None:
        """Wait for the copy out of part i, and free what it held."""
        if i in self.out:
            self.wait(i, self.out.pop(i))
            self.free(*self.kept_by(i))

    def copy(self, lane: str, i: int) -> float:
        """Put the bytes of part i on a lane; return the time at which the copy ends."""
        count, start = copied(self.decisions[i], self.parts[i]), max(self.clock, self.free_at[lane])
        self.free_at[lane] = end = start + count / self.machine.bytes_per_second
        self.steps.append(LaneStep(lane, lane, i, start, end, count))
        return end

    def compute(self, kind: str, i: int, flops: int, more: int = 0) -> None:
        """Compute `flops`, with `more` bytes alive besides those that are held."""
        start, self.clock = self.clock, self.clock + flops / self.machine.flops_per_second
        self.steps.append(LaneStep(COMPUTE, kind, i, start, self.clock, self.live + more))

    def wait(self, i: int, end: float) -> None:
        """Compute nothing until `end`."""
        if end > self.clock:
            self.steps.append(LaneStep(COMPUTE, WAITING, i, self.clock, end, self.live))
            self.clock = end
