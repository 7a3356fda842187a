"""Two recordings side by side: the first array, in program order, that differs by more than rounding.

    left  in float64  ─┬─ left  in float32     what rounding may do, for each array: measured
                       └─ right in float64     a difference here is no rounding, in any case
    left  in float32  ─── right in float32     at most FACTOR times the measured rounding

Each array is put together from the boxes of all ranks, and terms are added up.  Ranks that recorded
the same elements are compared with each other as well.  `bound` is the largest difference, and the
root mean square (RMS), between float64 and the lower precision on the left; an array that happened
to be rounded well is allowed what is usual in its step.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .recorder import PHASES, Record, indices_of

FACTOR = 8.0            # differences up to this many times the measured rounding are rounding
EQUAL = 1e-10           # in float64, relative to the largest element of an array
FLOAT64 = 2.0 ** -29    # rounding of float64 / rounding of float32
ASSUMED = 64 * 2.0 ** -24       # relative, where rounding was not measured: float32

Key = tuple[int, str, str]      # step, phase, name


class Whole(NamedTuple):
    """A global array, with what its ranks recorded; `known`: the elements that some rank has."""

    values: np.ndarray
    known: np.ndarray
    records: list[Record]

    @property
    def has_terms(self) -> bool:
        """True if it is a sum of what ranks recorded."""
        return len({record.term for record in self.records}) > 1

    def part(self, record: Record) -> np.ndarray:
        """The elements that a rank recorded."""
        return box_of(self.values, record)[place_of(record)]


def box_of(array: np.ndarray, record: Record) -> np.ndarray:
    """The global array as the record's box counts it: a row, if it is flat."""
    return array.reshape(-1) if len(record.box) != array.ndim else array


def place_of(record: Record) -> tuple:
    """Where the elements of a record are in the global array."""
    return np.ix_(*map(indices_of, record.box)) if record.box else ()


def assemble(records: Iterable[Record]) -> dict[Key, Whole]:
    """Global arrays from the records of all ranks, in the order of their first record.

    Of several ranks that recorded an element, the first counts.
    """
    by_key: dict[Key, list[Record]] = {}
    for record in records:
        by_key.setdefault(record.key, []).append(record)
    order = sorted(by_key, key=lambda key: (key[0], PHASES.index(key[1])))
    return {key: whole_of(by_key[key]) for key in order if key[1] != "rows"}


def whole_of(records: list[Record]) -> Whole:
    """The global array of some records of one key."""
    values, known = np.zeros(records[0].shape), np.zeros(records[0].shape, bool)
    for term in dict.fromkeys(record.term for record in records):
        here, seen = np.zeros_like(values), np.zeros_like(known)
        for record in records:
            if record.term == term:
                place = place_of(record)
                is_new = ~box_of(seen, record)[place]
                flat = box_of(here, record)
                flat[place] = np.where(is_new, record.values, flat[place])
                box_of(seen, record)[place] = True
        values, known = values + here, known | seen
    return Whole(values, known, records)


class Size(NamedTuple):
    """How large an array is, or a difference: its largest element, and the RMS."""

    largest: float
    rms: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Size":
        """That of some values; infinite, if one is no number."""
        if not values.size:
            return cls(0.0, 0.0)
        if not np.isfinite(values).all():
            return cls(np.inf, np.inf)
        return cls(float(np.abs(values).max()), float(np.sqrt(np.mean(np.square(values)))))

    def __mul__(self, factor: float) -> "Size":
        return Size(self.largest * factor, self.rms * factor)

    def union(self, other: "Size") -> "Size":
        """The larger of both."""
        return Size(max(self.largest, other.largest), max(self.rms, other.rms))

    def over(self, bound: "Size") -> float:
        """How many times the bound it is."""
        return max(ratio(self.largest, bound.largest), ratio(self.rms, bound.rms))


def ratio(a: float, b: float) -> float:
    """a / b, 0 for nothing."""
    return a / b if b else np.inf if a else 0.0


def measure_rounding(exact: dict[Key, Whole], rounded: dict[Key, Whole]) -> dict[Key, Size]:
    """What rounding does to each array: the difference of the two runs of one layout."""
    found, usual = {}, {}
    for key, whole in exact.items():
        if key in rounded:
            found[key] = Size.of(rounded[key].values - whole.values)
            usual.setdefault(key[0], []).append(
                ratio(found[key].rms, Size.of(whole.values).rms))
    typical = {step: float(np.median(ratios)) for step, ratios in usual.items()}
    return {key: size.union(Size.of(exact[key].values) * typical[key[0]])
            for key, size in found.items()}


