"""What kind of difference it is, in a sentence that never says more than was found.

A pattern is looked for in the first wrong array (patterns.py).  Then comes what agrees: the arrays
before it, the other parameters.
"""

from collections.abc import Sequence

from .patterns import PATTERNS, Case
from .whole import Gap, Key, Layout, Whole, whole_of


def explain(gap: Gap, gaps: Sequence[Gap], left: dict[Key, Whole], right: dict[Key, Whole],
            layout: Layout, dtype: str) -> str:
    """What is seen in the first wrong array, `gap`, and what usually causes it; `gaps` are all."""
    if not any(each.is_different for each in gaps):
        return (f"in float64 both agree, in {dtype} they do not: something is rounded more than on "
                "the left, a message or a sum")
    if gap.key not in right:
        return "no rank on the right has it"
    records = sorted(right[gap.key].records, key=lambda each: each.rank not in gap.ranks)
    case = Case(gap, left[gap.key], whole_of(records), right, left, layout)     # of wrong ranks
    if case.left.values.shape != case.right.values.shape:
        return f"its shape is {case.right.values.shape}, not {case.left.values.shape}"
    seen = next((text for find in PATTERNS if (text := find(case))), "no pattern known here")
    return "; ".join(filter(None, [seen, where(case, gaps)]))


def where(case: Case, gaps: Sequence[Gap]) -> str:
    """What agrees just before it, and whether only one parameter of its kind is wrong."""
    step, phase, name = case.gap.key
    same = [gap for gap in gaps if gap.key[:2] == (step, phase)]
    wrong = [gap for gap in same if gap.is_different]
    texts = []
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
            texts += inside(before[-1], step, gaps)
    return ", ".join(texts)


def inside(module: str, step: int, gaps: Sequence[Gap]) -> list[str]:
    """Which parameters of the last module that agrees are different, if only some are."""
    own = [gap for gap in gaps if gap.key[:2] == (step, "local gradient")
           and gap.key[2].startswith(f"{module}.")]
    wrong = [gap.key[2] for gap in own if gap.is_different]
    return [f"of the gradients in {module} only {', '.join(wrong)} differs"] \
        if 0 < len(wrong) < len(own) / 2 else []
