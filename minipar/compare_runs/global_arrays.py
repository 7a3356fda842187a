"""Global arrays, put together from what the ranks recorded; and how far two of them are apart.

Each box is put into its place, and terms of different names are added up:

    rank 0  [ a b . . ]  term "rows 0-1"
    rank 1  [ . . c d ]  term "rows 0-1"      [ a+e b+f c d ]
    rank 2  [ e f . . ]  term "rows 2-3"
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .recorder import PHASES, RecordedArray, index_runs, indices_of

Key = tuple[int, str, str]      # step, phase, name


class Whole(NamedTuple):
    """A global array, with what its ranks recorded; `known`: the elements that some rank has."""

    values: np.ndarray
    known: np.ndarray
    records: list[RecordedArray]

    @property
    def terms(self) -> set[str]:
        """The names of the terms that add up to it."""
        return {record.term for record in self.records}

    @property
    def has_terms(self) -> bool:
        """True if it is a sum of what ranks recorded."""
        return len(self.terms) > 1

    def by_term(self) -> dict[str, "Whole"]:
        """The terms of a sum, each as a global array."""
        return {term: whole_of([each for each in self.records if each.term == term])
                for term in dict.fromkeys(each.term for each in self.records)}

    def part(self, record: RecordedArray) -> np.ndarray:
        """The elements of this array that are in the box of `record`."""
        return part_of(self.values, record)


def order_of(key: Key) -> tuple[int, int]:
    """A key that sorts arrays in program order: the step, and the phase's number."""
    return key[0], PHASES.index(key[1])


def what(key: Key) -> str:
    """An array in words: "forward of h.0"."""
    _, phase, name = key
    return name if phase in (name, "layout") else f"{phase} of {name}"


def part_of(array: np.ndarray, record: RecordedArray) -> np.ndarray:
    """The elements of a global array that a rank recorded."""
    return box_of(array, record)[place_of(record)]


def box_of(array: np.ndarray, record: RecordedArray) -> np.ndarray:
    """The global array as the record's box counts it: a row, if it is flat."""
    return array.reshape(-1) if len(record.box) != array.ndim else array


def place_of(record: RecordedArray) -> tuple:
    """Where the elements of a record are in the global array: slices, if they are neighbours."""
    if all(len(runs) == 1 for runs in record.box):
        return tuple(slice(*runs[0]) for runs in record.box)
    return np.ix_(*map(indices_of, record.box))


def assemble(records: Iterable[RecordedArray]) -> dict[Key, Whole]:
    """Global arrays from the records of all ranks: by step and phase, then by their first record.

    If several ranks recorded an element of one term, the first counts.  Records of the phase
    "layout" are left out.  Raises ValueError for an array of several global shapes.
    """
    by_key: dict[Key, list[RecordedArray]] = {}
    for record in records:
        by_key.setdefault(record.key, []).append(record)
    return {key: whole_of(by_key[key]) for key in sorted(by_key, key=order_of)
            if key[1] != "layout"}


def whole_of(records: list[RecordedArray]) -> Whole:
    """The global array of some records of one key."""
    first = records[0]
    if len(shapes := {each.shape for each in records}) > 1:
        raise ValueError(f"step {first.step}, {what(first.key)}: ranks recorded it with the global "
                         f"shapes {', '.join(map(str, shapes))}: give the same on each rank")
    if first.values.shape == first.shape and all(each.term == first.term for each in records):
        return Whole(first.values.astype(float), np.broadcast_to(True, first.shape), records)
    values, known = np.zeros(records[0].shape), np.zeros(records[0].shape, bool)
    for term in dict.fromkeys(record.term for record in records):
        here = [record for record in records if record.term == term]
        boxes = {record.box: record for record in here[::-1]}       # replicas: the first one
        seen = np.zeros_like(known)
        for record in boxes.values():
            place, flat = place_of(record), box_of(values, record)
            is_old = box_of(seen, record)[place]        # of a box that overlaps: the first counts
            flat[place] += np.where(is_old, 0, record.values) if is_old.any() else record.values
            box_of(seen, record)[place] = True
        known |= seen
    return Whole(values, known, records)


