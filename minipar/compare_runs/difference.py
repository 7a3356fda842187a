"""Two recordings side by side: the first array that differs by more than rounding.

    left  in float64  ─┬─ left  in float32     what rounding may do, for each array: measured
                       └─ right in float64     a difference here is never rounding
    left  in float32  ─── right in float32     at most FACTOR times the measured rounding

Each array is put together from the boxes of all ranks, and terms are added up.  Ranks that recorded
the same elements are compared with each other as well.  The rounding of an array is the difference
between float64 and the lower precision on the left.  Its size is two numbers, the largest element
and the root mean square (RMS).  An array that happened to be rounded well is allowed the relative
rounding that 9 of 10 arrays of its step do not exceed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .causes import explain
from .global_arrays import (
    Gap,
    Key,
    RankLayout,
    Size,
    Whole,
    assemble,
    order_of,
    part_of,
    ratio,
    what,
)
from .missing import absent, check_whole, dtype_of, elements_gap, lack, rows_gaps
from .recorder import RecordedArray

FACTOR = 16.0           # differences up to this many times the measured rounding are rounding, …
TAIL = 16.0             # … and those of a single element up to this many times more
FLIP = 4.0              # with routers, times the whole array: an error chooses another expert
EQUAL = 1e-10           # in float64, relative to the size of an array
FLOAT64 = 2.0 ** -29    # rounding of float64 / rounding of float32
ASSUMED = 2.0 ** -18    # rounding of float32 where it was not measured, relative to an array

Records = Sequence[RecordedArray]


def measure_rounding(exact: dict[Key, Whole], rounded: dict[Key, Whole]) -> dict[Key, Size]:
    """The rounding of each array of a step: the difference of two runs of the same layout."""
    sizes = {key: Size.of(whole.values) for key, whole in exact.items() if key in rounded}
    found = {key: Size.of(rounded[key].values - exact[key].values) for key in sizes}
    found = {key: size for key, size in found.items() if np.isfinite(size.rms)}     # no NaN, ∞
    typical = np.quantile([ratio(found[key].rms, sizes[key].rms) for key in found] or [0], 0.9)
    return {key: size.union(sizes[key].times(float(typical))) for key, size in found.items()}


def assume_rounding(arrays: dict[Key, Whole], relative: float = ASSUMED,
                    to_largest: float = ASSUMED / 64) -> dict[Key, Size]:
    """The rounding of each array, as a share of it and of the largest array of its step and phase.

    The second share is for arrays that are 0 except for rounding.
    """
    sizes = {key: Size.of(whole.values) for key, whole in arrays.items()}
    largest: dict[tuple[int, str], Size] = {}
    for key, size in sizes.items():
        if np.isfinite(size.rms):
            largest[key[:2]] = size.union(largest.get(key[:2], size))
    return {key: size.times(relative).union(
        largest.get(key[:2], size).times(to_largest))
            for key, size in sizes.items()}


def apart(whole: Whole, expected: Whole, allowed: Size, slack: np.ndarray | None = None
          ) -> tuple[Size, set[int]]:
    """How far the records of an array are from the expected one, and the ranks that are too far.

    A term of a sum is compared with the first record of the same term.  `slack` is subtracted from
    the difference of each element.
    """
    found, ranks = Size(0, 0), set()
    terms = whole.by_term() if whole.has_terms else {}
    if terms and whole is not expected:
        found = Size.of(whole.values - expected.values)
    for record in whole.records:
        off = record.values - terms.get(record.term, expected).part(record)
        if slack is not None:
            off = np.maximum(np.abs(off) - part_of(slack, record), 0)
        here = Size.of(off)
        # The RMS is scaled to the whole array: so an element weighs no more in a small box.
        here = Size(here.largest, here.rms * (off.size / expected.values.size) ** 0.5)
        found = found.union(here)
        if here.over(allowed) > 1:
            ranks.add(record.rank)
    return found, ranks


def gap_of(key: Key, left: Whole, right: Whole, allowed: Size, slack: np.ndarray | None = None
           ) -> Gap:
    """The gap between two arrays; on the left side, if the left's ranks differ from each other."""
    if gap := elements_gap(key, left, right):
        return gap
    size, side = Size.of(left.values), "left"
    found, ranks = apart(left, left, allowed, slack) if len(left.records) > 1 else (Size(0, 0), ())
    if ranks:
        _, others = apart(left, right, allowed, slack)      # the first one may be the wrong one
        if others < {each.rank for each in left.records}:
            ranks = others or ranks
    else:
        side = "right"
        found, ranks = apart(right, left, allowed, slack)
        if not ranks and found.over(allowed) > 1:
            ranks = ranks_of_terms(left, right, allowed) or {each.rank for each in right.records}
    return Gap(key, ratio(found.largest, size.largest), found.over(allowed), tuple(sorted(ranks)),
               side)


