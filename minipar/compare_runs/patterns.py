"""The kinds of differences, each found by a function and said in a sentence.

Each function looks for one pattern in the first wrong array, R, beside the correct one, L:

    R = c L                     a constant factor: of everything, or of the rows of one rank
    Σ of the ranks' R = L       a rank's own contribution in the place of the sum
    R = Σ c_i term_i            terms of a sum that are missing, or counted twice
    R = L in another order      a permutation along an axis, or a transposed array
    zeros                       where padding is, or where nothing was received

What usually causes a pattern comes after a colon.  Names of axes come from the records "layout".
"""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .global_arrays import Gap, Key, RankLayout, Whole, in_words
from .recorder import RecordedArray

CLOSE = 1e-4            # the relative difference that may be rounding, also in float32


class WrongArray(NamedTuple):
    """The first wrong array: its gap, both arrays, all arrays of both sides, and its layout.

    `right` and `others` are of the side that is wrong, even if the gap is on the left.
    """

    gap: Gap
    left: Whole
    right: Whole
    others: dict[Key, Whole]
    left_others: dict[Key, Whole]
    layout: RankLayout

    @property
    def phase(self) -> str:
        """The phase of the array."""
        return self.gap.key[1]

    @property
    def records(self) -> list[RecordedArray]:
        """The records of the ranks that are wrong."""
        return [each for each in self.right.records if each.rank in self.gap.ranks]


def is_close(a: np.ndarray, b: np.ndarray, close: float = CLOSE) -> bool:
    """True if two arrays are the same but for rounding, and not all zeros."""
    size = float(np.abs(b).max(initial=0.0))
    return a.shape == b.shape and size > 0 and float(np.abs(a - b).max()) <= close * size


def factor_of(a: np.ndarray, b: np.ndarray) -> float | None:
    """The c with a = c b; None if there is none."""
    square = float(np.vdot(b, b))
    c = float(np.vdot(a, b)) / square if square else 0.0
    return c if c and is_close(a, c * b) else None


def own_contributions(case: WrongArray) -> str:
    """Ranks that should have the sum have their own contributions, whose sum is right."""
    by_box: dict[tuple, list[RecordedArray]] = {}
    for each in case.right.records:
        by_box.setdefault((each.box, each.term if case.right.has_terms else ""), []).append(each)
    for records in by_box.values():
        different: list[RecordedArray] = []
        for each in records:
            if not any(is_close(each.values, other.values) for other in different):
                different.append(each)
        if len(different) < 2:
            continue
        sums = np.sum([each.values for each in different], axis=0)
        right = left_part(case, different[0])
        if right is not None and is_close(sums, right):
            ranks = [each.rank for each in different]
            axis = case.layout.axis_of(ranks)
            return (f"{in_words('rank', ranks)} should have the same, and each has its own "
                    f"contribution, whose sum is right: a reduction{axis} is missing"
                    + (" (Megatron's f: copy_to before a layer that is cut)"
                       if case.phase in ("backward", "local gradient") else ""))
    return ""


def left_part(case: WrongArray, record: RecordedArray) -> np.ndarray | None:
    """The left's elements in the box of a record on the right; for a term, the same term's."""
    if not case.right.has_terms:
        return case.left.part(record)
    terms = case.left.by_term()
    return terms[record.term].part(record) if record.term in terms else None


def constant_factor(case: WrongArray) -> str:
    """All elements, or those of some ranks, are c times as large."""
    c = factor_of(case.right.values, case.left.values)
    name = case.layout.of_number(c) if c is not None else ""
    if c is not None and case.left.values.size == 1 and not name:
        return ""                           # one number is always some multiple of another
    if c is not None and abs(c - 1) > 10 * CLOSE:
        return f"all of it is {c:.4g} times as large" + (f" ({name})" if name else "") \
            + usual_factor(case, name)
    by_rank: dict[float, list[int]] = {}
    for each in case.records:
        right = left_part(case, each)
        c = None if right is None else factor_of(each.values, right)
        if c is None:
            return ""
        by_rank.setdefault(round(c, 6), []).append(each.rank)
    texts = [(ranks, c, case.layout.of_number(c)) for c, ranks in by_rank.items()
             if abs(c - 1) > 10 * CLOSE]
    return "; ".join(f"that of {in_words('rank', ranks)} is {c:.4g} "
                     "times as large" + f" ({name})" * bool(name) for ranks, c, name in texts)