class Size(NamedTuple):
    """How large an array is, or a difference: its largest element, and the RMS."""

    largest: float
    rms: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Size":
        """The size of some values; infinite, if one is no number."""
        if not values.size:
            return cls(0.0, 0.0)
        if not all_numbers(values):
            return cls(np.inf, np.inf)
        largest = max(float(values.max()), -float(values.min()))
        return cls(largest, float(np.sqrt(np.vdot(values, values) / values.size)))

    def times(self, factor: float) -> "Size":
        """`factor` times as large."""
        return Size(self.largest * factor, self.rms * factor)

    def union(self, other: "Size") -> "Size":
        """The larger of both."""
        return Size(max(self.largest, other.largest), max(self.rms, other.rms))

    def over(self, bound: "Size") -> float:
        """How many times `bound` this size is: the larger of both ratios."""
        return max(ratio(self.largest, bound.largest), ratio(self.rms, bound.rms))


def all_numbers(values: np.ndarray) -> bool:
    """True if no value is NaN or infinite."""
    return not values.size or bool(np.isfinite(values.max()) and np.isfinite(values.min()))


def ratio(a: float, b: float) -> float:
    """a / b, and 0 / 0 = 0."""
    return a / b if b else np.inf if a else 0.0


class Gap(NamedTuple):
    """How far an array is off.

    `distance` is relative to its largest element, `ratio` to the difference that is allowed.
    """

    key: Key
    distance: float
    ratio: float            # above 1: no rounding
    ranks: tuple[int, ...]  # those whose elements are different …
    side: str = "right"     # … on this side
    note: str = ""          # what was found, where there are no numbers to compare

    @property
    def is_different(self) -> bool:
        """True if it is more than rounding."""
        return not self.ratio <= 1

    def __str__(self) -> str:
        where = f" on {in_words('rank', self.ranks)}" if self.ranks else ""
        return (f"step {self.key[0]}, {what(self.key)}{where}" + " of the left" * (
            self.side == "left") + ("" if self.note else f": {self.distance:.1e} (relative)"))


def in_words(noun: str, numbers: Iterable[int]) -> str:
    """Numbers in words: "rank 1", "rows 0, 1", "tokens 3-11", "no ranks"."""
    found = sorted({*numbers})
    runs = [f"{a}-{b - 1}" if b > a + 1 else str(a) for a, b in index_runs(found)]
    shown = map(str, found) if len(found) < 5 else runs[:4] + ["…"] * (len(runs) > 4)
    return f"{noun}{'s' * (len(found) != 1)} {', '.join(shown)}" if found else f"no {noun}s"


class RankLayout(NamedTuple):
    """The coordinates of each rank of a run on the mesh, and the rows of its microbatches."""

    coordinates: dict[int, dict[str, int]]
    rows: dict[tuple[int, int], list[np.ndarray]]       # by step and rank
    num_rows: dict[int, int]                            # of the global batch, by step

    @classmethod
    def of(cls, records: Sequence[RecordedArray]) -> "RankLayout":
        """The layout that the records of the phase "layout" describe."""
        found = cls({}, {}, {})
        for each in records:
            kind, _, what = each.name.partition(" ")
            found.coordinates.setdefault(each.rank, {})
            if each.phase == "layout" and kind == "axis":
                found.coordinates[each.rank][what] = int(each.values)
            elif each.phase == "layout" and kind == "microbatch":
                found.rows.setdefault((each.step, each.rank), []).append(each.values)
            elif each.phase == "layout" and kind == "batch":
                found.num_rows[each.step] = len(each.values)
        return found

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the mesh's axes, the number of microbatches and of ranks; all above 1."""
        axes = {axis: 1 + max(where.get(axis, 0) for where in self.coordinates.values())
                for axis in next(iter(self.coordinates.values()), {})}
        axes["microbatches"] = max(map(len, self.rows.values()), default=1)
        axes["the number of ranks"] = len(self.coordinates)
        return {axis: size for axis, size in axes.items() if size > 1}

    def of_number(self, c: float) -> str:
        """What a factor is: "tp", "1/tp or 1/dp"; "" for one that no size explains."""
        for text, value in (("", c), ("1/", 1 / c if c else 0.0)):
            names = [name for name, size in self.sizes.items() if abs(value - size) < 1e-4 * size]
            if names:
                return " or ".join(text + name for name in names) + ", which are equal here" * (
                    len(names) > 1)
        return ""

    def axis_of(self, ranks: Sequence[int]) -> str:
        """The axis along which these ranks lie, " over tp"; "" if there is not just one."""
        here = [self.coordinates.get(rank, {}) for rank in ranks]
        moving = [axis for axis in here[0] if len({where.get(axis) for where in here}) > 1]
        return f" over {moving[0]}" if len(moving) == 1 else ""
