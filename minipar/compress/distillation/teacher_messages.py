"""Which rank tells which other what: the messages from a spread teacher to its students, as data.

                       student 0   student 1
    teacher 0   V/2   ┌───────────┬───────────┐      logits (rows, t, V) of a batch: each cell is
                      │  2 ─▶ 0   │  2 ─▶ 1   │      one message, and no number is sent twice
    teacher 1   V/2   ├───────────┼───────────┤
                      │  3 ─▶ 0   │  3 ─▶ 1   │      bytes between them = b · t · V · itemsize
                      └───────────┴───────────┘      (less what a rank would send to itself)

Tensor-parallel teachers have columns of logits and hidden layers, and heads of attention maps; a
pipeline's stages have whole layers.  Where all are teachers and students, it is an all-to-all.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from ...backend import Array
from ...comm.collectives import chunk_bounds

HEADS = 1               # the axis of a map (b, heads, t, t) that is cut; of others it is the last


class Output(NamedTuple):
    """One array that a teacher gives: `shape` of a row, without the batch's axis.

    That number `part` of its parts returned, or, if `is_map`, the map of the attention in it.
    """

    part: int
    shape: tuple[int, ...]
    is_map: bool = False

    @property
    def axis(self) -> int:
        """Along which ranks may have pieces of it, the batch's being 0."""
        return HEADS if self.is_map else len(self.shape)


class Message(NamedTuple):
    """Rows `rows` of output number `output`, start … stop along `axis`: an array of `shape`."""

    output: int
    source: int
    dest: int
    rows: tuple[int, int]
    axis: int
    start: int
    stop: int
    shape: tuple[int, ...]

    def take(self, array: Array) -> Array:
        """It, of all rows of an output that is here whole, or of the piece that is here."""
        array = array[slice(*self.rows)]
        if array.shape == self.shape:
            return array
        return array[(slice(None),) * self.axis + (slice(self.start, self.stop),)]


def messages(outputs: Sequence[Output], owners: Sequence[Sequence[int]],
             shares: Mapping[int, tuple[int, int]]) -> list[Message]:
    """All messages of a batch, in the order in which each rank sends and receives.

    owners[i] are the ranks that have a piece of output i each, by `chunk_bounds` along its axis;
    `shares` are the rows (start, stop) of each student.  A message of a rank to itself is listed.
    """
    found = []
    for i, (output, ranks) in enumerate(zip(outputs, owners)):
        axis = output.axis
        pieces = chunk_bounds(output.shape[axis - 1], len(ranks))
        for source, (start, stop) in zip(ranks, pieces):
            for dest, rows in shares.items():
                shape = [rows[1] - rows[0], *output.shape]
                shape[axis] = stop - start
                found.append(Message(i, source, dest, rows, axis, start, stop, tuple(shape)))
    return found


def bytes_between(plan: Sequence[Message], itemsize: int) -> int:
    """What goes from one rank to another, all messages together."""
    return itemsize * sum(prod(m.shape) for m in plan if m.source != m.dest)
