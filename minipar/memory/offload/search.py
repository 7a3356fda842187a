"""Search for the decisions (keep, recompute, offload) with the shortest step within a memory limit.

    best_decisions(costs, 64_000_000, OffloadMachine(1e13, 2.5e10))
        ─▶ (("offload", "offload", "recompute", "keep"), seconds, bytes)

There are up to 4ⁿ choices of decisions for n parts.  The search goes through the chain once.  It
keeps only the Pareto-optimal prefixes, which are decisions for the first parts.  A prefix affects
the rest of the step through a few numbers only, and less is better in each of them.

*Memory.*  In the backward of part i, all later parts are finished, and these bytes are alive:

    held by the parts before i + copied in for the `ahead` parts before i + needed by part i

No forward needs more than the backward of the same part.

*Time.*  No copy crosses from forward to backward: before the first backward, the program waits for
all copies out.  Backward is a forward played from its end.  In backward a copy *ends* before the
part needs it; in forward it *starts* after the part has made it.

    forward             ▐F0▌▐F1▌▐F2▌      backward, from     ▐B0▌▐B1▌▐B2▌      t = clock of compute
    copy out                ▐─0─▌         right to left  ◀       ▐─0─▌         e = ends of copies

So both directions follow the same recursion from part 0 on (`advance_lane`), each with its own
times, and the step takes their sum.  The result is the exact optimum by the rules of `timeline.py`:
times are integers in one unit, so equal times compare equal.  Beaumont, Eyraud-Dubois & Shilova,
Efficient combination of rematerialization and offloading (2021), solve the general problem, with
segments longer than a part.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ..remat.profile import ChainProfile, PartProfile
from .timeline import (
    KEEP,
    OFFLOAD_INPUT,
    RECOMPUTE,
    OffloadMachine,
    check_machine,
    copied,
    possible_decisions,
    step_cost,
)

Lane = tuple[int, ...]      # the clock, then the ends of the last `ahead` copies; 0 if past or none


class Solution(NamedTuple):
    """A decision for each part, and the seconds and peak bytes of the step."""

    decisions: tuple[str, ...]
    seconds: float
    peak: int


class Prefix(NamedTuple):
    """Decisions for the first parts, and the numbers through which they affect the later parts."""

    decisions: tuple[str, ...]
    forward: Lane
    backward: Lane
    held: int                       # bytes that these parts hold until their backward
    copies: tuple[int, ...]         # bytes of the last `ahead` copies, which may be in flight
    holds_output: bool              # whether the last of these parts holds the next part's input
    peak: int

    def time(self) -> int:
        """The time of both directions, copies included, in the unit of `_Chain`."""
        return max(self.forward) + max(self.backward)


def best_decisions(costs: ChainProfile, limit: int, machine: OffloadMachine) -> Solution:
    """The decisions with the shortest step whose activations fit in `limit` bytes.

    The last part must be the loss.  Raises ValueError if nothing fits; the message names the
    smallest limit that works.
    """
    check_machine(machine, costs)
    chain = _Chain(costs, machine)
    found = chain.search(limit, lambda b: (*b.forward, *b.backward, b.held, *b.copies))
    if not found:
        least = min(b.peak for b in chain.search(None, lambda b: (b.held, *b.copies, b.peak)))
        raise ValueError(f"activations do not fit in {limit:,} bytes, however much is recomputed "
                         f"or offloaded: give at least {least:,}, or a smaller batch")
    best = min(found, key=Prefix.time)
    for i, cost in enumerate(costs.parts):  # keep, or else recompute, where that costs no time
        for decision in possible_decisions(cost)[:2]:
            other = chain.whole((*best.decisions[:i], decision, *best.decisions[i + 1:]))
            if other.peak <= limit and other.time() <= best.time():
                best = other
                break
    return Solution(best.decisions, *step_cost(best.decisions, costs, machine))


class _Chain:
    """The prefixes of a chain.

    `speed` is the number of FLOPs in the time of one copied byte.  The unit of time is what
    1 / speed.denominator FLOPs take, so all times are integers.
    """

    def __init__(self, costs: ChainProfile, machine: OffloadMachine):
        nothing = (0,) * machine.ahead
        self.parts = costs.parts
        self.speed = Fraction(machine.flops_per_second) / Fraction(machine.bytes_per_second)
        self.start = Prefix((), (0, *nothing), (0, *nothing), 0, nothing, False, 0)

    def search(self, limit: int | None,
               matters: Callable[[Prefix], tuple[int, ...]]) -> list[Prefix]:
        """The decisions for the whole chain within the limit that are Pareto-optimal in `matters`.
        """
        found = [self.start]
        for cost in self.parts:
            extend = [self.extend(b, decision, cost) for decision in possible_decisions(cost)
                      for b in found]
            found = pareto_optimal([b for b in extend if limit is None or b.peak <= limit], matters)
        return found

    def whole(self, decisions: Sequence[str]) -> Prefix:
        """The prefix that these decisions give."""
        b = self.start
        for decision, cost in zip(decisions, self.parts):
            b = self.extend(b, decision, cost)
        return b

    def extend(self, b: Prefix, decision: str, cost: PartProfile) -> Prefix:
        """The prefix with one more part."""
        held, count = b.holds_output and decision in (KEEP, RECOMPUTE), copied(decision, cost)
        kept_input = 0 if held else cost.input_bytes
        recomputes = decision in (RECOMPUTE, OFFLOAD_INPUT)
        work = cost.backward_flops + cost.nested_flops + (cost.recompute_flops if recomputes else 0)
        copy, unit = count * self.speed.numerator, self.speed.denominator
        needs = max(cost.peak_bytes[held], kept_input + cost.saved_bytes[1] if recomputes else 0)
        keeps = {KEEP: cost.saved_bytes[held], RECOMPUTE: kept_input}.get(decision, 0)
        return Prefix(
            (*b.decisions, decision), advance_lane(b.forward, cost.forward_flops * unit, copy),
            advance_lane(b.backward, work * unit, copy), b.held + keeps, (*b.copies[1:], count),
            bool(cost.saves_output) and decision == KEEP,
            max(b.peak, b.held + sum(b.copies) + needs))


def pareto_optimal(prefixes: Sequence[Prefix],
                   matters: Callable[[Prefix], tuple[int, ...]]) -> list[Prefix]:
    """The prefixes that no other one equals or beats in all numbers of `matters`.

    To hold the output counts as better.  The first of several equal prefixes stays.
    """
    different: dict[tuple, Prefix] = {}
    for b in prefixes:
        different.setdefault((*matters(b), not b.holds_output), b)
    rows = np.array(sorted(different))              # integers of any size
    best, count = np.empty_like(rows), 0
    for row in rows:                                # sorted: no row is beaten by a later one
        if not (best[:count] <= row).all(axis=1).any():
            best[count], count = row, count + 1
    return [different[tuple(row)] for row in best[:count].tolist()]


def advance_lane(lane: Lane, work: int, copy: int) -> Lane:
    """The clock and the ends of copies after one more part.

    The part computes for `work`, waits for the copy of the part `ahead` before it, and starts its
    own copy, which takes `copy`.
    """
    # t is the clock, e the end of a copy:
    # t ← max(t + work, e of the part `ahead` before),    e ← max(t, all e) + copy
    clock, oldest, *others = lane
    clock = max(clock + work, oldest)
    end = max([clock, *others]) + copy if copy else 0
    return (clock, *[other if other > clock else 0 for other in others], end)