def ranks_of_terms(left: Whole, right: Whole, allowed: Size) -> set[int]:
    """The ranks on the right whose terms differ; none if the left lacks one of these terms."""
    terms = left.by_term() if right.has_terms and right.terms <= left.terms else {}
    return {each.rank for each in right.records if terms and Size.of(
        each.values - terms[each.term].part(each)).over(allowed) > 1}


GRADIENTS = ("backward", "local gradient", "gradient")
OUTPUTS = ("forward", "backward", "local gradient")     # not all layouts have the same


def gaps_of(left: dict[Key, Whole], right: dict[Key, Whole], allowed: dict[Key, Size],
            slack: dict[Key, np.ndarray]) -> tuple[list[Gap], list[Key]]:
    """The gap of each array that a side has, in program order; and the arrays that are left out.

    An output that one side lacks, or has in another shape, was cut by hand, in a way that is not
    known here.  It is left out where others of its phase are compared.
    """
    gaps, left_out = [], []
    notes = {key: absent(key, left, right) for key in sorted({**left, **right}, key=order_of)}
    compared = {key[:2] for key, note in notes.items() if not note}
    for key, note in notes.items():
        if not note:
            gaps.append(gap_of(key, left[key], right[key], allowed[key], slack.get(key)))
        elif key[1] in OUTPUTS and key[:2] in compared:
            left_out.append(key)
        else:
            gaps.append(lack(key, note))
    return gaps, left_out


def overflowed(exact: dict[Key, Whole], *runs: dict[Key, Whole]) -> list[Key]:
    """The gradients of a step that both runs skipped after an overflow, and which has no norm."""
    norms = {key for key in exact if key[1] == "norm"}
    return [key for key in runs[0] if key[1] in GRADIENTS] \
        if norms and not any(norms & run.keys() for run in runs) else []


class Difference(NamedTuple):
    """What a comparison found.

    `verdict` is "equal", "rounding" or "different".  `gaps` are those in float64, `low_gaps` those
    in the lower precision `dtype`, in program order; one of them may be empty.  `left_out` are
    arrays that were not compared.
    """

    verdict: str
    gaps: list[Gap]
    low_gaps: list[Gap]
    dtype: str
    cause: str = ""
    is_measured: bool = True        # False: what rounding may do was assumed
    left_out: tuple[Key, ...] = ()

    @property
    def places(self) -> list[Gap]:
        """The arrays that differ by more than rounding: in float64, else in the lower precision."""
        return [gap for gap in self.gaps if gap.is_different] or \
            [gap for gap in self.low_gaps if gap.is_different]

    @property
    def first(self) -> Gap | None:
        """The first of `places`; None if there is none."""
        return next(iter(self.places), None)

    @property
    def distance(self) -> float:
        """The largest difference in float64, relative to its array."""
        return max((gap.distance for gap in self.gaps), default=0.0)

    def __str__(self) -> str:
        if self.first is not None:
            return f"different: {self.first}" + (": " if self.first.note else "; ") + self.cause
        text, gap = [], max(self.low_gaps, key=lambda gap: gap.ratio, default=None)
        if self.gaps:
            text.append(f"in float64 they agree to {self.distance:.0e} (relative)")
        if self.verdict == "rounding" and gap is not None:
            measure = "what another order of sums gives" if self.is_measured else \
                f"{ASSUMED:.0e} of an array, which is assumed: --exact measures it"
            text.append(f"in {self.dtype} they differ by at most {FACTOR * gap.ratio:.1f} × "
                        f"{measure} (up to {FACTOR:g} × is rounding), most in step {gap.key[0]}, "
                        f"{what(gap.key)}: {gap.distance:.0e} (relative)" if gap.ratio else
                        f"in {self.dtype} they are the same")
        if names := list(dict.fromkeys(map(what, self.left_out))):
            text.append(f"not compared: {names[0]}" + f" and {len(names) - 1} more" * (
                len(names) > 1) + " (on one side alone, cut in an unknown way, or overflowed)")
        return f"{self.verdict}: {'; '.join(text)}"


