"""What is missing: ranks and steps of a recording, rows of the batch, elements, numbers.

A comparison of only what both sides have would not notice what one of them lacks.  So each gap here
counts as a difference, however well the rest agrees:

    check_whole     refuses a recording that lacks a rank or a step, or is of another kind
    rows_gaps       rows of the global batch that are read twice, or on no rank
    absent          an array that only one side has, or of another shape
    elements_gap    elements that no rank has, NaN, infinity
"""

from collections.abc import Iterable, Sequence

import numpy as np

from .global_arrays import Gap, Key, RankLayout, Whole, all_numbers, in_words, what
from .recorder import RecordedArray


def lack(key: Key, note: str, side: str = "right", ranks: Iterable[int] = ()) -> Gap:
    """The gap for an array that is not there, or not whole."""
    return Gap(key, np.inf, np.inf, tuple(sorted({*ranks})), side, note)


def check_whole(left: Sequence[RecordedArray], right: Sequence[RecordedArray],
                exact: Sequence[RecordedArray]) -> None:
    """Raise ValueError unless both recordings are whole and fit together; `exact` may be empty."""
    for side, records in (("left", left), ("right", right)):
        ranks = {each.rank for each in records}
        told = {int(each.values) for each in records if each.key[1:] == ("layout", "ranks")}
        size = max(told, default=max(ranks, default=0) + 1)
        if ranks != {*range(size)} or len(told) > 1:
            raise ValueError(f"the {side} recording has {in_words('rank', ranks)} of {size}: give "
                             "the folder with the files of all ranks of one run")
    for of in (lambda records: in_words("step", (each.step for each in records)), dtype_of):
        if of(left) != of(right):
            raise ValueError(f"the left recording has {of(left)}, the right one {of(right)}: "
                             "record the same on both sides")
    if exact and dtype_of(left) == "float64":
        raise ValueError("both recordings are in float64 already: leave --exact out")
    shapes = {each.key: each.shape for each in exact}
    for each in left if exact else ():
        if each.phase != "layout" and shapes.get(each.key) != each.shape:
            raise ValueError(f"--exact has no {what(each.key)} of shape {each.shape} in step "
                             f"{each.step}: record the run of the left again, in float64")


def dtype_of(records: Sequence[RecordedArray]) -> str:
    """The dtype of most outputs and gradients; "float32" if there are none."""
    dtypes = [str(each.values.dtype) for each in records if each.phase in ("forward", "gradient")]
    return max(sorted({*dtypes}), key=dtypes.count, default="float32")


def rows_gaps(left: RankLayout, right: RankLayout) -> list[Gap]:
    """A gap for the first step in which some row is not read once; none without recorded rows."""
    for side, layout in (("right", right), ("left", left)):
        for step, num_rows in layout.num_rows.items():
            note, ranks = wrong_rows(layout, step, num_rows)
            if note:
                return [lack((step, "layout", "rows of the batch"),
                             f"{note}: see the strategy's rows()", side, ranks)]
    return []


def wrong_rows(layout: RankLayout, step: int, num_rows: int) -> tuple[str, set[int]]:
    """What is wrong with the rows that ranks read in a step, and on which; "" if nothing.

    Ranks with the same coordinates on dp and replicate must read the same rows, which count once.
    Without a mesh, ranks that read the same rows are taken for replicas.
    """
    rows_of = {rank: np.concatenate(rows) for (i, rank), rows in layout.rows.items() if i == step}
    readers: dict[tuple, int] = {}                  # the first rank at each place
    for rank, rows in rows_of.items():
        axes = layout.coordinates[rank]
        place = (axes.get("replicate", 0), axes.get("dp", 0)) if axes else tuple(rows)
        first = readers.setdefault(place, rank) if len(rows) else rank
        if tuple(rows) != tuple(rows_of[first]):
            others = in_words("row", rows_of[first])
            return (f"rank {rank} reads {in_words('row', rows)}, rank {first} at the same place of "
                    f"dp {others}"), {rank, first}
    read = np.concatenate([np.empty(0, int), *(rows_of[rank] for rank in readers.values())])
    counts = np.bincount(read % num_rows, minlength=num_rows)       # row −1 is the last one
    return ("; ".join(f"read {times} times: {in_words('row', np.flatnonzero(counts == times))} of "
                      f"{num_rows}" for times in sorted({*counts.tolist()} - {1}, reverse=True)),
            {rank for rank, rows in rows_of.items() if (counts[rows] > 1).any()})


def absent(key: Key, left: dict[Key, Whole], right: dict[Key, Whole]) -> str:
    """Why an array cannot be compared: it is on one side alone, or of another shape; else ""."""
    if key not in left or key not in right:
        return f"no rank on the {'right' if key in left else 'left'} has it"
    shapes = left[key].values.shape, right[key].values.shape
    return f"its shape is {shapes[1]}, not {shapes[0]}" if shapes[0] != shapes[1] else ""


def elements_gap(key: Key, left: Whole, right: Whole) -> Gap | None:
    """The gap of an array with elements that no rank has, or that are no numbers; else None."""
    for side, one, other in (("right", right, left), ("left", left, right)):
        if lost := np.count_nonzero(other.known & ~one.known):
            return lack(key, f"{lost} of {one.known.size} elements are on no rank: a piece is cut "
                        "too short, or was not recorded", side, (each.rank for each in one.records))
    bad = {side: [each for each in whole.records if not all_numbers(each.values)]
           for side, whole in (("right", right), ("left", left))}
    for side in [side for side in bad if bad[side]]:
        count = max(np.count_nonzero(~np.isfinite(each.values)) for each in bad[side])
        where = f"on the {side}" if not all(bad.values()) else "on both sides, here first"
        return lack(key, f"{count} of {left.values.size} elements are no numbers {where}: an "
                    "overflow, padding, or memory never filled", side,
                    (each.rank for each in bad[side]))
    return None
