"""Two recordings side by side: the first array that differs by more than rounding.

    left  in float64  ─┬─ left  in float32     what rounding may do, for each array: measured
                       └─ right in float64     a difference here is no rounding, in any case
    left  in float32  ─── right in float32     at most FACTOR times the measured rounding

Each array is put together from the boxes of all ranks, and terms are added up.  Ranks that recorded
the same elements are compared with each other as well.  `bound` is the largest difference, and the
root mean square (RMS), between float64 and the lower precision on the left; an array that happened
to be rounded well is allowed what 9 of 10 arrays of its step do not exceed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .causes import explain
from .recorder import Record
from .whole import Gap, Key, Layout, Size, Whole, assemble, ratio, terms_of

FACTOR = 16.0           # differences up to so many times the measured rounding are rounding, …
TAIL = 16.0             # … of one element so many times more: Adam makes whole steps of rounding
FLIP = 4.0              # with routers, times the array: an error chooses another expert
EQUAL = 1e-10           # in float64, relative to the largest element of an array
FLOAT64 = 2.0 ** -29    # rounding of float64 / rounding of float32
ASSUMED = 2.0 ** -18    # rounding of float32 where it was not measured, relative to an array

Records = Sequence[Record]


def measure_rounding(exact: dict[Key, Whole], rounded: dict[Key, Whole]) -> dict[Key, Size]:
    """What rounding does to each array: the difference of the two runs of one layout."""
    found: dict[Key, Size] = {}
    usual: dict[int, list[float]] = {}
    for key, whole in exact.items():
        if key in rounded:
            found[key] = Size.of(rounded[key].values - whole.values)
            usual.setdefault(key[0], []).append(
                ratio(found[key].rms, Size.of(whole.values).rms))
    typical = {step: float(np.quantile(ratios, 0.9)) for step, ratios in usual.items()}
    return {key: size.union(Size.of(exact[key].values).times(typical[key[0]]))
            for key, size in found.items()}


def assume_rounding(arrays: dict[Key, Whole], relative: float = ASSUMED,
                    to_largest: float = ASSUMED / 64) -> dict[Key, Size]:
    """Rounding relative to each array, and to the largest one of its step and phase.

    So an array that is 0 but for rounding may be so in another way.
    """
    sizes = {key: Size.of(whole.values) for key, whole in arrays.items()}
    largest: dict[tuple[int, str], Size] = {}
    for key, size in sizes.items():
        largest[key[:2]] = size.union(largest.get(key[:2], size))
    return {key: size.times(relative).union(largest[key[:2]].times(to_largest))
            for key, size in sizes.items()}


def gap_of(key: Key, left: Whole, right: Whole | None, allowed: Size) -> Gap:
    """The gap between two arrays; elements that no rank on the right has count as infinite."""
    size = Size.of(left.values)
    if right is None or left.values.shape != right.values.shape:
        return Gap(key, np.inf, np.inf, ())
    found, ranks = Size(0, 0), set()
    if key[1] in ("gradient", "state", "parameter") and not right.known.all():
        found = Size.of(np.where(left.known & ~right.known, np.inf, 0))
    terms = terms_of(right) if right.has_terms else {}
    if terms:
        found = found.union(Size.of(right.values - left.values))
    for record in right.records:
        apart = record.values - terms.get(record.term, left).part(record)
        here = Size.of(apart)
        # The RMS is a share of the whole array's: a single element weighs no more in a small box.
        here = Size(here.largest, here.rms * (apart.size / left.values.size) ** 0.5)
        found = found.union(here)
        if here.over(allowed) > 1:
            ranks.add(record.rank)
    if not ranks and found.over(allowed) > 1:
        ranks = ranks_of_terms(left, right, allowed) or {each.rank for each in right.records}
    return Gap(key, ratio(found.largest, size.largest), found.over(allowed), tuple(sorted(ranks)))


def ranks_of_terms(left: Whole, right: Whole, allowed: Size) -> set[int]:
    """The ranks whose terms are different; none, if the terms are not those of the left."""
    terms = terms_of(left) if right.has_terms and right.terms <= left.terms else {}
    return {each.rank for each in right.records if terms and Size.of(
        each.values - terms[each.term].part(each)).over(allowed) > 1}


def gaps_of(left: dict[Key, Whole], right: dict[Key, Whole],
            allowed: dict[Key, Size]) -> list[Gap]:
    """The gap of each array that both have, or should have, in the left's order.

    An output of another shape is one that was cut by hand, in a way that is not known here.
    """
    return [gap_of(key, whole, right.get(key), allowed[key]) for key, whole in left.items()
            if key in allowed and (key[1] in ("gradient", "parameter") or key in right and (
                right[key].values.shape == whole.values.shape
                or key[1] not in ("forward", "backward")))]


class Difference(NamedTuple):
    """What a comparison found.

    `verdict` is "equal", "rounding" or "different"; `gaps` those in float64, `low_gaps` those in
    the lower precision `dtype` (empty if that is float64), in program order.
    """

    verdict: str
    gaps: list[Gap]
    low_gaps: list[Gap]
    dtype: str
    cause: str = ""
    is_measured: bool = True        # False: what rounding may do was assumed

    @property
    def places(self) -> list[Gap]:
        """All arrays that differ by more than rounding, in program order."""
        return [gap for gap in self.gaps if gap.is_different] or \
            [gap for gap in self.low_gaps if gap.is_different]

    @property
    def first(self) -> Gap | None:
        """The first of them."""
        return next(iter(self.places), None)

    @property
    def distance(self) -> float:
        """The largest difference in float64, relative to its array."""
        return max((gap.distance for gap in self.gaps), default=0.0)

    def __str__(self) -> str:
        if self.verdict == "different":
            return f"different: {self.first}" + (f"; {self.cause}" if self.cause else "")
        if self.verdict == "equal":
            return f"equal: in float64 they agree to {self.distance:.0e} (relative)"
        times = FACTOR * max(gap.ratio for gap in self.low_gaps)
        measure = "what another order of sums gives" if self.is_measured else \
            f"{ASSUMED:.0e}, since rounding was not measured"
        return ((f"rounding: in float64 they agree to {self.distance:.0e}; " if self.gaps else
                 "rounding: ") + f"in {self.dtype} they differ by "
                f"{max(gap.distance for gap in self.low_gaps):.0e}, at most {times:.1f} × "
                f"{measure} (up to {FACTOR:g} × is rounding)")


class Comparison:
    """Compares two runs step by step; `dtype` is the lower precision.

    `before` are the parameters of left and right before the step, for the explanation.
    """

    def __init__(self, dtype: str = "float32"):
        self.found = Difference("equal", [], [], dtype)
        self.before: tuple[dict[Key, Whole], dict[Key, Whole]] = {}, {}

    def add(self, left: Records = (), right: Records = (), low_left: Records = (),
            low_right: Records = ()) -> Difference:
        """A step's records of both runs in float64, of both in the lower precision, or of all.

        Rounding is measured if there are both of the left, else assumed.
        """
        exact, other, low, low_other = map(assemble, (left, right, low_left, low_right))
        is_measured = bool(exact) or not low
        rounding = measure_rounding(exact, low) if exact and low else assume_rounding(low)
        equal = assume_rounding(exact, EQUAL, EQUAL * 1e-4)
        gaps = gaps_of(exact, other, {
            key: size.union(rounding[key].times(FACTOR * FLOAT64)) if key in rounding else size
            for key, size in equal.items()}) if other else []
        flip = FLIP * any(name.endswith(".router.weight") for _, _, name in low)
        lenient = {key: Size(size.largest * TAIL, size.rms).times(FACTOR).union(
            self.moved(key, low).times(4)).union(Size.of(low[key].values).times(flip))
            for key, size in rounding.items()}
        low_gaps = gaps_of(low, low_other, lenient) if low_other else []
        wrong = [gap for gap in gaps if gap.is_different]
        if not wrong and low_other:
            exact, other, right = low, low_other, low_right
            wrong = [gap for gap in low_gaps if gap.is_different]
        found = self.found
        if found.verdict != "different":
            cause = explain(wrong[0], gaps or low_gaps, self.before[0] | exact,
                            self.before[1] | other, Layout.of(right), found.dtype) if wrong else ""
            found = found._replace(cause=cause, verdict="different" if wrong else
                                   "rounding" if low_gaps else "equal")
        self.before = (self.before[0] | parameters(exact), self.before[1] | parameters(other))
        self.found = found._replace(gaps=[*found.gaps, *gaps],
                                    low_gaps=[*found.low_gaps, *low_gaps],
                                    is_measured=is_measured)
        return self.found


    def moved(self, key: Key, run: dict[Key, Whole]) -> Size:
        """How far a parameter is from its initial values; nothing for another array.

        Adam makes a whole step of a gradient that is nothing but rounding.
        """
        first = (self.before[0] | run).get((0, "initial", key[2]))
        return Size(0, 0) if key[1] != "parameter" or first is None else \
            Size.of(run[key].values - first.values)


def parameters(run: dict[Key, Whole]) -> dict[Key, Whole]:
    """The parameters among the arrays of a step."""
    return {key: whole for key, whole in run.items() if key[1] in ("parameter", "initial")}


def compare_recordings(left: Records, right: Records, exact: Records = ()) -> Difference:
    """Compare two recordings; `exact`, if any, is the left in float64, to measure rounding."""
    dtypes = [str(each.values.dtype) for each in left if each.phase in ("forward", "gradient")]
    dtype = max(dtypes, key=dtypes.count, default="float32")
    comparison = Comparison(dtype)
    for step in sorted({each.step for each in left}):
        here = [[each for each in run if each.step == step] for run in (left, right, exact)]
        if dtype == "float64":
            comparison.add(here[0], here[1])
        else:
            comparison.add(here[2], [], here[0], here[1])
    return comparison.found