class Comparison:
    """Compares two runs step by step; `dtype` is the lower precision.

    `before` are the parameters of left and right before the step, for the explanation.
    """

    def __init__(self, dtype: str = "float32"):
        self.found = Difference("equal", [], [], dtype)
        self.before: tuple[dict[Key, Whole], dict[Key, Whole]] = {}, {}
        self.slack: dict[str, np.ndarray] = {}      # of each parameter's elements

    def add(self, left: Records = (), right: Records | None = None, low_left: Records = (),
            low_right: Records | None = None) -> Difference:
        """Compare the records of one step: in float64, in the lower precision, or in both.

        Rounding is measured if the left's records are there in both precisions, else assumed.
        """
        exact, other, low, low_other = (assemble(each or ()) for each in (
            left, right, low_left, low_right))
        is_measured = bool(exact) or not low
        layouts = [RankLayout.of(each or ()) for each in (left or low_left, right or low_right)]
        rounding = assume_rounding(low) | (measure_rounding(exact, low) if exact else {})
        equal = assume_rounding(exact, EQUAL, EQUAL * 1e-4)
        gaps, low_gaps, left_out = rows_gaps(*layouts), list[Gap](), list[Key]()
        if right is not None:
            found_gaps, left_out = gaps_of(exact, other, {
                key: size.union(rounding[key].times(FACTOR * FLOAT64)) if key in rounding else size
                for key, size in equal.items()}, {})
            gaps += found_gaps
        if low_right is not None:
            flip = FLIP * any(name.endswith(".router.weight") for _, _, name in low)
            skipped = overflowed(exact, low, low_other)
            low, low_other = ({key: run[key] for key in run if key not in skipped}
                              for run in (low, low_other))
            low_gaps, left_out = gaps_of(low, low_other, {
                key: Size(rounding[key].largest * TAIL, rounding[key].rms).times(FACTOR).union(
                    Size.of(whole.values).times(flip)) for key, whole in low.items()},
                self.slack_of(low, rounding))
            left_out += skipped
        wrong = [gap for gap in gaps if gap.is_different]
        if not wrong and low_right is not None:
            exact, other = low, low_other
            wrong = [gap for gap in low_gaps if gap.is_different]
        found = self.found._replace(
            gaps=self.found.gaps + gaps, low_gaps=self.found.low_gaps + low_gaps,
            is_measured=is_measured, left_out=(*self.found.left_out, *left_out))
        if found.verdict != "different":
            cause = explain(wrong[0], gaps or low_gaps, self.before[0] | exact,
                            self.before[1] | other, layouts, found.dtype) if wrong else ""
            found = found._replace(cause=cause, verdict="different" if wrong else
                                   "rounding" if found.low_gaps else "equal")
        self.before = (self.before[0] | parameters(exact), self.before[1] | parameters(other))
        self.found = found
        return found

    def slack_of(self, low: dict[Key, Whole], rounding: dict[Key, Size]) -> dict[Key, np.ndarray]:
        """How far each element of the parameters may be off, since its gradients were rounded.

        Adam's step is as large for a small gradient as for a large one.  So the relative error
        of the gradient counts, which is at most 1.  A step may be wrong by twice its size, times
        this error.  The errors of all steps add up.
        """
        found, known = {}, self.before[0] | low
        for (step, phase, name), whole in low.items():
            gradient = low.get((step, "gradient", name))
            before = known.get((step - 1, phase, name), known.get((0, "initial", name)))
            if phase == "parameter" and gradient is not None and before is not None:
                wrong = FACTOR * rounding[step, "gradient", name].largest / np.maximum(
                    np.abs(gradient.values), np.finfo(float).tiny)
                steps = np.abs(whole.values - before.values).max(initial=0.0)
                found[step, phase, name] = self.slack[name] = self.slack.get(name, 0.0) + \
                    2 * steps * np.minimum(wrong, 1)
        return found


def parameters(run: dict[Key, Whole]) -> dict[Key, Whole]:
    """The parameters among the arrays of a step."""
    return {key: whole for key, whole in run.items() if key[1] in ("parameter", "initial")}


def compare_recordings(left: Records, right: Records, exact: Records = ()) -> Difference:
    """Compare two recordings; `exact`, if any, is the left in float64, to measure rounding.

    Raises ValueError for recordings that are not whole, or do not fit together.
    """
    check_whole(left, right, exact)
    dtype = dtype_of(left)
    comparison = Comparison(dtype)
    for step in sorted({each.step for each in left}):
        here = [[each for each in run if each.step == step] for run in (left, right, exact)]
        if dtype == "float64":
            comparison.add(here[0], here[1])
        else:
            comparison.add(here[2], None, here[0], here[1])
    return comparison.found
