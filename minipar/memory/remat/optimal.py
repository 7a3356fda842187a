"""Optimal plans: the fewest FLOPs within a budget of bytes, for parts with any costs.

A run is a number of parts in a row, i … k - 1.  Its first part either keeps what it saves, or
starts a segment:

    keep i             tape(i) stays  ┃ best of i+1 … k-1 in the remaining bytes
    segment i … j-1    input stays    ┃ best of j … k-1 in the remaining bytes; after the backward
                                      ┃ of these, best of recomputing i … j-1, with all m bytes

    flops(i, k, m) = min( f_i           + flops(i+1, k, m - tape_i),
                     min  f_i+…+f_{j-1} + flops(j, k, m - input_i) + again(i, j, m) )
                      j

Here f_i are the FLOPs of the forward of part i, tape_i are the bytes that it saves, and input_i
are the bytes of its input.  The recursion is solved for all budgets m at once.  As a function of m
the FLOPs are a staircase; its steps are the *Pareto front* of the run.  Runs of parts with equal
costs have equal fronts, so a long chain of equal blocks is quick to solve.

The problem and its recursion: Beaumont, Eyraud-Dubois, Herrmann, Joly & Shilova, Optimal
checkpointing for heterogeneous chains (2019).  There memory is cut into slots; here it is exact.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .plans import Plan
from .predict import predict
from .profile import ChainProfile, PartProfile


class Front(NamedTuple):
    """The Pareto front of a run of parts: arrays (n,); `peaks` (bytes) rise while `flops` fall.

    `choices` are indices into `options`: 0 keeps what the first part saves, and l > 0 starts a
    segment of l parts.
    """

    peaks: np.ndarray
    flops: np.ndarray       # floats: exact integers up to 2⁵³
    choices: np.ndarray
    options: Sequence["Alternative"]

    def within(self, budgets: np.ndarray) -> np.ndarray:
        """The fewest FLOPs within each of `budgets`, in bytes; infinite where nothing fits."""
        return np.append(np.inf, self.flops)[np.searchsorted(self.peaks, budgets, side="right")]


class Alternative(NamedTuple):
    """One way to begin a run: it takes `flops`, and `own` bytes stay alive during the `rest`.

    `then` comes after the backward of the rest, and may use all bytes: the recomputed segment, or
    the backward of the part that was kept.
    """

    flops: int
    own: int
    rest: Front
    then: Front


class ParetoPlan(NamedTuple):
    """A plan on the Pareto front: no other has a lower peak without more FLOPs, or the reverse."""

    peak: int
    extra_flops: int
    plan: Plan


class DoesNotFit(ValueError):
    """No plan fits the budget; `least` is the smallest budget that some plan fits."""

    def __init__(self, budget: int, least: int):
        super().__init__(f"activations do not fit in {budget:,} bytes, however much is recomputed: "
                         f"give at least {least:,}, or a smaller batch")
        self.least = least


def optimal(costs: ChainProfile, budget: int) -> ParetoPlan:
    """The plan with the fewest FLOPs whose activations fit in `budget` bytes.

    Raises DoesNotFit, a ValueError, if none fits; the message names the smallest budget that works.
    """
    front = _Fronts(costs).whole()
    least = int(front.peaks[0])
    if budget < least:
        raise DoesNotFit(budget, least)
    return _choice(front, budget, costs)


def frontier(costs: ChainProfile) -> list[ParetoPlan]:
    """All Pareto-optimal plans, from the fewest bytes to the fewest FLOPs."""
    front = _Fronts(costs).whole()
    return [_choice(front, int(peak), costs) for peak in front.peaks]


def _choice(front: Front, budget: int, costs: ChainProfile) -> ParetoPlan:
    plan = _plan(front, budget, 0)
    price = predict(plan, costs)
    return ParetoPlan(price.peak, price.extra_flops, plan)


def _plan(front: Front, budget: int, start: int) -> Plan:
    """The plan of the front within the budget, with parts numbered from `start`."""
    items: list = []
    while front.options:
        length = front.choices[np.searchsorted(front.peaks, budget, side="right") - 1]
        option = front.options[length]
        items.append(_plan(option.then, budget, start) if length else start)
        budget, front, start = budget - option.own, option.rest, start + max(1, int(length))
    return tuple(items)


def cheapest(options: Sequence[Alternative]) -> Front:
    """The front of a run that may begin in any of these ways."""
    budgets = np.unique(np.concatenate(
        [peaks for o in options for peaks in (o.own + o.rest.peaks, o.then.peaks)]))
    flops = np.stack([o.flops + o.rest.within(budgets - o.own) + o.then.within(budgets)
                      for o in options])
    least = np.min(flops, axis=0)
    better = least < np.append(np.inf, np.minimum.accumulate(least)[:-1])
    return Front(budgets[better], least[better], np.argmin(flops, axis=0)[better], options)


def _empty_run(peak: int) -> Front:
    """The front of an empty run, which needs `peak` bytes and no FLOPs."""
    return Front(np.array([peak]), np.zeros(1), np.zeros(1, int), ())


class PartRun(NamedTuple):
    """A run of parts, start … stop - 1, which adds `end_bytes` when its last part has run."""

    start: int
    stop: int
    end_bytes: int
    has_input: bool = False         # its input is alive anyway
    again: bool = False             # it is recomputed, up to the last array that is saved
    is_segment: bool = False        # a whole segment, not only the end of one


class _Fronts:
    """The fronts of runs of parts; equal runs are computed once."""

    def __init__(self, costs: ChainProfile):
        self.costs, self.parts = costs, costs.parts
        kinds: dict[PartProfile, int] = {}
        self.kinds = tuple([kinds.setdefault(part, len(kinds)) for part in costs.parts])
        self.found: dict[tuple, Front] = {}

    def whole(self) -> Front:
        """The front of the whole chain."""
        return self.of(PartRun(0, len(self.parts), self.costs.loss_bytes))

    def of(self, run: PartRun) -> Front:
        """The front of a run over all its plans."""
        if run.start == run.stop:
            return _empty_run(run.end_bytes)
        key = self.kinds[run.start:run.stop], *run[2:]
        if key not in self.found:
            self.found[key] = cheapest(self._options(run))
        return self.found[key]

    def _options(self, run: PartRun) -> list[Alternative]:
        start, stop, end, held, again, is_segment = run
        part = self.parts[start]
        stops_early = again and start + 1 == stop
        flops = part.nested_flops + (part.recompute_flops if stops_early else part.forward_flops)
        # A segment's input is freed once all is recomputed, unless the first part keeps it.
        at_end = 0 if is_segment and part.saves_input else end
        rest = PartRun(start + 1, stop, at_end, bool(part.saves_output), again)
        options = [Alternative(flops, part.saved_bytes[held], self.of(rest),
                               _empty_run(part.peak_bytes[held]))]
        own, at_end, flops = 0 if held else part.input_bytes, 0 if is_segment else end, 0
        # A segment inside a segment is shorter: one as long would only recompute it twice.
        for middle in range(start + 1, stop if is_segment else stop + 1):
            flops += self.parts[middle - 1].forward_flops
            segment = PartRun(start, middle, own, held, again=True, is_segment=True)
            options.append(Alternative(0 if again and middle == stop else flops, own,
                                       self.of(PartRun(middle, stop, at_end, again=again)),
                                       self.of(segment)))
        return options
