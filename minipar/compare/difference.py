"""Two recordings side by side: the first array that differs by more than rounding.

    left  in float64  ─┬─ left  in float32     what rounding may do, for each array: measured
                       └─ right in float64     a difference here is no rounding, in any case
    left  in float32  ─── right in float32     at most FACTOR times the measured rounding

Each array is put together from the boxes of all ranks, and terms are added up.  Ranks that recorded
the same elements are compared with each other as well.  `bound` is the largest difference, and the
root mean square (RMS), between float64 and the lower precision on the left; an array that happened
to be rounded well is allowed what is usual in its step.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .causes import explain
from .recorder import Record
from .whole import Gap, Key, Layout, Size, Whole, assemble, ratio, terms_of

FACTOR = 8.0            # differences up to this many times the measured rounding are rounding
EQUAL = 1e-10           # in float64, relative to the largest element of an array
FLOAT64 = 2.0 ** -29    # rounding of float64 / rounding of float32
ASSUMED = 64 * 2.0 ** -24       # relative, where rounding was not measured: float32


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


def gap_of(key: Key, left: Whole, right: Whole | None, allowed: Size) -> Gap:
    """The gap between two arrays; elements that no rank on the right has count as infinite."""
    size = Size.of(left.values)
    if right is None or left.values.shape != right.values.shape:
        return Gap(key, np.inf, np.inf, ())
    apart = np.where(right.known & left.known, right.values - left.values, 0)
    if key[1] in ("gradient", "state", "parameter") and (left.known & ~right.known).any():
        apart = np.full_like(apart, np.inf)
    found, ranks = Size.of(apart), set()
    terms = terms_of(left) if right.has_terms and {r.term for r in right.records} <= {
        r.term for r in left.records} else terms_of(right)
    for record in right.records:
        other = terms[record.term] if right.has_terms else left
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
    if not is_different:
        return found
    return found._replace(cause=explain(found.places[0], gaps, exact, other, Layout.of(right),
                                        dtype))
