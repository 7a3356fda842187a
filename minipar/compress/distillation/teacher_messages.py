"""Teacher messages: which rank sends which piece of a teacher's outputs to which student, as data.

                       student 0   student 1
    teacher 0   V/2   ┌───────────┬───────────┐      logits (rows, t, V) of a batch: each cell is
                      │  2 ─▶ 0   │  2 ─▶ 1   │      one message, and no number is sent twice
    teacher 1   V/2   ├───────────┼───────────┤
                      │  3 ─▶ 0   │  3 ─▶ 1   │      bytes between them = b · t · V · itemsize
                      └───────────┴───────────┘      (less the pieces that stay on their rank)

A tensor-parallel teacher rank sends columns of logits and hidden layers, and heads of attention
maps; a pipeline stage sends whole outputs.  If all ranks are teachers and students, the messages
are an all-to-all.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from ...backend import Array
from ...comm.collectives import chunk_bounds

HEADS = 1               # the axis along which maps (b, heads, t, t) are cut; other arrays: the last


class TeacherOutput(NamedTuple):
    """One output of a teacher: of part number `part`, or, if `is_map`, the map inside that part.

    `shape` is the shape of one row of the batch.
    """

    part: int
    shape: tuple[int, ...]
    is_map: bool = False

    @property
    def axis(self) -> int:
        """The axis along which the output is cut over ranks; the batch's axis is 0."""
        return HEADS if self.is_map else len(self.shape)


class TeacherMessage(NamedTuple):
    """One message, from rank `source` to rank `dest`: an array of `shape`.

    It has the `rows` (start, stop) of output number `output`, from `start` to `stop` along `axis`.
    """

    output: int
    source: int
    dest: int
    rows: tuple[int, int]
    axis: int
    start: int
    stop: int
    shape: tuple[int, ...]

    def take(self, array: Array) -> Array:
        """The message, cut out of `array`: all rows of the whole output, or of this rank's piece.
        """
        array = array[slice(*self.rows)]
        if array.shape == self.shape:
            return array
        return array[(slice(None),) * self.axis + (slice(self.start, self.stop),)]


def messages(outputs: Sequence[TeacherOutput], owners: Sequence[Sequence[int]],
             shares: Mapping[int, tuple[int, int]]) -> list[TeacherMessage]:
    """All messages of a batch, in the order in which each rank sends and receives.

    The ranks owners[i] send one piece of output i each, by `chunk_bounds` along its axis.  `shares`
    are the rows (start, stop) of each student.  Messages of a rank to itself are listed, too.
    """
    found = []
    for i, (output, ranks) in enumerate(zip(outputs, owners)):
        axis = output.axis
        pieces = chunk_bounds(output.shape[axis - 1], len(ranks))
        for source, (start, stop) in zip(ranks, pieces):
            for dest, rows in shares.items():
                shape = [rows[1] - rows[0], *output.shape]
                shape[axis] = stop - start
                found.append(TeacherMessage(i, source, dest, rows, axis, start, stop, tuple(shape)))
    return found


def bytes_between(plan: Sequence[TeacherMessage], itemsize: int) -> int:
    """The bytes of all messages between different ranks."""
    return itemsize * sum(prod(m.shape) for m in plan if m.source != m.dest)
