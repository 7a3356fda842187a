"""What is not there: ranks and steps of a recording, rows of the batch, elements, numbers.

A comparison of what both sides have would pass what one of them lacks.  So each gap here is a
difference, however well the rest agrees:

    check_whole     refuses a recording that lacks a rank or a step, or is of another kind
    rows_gap        rows of the global batch that are read twice, or on no rank
    array_gap       an array that only one side has, or of another shape
    elements_gap    elements that no rank has, NaN, infinity
"""

from collections.abc import Iterator, Sequence

import numpy as np

from .recorder import Record, runs_of
from .whole import Gap, Key, Layout, Whole, all_numbers, ranks_in_words, what


def check_whole(left: Sequence[Record], right: Sequence[Record], exact: Sequence[Record]) -> None:
    """Raise ValueError unless both recordings are whole and fit together; `exact` may be empty."""
    for side, records in (("left", left), ("right", right)):
        if not records:
            raise ValueError(f"the {side} recording is empty: record the run again")
        check_ranks(side, records)
    steps, others = ({each.step for each in records} for records in (left, right))
    if steps != others:
        raise ValueError(f"the left recording has {spans('step', steps)}, the right one "
                         f"{spans('step', others)}: record the same steps of both")
    if (dtype := dtype_of(left)) != dtype_of(right):
        raise ValueError(f"the left is in {dtype}, the right in {dtype_of(right)}: record both in "
                         "one dtype, and give the left in float64, too, as --exact")
    shapes = {each.key: each.shape for each in exact}
    for each in left if exact else ():
        shape = shapes.get(each.key)
        if each.phase != "layout" and shape != each.shape:
            has = "no" if shape is None else f"of shape {shape}, not {each.shape}, the"
            raise ValueError(f"--exact has {has} {what(each.key)} in step {each.step}: record the "
                             "same run as on the left, in float64")


def check_ranks(side: str, records: Sequence[Record]) -> None:
    """Raise ValueError for files that are missing, or of another run."""
    ranks = {each.rank for each in records}
    told = {int(each.values) for each in records if each.key[1:] == ("layout", "ranks")}
    size = max(told, default=max(ranks) + 1)
    if lost := {*range(size)} - ranks:
        raise ValueError(f"the {side} recording lacks {ranks_in_words(lost)} of {size}: give a "
                         "folder with the files of all ranks")
    if len(told) > 1 or len(ranks) > size:
        raise ValueError(f"the {side} recording has files of {len(ranks)} ranks, from runs on "
                         f"{' and '.join(map(str, sorted(told)))}: empty the folder, and record "
                         "again")
    seen = set()
    for each in records:
        place = each.key, each.rank, each.box, each.term
        if place in seen and each.values.size:
            raise ValueError(f"the {side} recording has step {each.step}, {what(each.key)} of rank "
                             f"{each.rank} twice: give each record a name of its own, and each "
                             "run its own folder")
        seen.add(place)


def dtype_of(records: Sequence[Record]) -> str:
    """What most outputs and gradients are in."""
    dtypes = [str(each.values.dtype) for each in records if each.phase in ("forward", "gradient")]
    return max(sorted({*dtypes}), key=dtypes.count, default="float32")


def spans(noun: str, numbers: Sequence[int] | set[int]) -> str:
    """Numbers in words: "rows 0-3, 6"."""
    runs = [f"{a}-{b - 1}" if b > a + 1 else str(a) for a, b in runs_of(sorted({*numbers}))]
    return f"{noun}{'s' * (len({*numbers}) != 1)} {', '.join(runs[:4])}" + " …" * (len(runs) > 4)


def rows_gap(layout: Layout, other: Layout, side: str) -> Iterator[Gap]:
    """The gap of a step in which rows of the batch are not read once; none if that is not known.

    `other` is the layout of the other side, which has to read the same samples.
    """
    samples = {(step, tuple(each)) for (step, _), each in [*layout.samples.items(),
                                                           *other.samples.items()]}
    for step in sorted({step for step, _ in layout.samples}):
        ranks = {rank: np.concatenate(rows) for (at, rank), rows in layout.rows.items()
                 if at == step}
        batches = [each for at, each in samples if at == step]
        if len(batches) > 1:
            yield Gap((step, "layout", "rows of the batch"), np.inf, np.inf, (), side,
                      "the ranks of both sides do not read the same samples: another seed or data")
        elif note := wrong_rows(layout, ranks, len(batches[0])):
            yield Gap((step, "layout", "rows of the batch"), np.inf, np.inf, tuple(sorted(
                note[1])), side, note[0])