def usual_factor(case: WrongArray, name: str) -> str:
    """What usually causes a constant factor that has this name."""
    if "microbatches" in name:
        return ": a loss that is averaged for each microbatch, then summed, or the reverse"
    if case.phase == "loss" and name:
        return ": a loss that is summed over ranks which all have it, or divided by their own count"
    if case.phase in ("backward", "local gradient", "gradient") and name:
        return ": a gradient that is summed over ranks which all have it, or averaged"
    return ""


def counted_terms(case: WrongArray) -> str:
    """A note on a sum with missing or doubled terms, which were recorded before the reduction."""
    step, phase, name = case.gap.key
    local = case.others.get((step, "local gradient", name))
    if phase != "gradient" or local is None or not local.has_terms:
        return ""
    terms = local.by_term()
    found: dict[str, list[int]] = {}
    for each in case.records:
        parts = np.stack([np.ravel(whole.part(each)) for whole in terms.values()], 1)
        counts, _, rank, _ = np.linalg.lstsq(parts, np.ravel(each.values), rcond=None)
        if rank < len(terms) or len(parts) < 2 * len(terms) or not is_close(
                parts @ counts, np.ravel(each.values)):         # else any numbers would do
            return ""
        words = [f"{f'{c:.4g} × ' if abs(c) > 1e-4 else 'not '}that of {term}"
                 for term, c in zip(terms, counts) if abs(c - 1) > 1e-4]
        if abs(counts).max() <= 1e-4:
            words = ["nothing"]
        found.setdefault(", ".join(words) + last_only(case, terms, counts), []).append(each.rank)
    return "; ".join(f"the sum on {in_words('rank', ranks)} has {words}"
                     for words, ranks in found.items() if words)


def last_only(case: WrongArray, terms: dict, counts: np.ndarray) -> str:
    """A note, if only terms of the last microbatch are there."""
    step = case.gap.key[0]
    last = {f"rows {rows[-1][0]}-{rows[-1][-1]}" for (at, _), rows in case.layout.rows.items()
            if at == step and len(rows) > 1 and len(rows[-1])}
    here = {term.partition(",")[0] for term, c in zip(terms, counts) if abs(c) > 1e-4}
    return ": only the last microbatch is there, the earlier ones were overwritten" \
        if here and here <= last else ""


def another_order(case: WrongArray) -> str:
    """A permutation along an axis, or a transposed array."""
    left, right = case.left.values, case.right.values
    if is_close(right, left):
        return ""
    for axis, length in enumerate(left.shape):
        if not 1 < length <= 4096:
            continue
        a, b = (np.moveaxis(x, axis, 0).reshape(length, -1) for x in (left, right))
        keys = np.random.default_rng(0).standard_normal(a.shape[1])
        order_a, order_b = np.argsort(a @ keys, kind="stable"), np.argsort(b @ keys, kind="stable")
        if is_close(b[order_b], a[order_a]):
            moved = np.flatnonzero(order_a[np.argsort(order_b)] != np.arange(length))
            if not len(moved):
                continue
            what = {2: ("rows", "columns"), 3: ("rows", "tokens", "columns")}.get(
                left.ndim, (f"axis {axis}",) * left.ndim)[axis]
            return (f"it is right in another order along its {what}, of which {len(moved)} of "
                    f"{length} are elsewhere: pieces were put together, or cut, in another order")
    if left.ndim == 2 and left.shape[0] == left.shape[1] and is_close(right, left.T):
        return "it is right, but transposed"
    return ""


def zeros(case: WrongArray) -> str:
    """Zeros where the left has numbers."""
    lost = (case.right.values == 0) & (case.left.values != 0) & case.right.known
    kept = (case.right.values != 0) & (case.left.values == 0)
    if lost.any() and kept.any() and case.phase in ("forward", "backward"):
        both = (case.right.values != 0) & (case.left.values != 0)
        if is_close(case.right.values[both], case.left.values[both]):
            return (f"{lost.sum()} other elements are dropped, those that both keep agree: another "
                    "dropout mask, of another seed, sample or place")
    if lost.any() and is_close(np.where(lost, case.left.values, case.right.values),
                               case.left.values):
        return f"{lost.sum()} of {lost.size} elements are 0, all others are right" + (
            ": their reduction began before they were there, or they were overwritten"
            if case.phase == "gradient" else "")
    return ""