class Gap(NamedTuple):
    """The difference of an array: relative to its largest element, and to what is allowed."""

    key: Key
    distance: float
    ratio: float            # above 1: no rounding
    ranks: tuple[int, ...]  # whose elements are different

    @property
    def is_different(self) -> bool:
        """True if it is more than rounding."""
        return not self.ratio <= 1

    def __str__(self) -> str:
        step, phase, name = self.key
        where = f" on rank{'s' * (len(self.ranks) != 1)} {', '.join(map(str, self.ranks))}" \
            if self.ranks else ""
        return f"step {step}, {phase} of {name}{where}: {self.distance:.1e} (relative)"


def gap_of(key: Key, left: Whole, right: Whole | None, allowed: Size) -> Gap:
    """The gap between two arrays; elements that no rank on the right has count as infinite."""
    size = Size.of(left.values)
    if right is None or left.values.shape != right.values.shape:
        return Gap(key, np.inf, np.inf, ())
    apart = np.where(right.known & left.known, right.values - left.values, 0)
    if key[1] in ("gradient", "state", "parameter") and (left.known & ~right.known).any():
        apart = np.full_like(apart, np.inf)
    found, ranks = Size.of(apart), set()
    for record in right.records:
        other = left if not right.has_terms else whole_of(
            [each for each in right.records if each.term == record.term])
        here = Size.of(record.values - other.part(record))
        if right.has_terms:
            here = Size(here.largest, 0.0)
        found = found.union(Size(here.largest, 0.0))
        if here.over(allowed) > 1:
            ranks.add(record.rank)
    if not ranks and found.over(allowed) > 1:
        ranks = {record.rank for record in right.records}
    return Gap(key, ratio(found.largest, size.largest), found.over(allowed), tuple(sorted(ranks)))


def gaps_of(left: dict[Key, Whole], right: dict[Key, Whole],
            allowed: dict[Key, Size]) -> list[Gap]:
    """The gap of each array that both have, or should have, in the left's order."""
    return [gap_of(key, whole, right.get(key), allowed[key]) for key, whole in left.items()
            if key in allowed and (key in right or key[1] in ("gradient", "parameter"))]


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

    @property
    def places(self) -> list[Gap]:
        """All arrays that differ by more than rounding, in program order."""
        return [gap for gap in self.gaps or self.low_gaps if gap.is_different] or \
            [gap for gap in self.low_gaps if gap.is_different]

    @property
    def first(self) -> Gap | None:
        """The first of them."""
        return next(iter(self.places), None)

    def __str__(self) -> str:
        exact = max((gap.distance for gap in self.gaps), default=0.0)
        if self.verdict == "different":
            return f"different: {self.first}" + (f"; {self.cause}" if self.cause else "")
        if self.verdict == "equal":
            return f"equal: in float64 they agree to {exact:.0e} (relative)"
        worst = max(self.low_gaps, key=lambda gap: gap.ratio)
        return (f"rounding: in float64 they agree to {exact:.0e}; in {self.dtype} they differ by "
                f"{max(gap.distance for gap in self.low_gaps):.0e}, at most "
                f"{worst.ratio * FACTOR:.1f} × what another order of sums gives (allowed: "
                f"{FACTOR:g} ×)")


def find(left: Sequence[Record], right: Sequence[Record], low_left: Sequence[Record],
         low_right: Sequence[Record] | None = None, dtype: str = "float32") -> Difference:
    """Compare two runs in float64, and in a lower precision.

    `low_left` is the left in float32, or in the lower precision, from which rounding is measured.
    """
    from .causes import explain
    exact, other, rounded = assemble(left), assemble(right), assemble(low_left)
    rounding = measure_rounding(exact, rounded)
    allowed = {key: (size * (FACTOR * FLOAT64)).union(Size.of(exact[key].values) * EQUAL)
               for key, size in rounding.items()}
    gaps, low_gaps = gaps_of(exact, other, allowed), []
    if low_right is not None:
        allowed = {key: size * FACTOR for key, size in rounding.items()}
        low_gaps = gaps_of(rounded, assemble(low_right), allowed)
    is_different = any(gap.is_different for gap in [*gaps, *low_gaps])
    verdict = "different" if is_different else "equal" if low_right is None else "rounding"
    found = Difference(verdict, gaps, low_gaps, dtype)
    return found._replace(cause=explain(found, exact, other)) if is_different else found
