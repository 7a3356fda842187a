"""The kind of a difference, in a sentence that says no more than was found.

The first part of the sentence names a pattern in the first wrong array (patterns.py).  The second
part says what agrees: the arrays before it, the other parameters.
"""

from collections.abc import Sequence

from .global_arrays import Gap, Key, RankLayout, Whole, in_words, whole_of
from .patterns import PATTERNS, WrongArray


def explain(gap: Gap, gaps: Sequence[Gap], left: dict[Key, Whole], right: dict[Key, Whole],
            layouts: Sequence[RankLayout], dtype: str) -> str:
    """A sentence on what is seen in the first wrong array, and what usually causes that.

    `gap` is the gap of that array, `gaps` are those of the step; `layouts` are of left and right.
    """
    if gap.note:
        return gap.note
    if not any(each.is_different for each in gaps):
        return (f"in float64 both agree, in {dtype} they do not: something is rounded more than on "
                "the left, a message or a sum")
    if gap.side == "left":
        left, right = right, left
    records = sorted(right[gap.key].records, key=lambda each: each.rank not in gap.ranks)
    case = WrongArray(gap, left[gap.key], whole_of(records), right, left,
                      layouts[gap.side == "right"])                           # of the wrong ranks
    seen = next((text for find in PATTERNS if (text := find(case))), "no pattern known here")
    return "; ".join(filter(None, [seen, where(case, gaps)]))


def where(case: WrongArray, gaps: Sequence[Gap]) -> str:
    """What agrees just before the wrong array, and how many arrays of its kind are wrong."""
    step, phase, name = case.gap.key
    same = [gap for gap in gaps if gap.key[:2] == (step, phase)]
    texts = []
    others = {each.rank for each in case.right.records if each.rank not in case.gap.ranks
              and any(each.box == wrong.box for wrong in case.records)}
    if phase in ("state", "parameter") and others:
        texts.append(f"replicas drift from step {step} on: {in_words('rank', others)} should have "
                     f"the same as {in_words('rank', case.gap.ranks)}")
    wrong = [gap for gap in same if gap.is_different]
    if phase in ("local gradient", "gradient", "parameter", "initial") and \
            len(wrong) < len(same) / 2:
        texts.append(f"it is the only one of {len(same)}" if len(wrong) == 1 else
                     f"{len(wrong)} of {len(same)} are different, all others agree")
        if any("stage" in each.term for each in
               case.others.get((step, "local gradient", name), case.right).records):
            texts.append("several stages share it (tied weights)")
    if phase in ("forward", "backward"):
        before = [gap.key[2] for gap in same[:same.index(case.gap)]]
        if before:
            texts.append(f"up to {before[-1]} all agree")
            if phase == "forward" and name.endswith("attn.core"):
                texts.append("so attention makes something else of the same q, k and v: by its "
                             "mask, positions, scale, heads, or which columns are q, k and v")
            texts += inside(before[-1], step, gaps)
    return ", ".join(texts)


def inside(module: str, step: int, gaps: Sequence[Gap]) -> list[str]:
    """A note on wrong gradients in `module`, which else agrees; [] unless only a few differ."""
    own = [gap for gap in gaps if gap.key[:2] == (step, "local gradient")
           and gap.key[2].startswith(f"{module}.")]
    wrong = [gap.key[2] for gap in own if gap.is_different]
    if not 0 < len(wrong) < len(own) / 2:
        return []
    cause = ": usually a loss of the router, which counts on each rank or on none" \
        if wrong == [f"{module}.router.weight"] else ""
    differ = "differ" if wrong[1:] else "differs"
    return [f"of the gradients in {module} only {', '.join(wrong)} {differ}{cause}"]