def step_not_gradient(case: WrongArray) -> str:
    """The update itself is wrong: another factor, weight decay twice, or no update."""
    step, phase, name = case.gap.key
    if phase != "parameter":
        return ""
    before = case.left_others.get((step - 1, phase, name)) if step else \
        case.left_others.get((0, "initial", name))
    if before is None:
        return ""
    for each in case.records:
        old, right = before.part(each), case.left.part(each)
        again = each.values - right
        moved = factor_of(each.values - old, right - old)
        decayed = factor_of(again, old) or factor_of(again, right)
        where = in_words("rank", case.gap.ranks)
        if moved is not None and abs(moved - 1) > 10 * CLOSE:
            return f"gradient and states agree, the step on {where} is {moved:.4g} × the right step"
        if decayed is not None:
            how = "another {:.4g} × the parameter away: weight decay is applied twice" \
                if decayed < 0 else "{:.4g} × the parameter too little away: is there no decay?"
            return (f"gradient and states agree, and the step on {where} takes "
                    + how.format(abs(decayed)))
        if is_close(each.values, old, 1e-12):
            return f"on {where} it is as before the step: it was not updated, or not gathered"
    return ""


def own_norm(case: WrongArray) -> str:
    """The norm is wrong, though all gradients agree: perhaps it covers only a rank's own part."""
    step, phase, _ = case.gap.key
    if phase != "norm":
        return ""
    squares: dict[int, float] = defaultdict(float)
    for (at, kind, _), whole in case.others.items():
        for each in whole.records if (at, kind) == (step, "gradient") else ():
            squares[each.rank] += float(np.vdot(each.values, each.values))
    if all(abs(float(each.values) - squares[each.rank] ** 0.5) <= 1e-8 * abs(float(each.values))
           for each in case.records):
        return (f"all gradients agree, and the norm on {in_words('rank', case.gap.ranks)} is that "
                "of the rank's own part: squares are not summed over the ranks")
    return "all gradients agree: squares are summed over other ranks, or replicas count twice"


def own_rows(case: WrongArray) -> str:
    """Only some rows, tokens or columns are wrong, or only what some ranks have."""
    wrong = np.abs(case.right.values - case.left.values) > 1e-9 * np.abs(case.left.values).max()
    all_ranks = {each.rank for each in case.right.records}
    texts = []
    for axis, noun in enumerate(("row", "token", "column") if wrong.ndim == 3 else ()):
        here = np.flatnonzero(wrong.any(tuple(i for i in range(3) if i != axis)))
        if 0 < len(here) < wrong.shape[axis]:
            texts.append(f"only {in_words(noun, here)} of {wrong.shape[axis]} are different")
    if set(case.gap.ranks) < all_ranks:
        texts.append(f"only what {in_words('rank', case.gap.ranks)} computes is different")
    return ", ".join(texts)


def one_row_added(case: WrongArray) -> str:
    """Every row is off by the same numbers."""
    left, right = case.left.values, case.right.values
    if left.ndim < 2 or case.phase != "forward":
        return ""
    rows = (right - left).reshape(-1, left.shape[-1])
    return "every row is off by the same numbers: a bias that several ranks add, or none" \
        if len(rows) > 1 and is_close(rows, rows[:1].repeat(len(rows), 0)) else ""


def off_by_rounding(case: WrongArray) -> str:
    """The median element is off by about as much as rounding to fewer bits makes."""
    left, right = case.left.values, case.right.values
    off = np.abs(right - left)[left != 0] / np.abs(left[left != 0])
    typical = float(np.median(off)) if off.size > 1 else 0.0
    for name, bits in (("bfloat16", 8), ("float16", 11), ("float32", 24)):
        if 2.0 ** -(bits + 3) < typical < 2.0 ** -(bits - 1):
            return (f"half of the elements are off by more than {typical:.0e} of themselves, about "
                    f"as after rounding to {name}: a message or a sum in fewer bits")
    return ""


def loss_alone(case: WrongArray) -> str:
    """The loss, after outputs that all agree."""
    return "the outputs of all parts agree: the loss itself adds up other columns or targets, or " \
        "divides by another number" if case.phase == "loss" else ""


# in the order in which they are looked for
PATTERNS: tuple[Callable[[WrongArray], str], ...] = (
    own_norm, step_not_gradient, own_contributions, constant_factor, counted_terms,
    another_order, zeros, one_row_added, own_rows, off_by_rounding, loss_alone)