def wrong_rows(layout: Layout, rows_of: dict[int, np.ndarray], num_rows: int
               ) -> tuple[str, set[int]] | None:
    """What is wrong with the rows that ranks read, and on which; None if each row is read once.

    The ranks at one place of dp read the same.  Without a mesh, those that do are replicas.
    """
    readers: dict[tuple, list[int]] = {}
    for rank, rows in rows_of.items():
        if not len(rows):
            continue                    # another rank may deal its rows to this one
        axes = layout.coordinates.get(rank)
        place = (axes.get("replicate", 0), axes.get("dp", 0)) if axes else tuple(rows)
        first = readers.setdefault(place, [])
        first.append(rank)
        if not np.array_equal(rows_of[first[0]], rows):
            return (f"rank {rank} reads {spans('row', rows)}, rank {first[0]} of the same dp reads "
                    f"{spans('row', rows_of[first[0]])}: the ranks of tp, cp and pp have to read "
                    "the same"), {rank, first[0]}
    counts = sum(np.bincount(rows_of[ranks[0]], minlength=num_rows) for ranks in readers.values())
    texts, wrong = [], set()
    for times in sorted({*counts} - {0, 1}):
        rows = np.flatnonzero(counts == times)
        ranks = {rank for rank, mine in rows_of.items() if np.isin(rows, mine).any()}
        wrong |= ranks
        texts.append(f"{spans('row', rows)} {'is' if len(rows) == 1 else 'are'} read "
                     f"{'twice' if times == 2 else f'{times} times'}, on {ranks_in_words(ranks)}")
    if not counts.all():
        rows = np.flatnonzero(counts == 0)
        texts.append(f"{spans('row', rows)} of {num_rows} {'is' if len(rows) == 1 else 'are'} read "
                     "on no rank")
    return ("; ".join(texts) + ": see the strategy's rows()", wrong) if texts else None


def array_gap(key: Key, left: Whole | None, right: Whole | None) -> Gap | None:
    """The gap of an array that one side lacks, or that has two shapes; else None."""
    if left is None or right is None:
        side = "left" if left is None else "right"
        return Gap(key, np.inf, np.inf, (), "right", f"no rank on the {side} has it")
    if left.values.shape != right.values.shape:
        return Gap(key, np.inf, np.inf, (), "right",
                   f"its shape is {right.values.shape}, not {left.values.shape}")
    return None


def elements_gap(key: Key, left: Whole, right: Whole) -> Gap | None:
    """The gap of an array with elements that no rank has, or that are no numbers; else None."""
    sides = {"left": left, "right": right}
    for side, known in (("right", left.known & ~right.known), ("left", right.known & ~left.known)):
        if known.any():
            return Gap(key, np.inf, np.inf, tuple(sorted({
                each.rank for each in sides[side].records})), side, f"{known.sum()} of {known.size}"
                       " elements are on no rank: a piece is cut too short, or was not recorded")
    bad = {side: [each for each in whole.records if not all_numbers(each.values)]
           for side, whole in sides.items()}
    if not (bad["left"] or bad["right"]):
        return None
    side = "right" if bad["right"] else "left"
    largest = max(bad[side], key=lambda each: np.count_nonzero(~np.isfinite(each.values)))
    where = f"on the {side}" if not (bad["left"] and bad["right"]) else "on both sides, here first"
    count = np.count_nonzero(~np.isfinite(largest.values))
    return Gap(key, np.inf, np.inf, tuple(sorted({each.rank for each in bad[side]})), side,
               f"{count} of {largest.values.size} elements are no numbers (NaN, infinity) {where}: "
               "an overflow, padding, or memory never filled")
