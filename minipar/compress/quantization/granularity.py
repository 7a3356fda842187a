"""How many numbers share a scale: a tensor, a channel (one output of a layer), a group of inputs.

    rows of a weight: one for each output, its inputs in a row

    tensor   ┌──────────┐    channel  ┌──────────┐    group:4   ┌────┬────┬──┐
             │          │             ├──────────┤              ├────┼────┼──┤    the last group
             │          │             ├──────────┤              ├────┼────┼──┤    may be shorter
             └──────────┘             └──────────┘              └────┴────┴──┘
    scales   1                        outputs                   outputs · ⌈inputs / 4⌉

The fewer numbers share one, the smaller is the largest of them, and with it the steps; the more
scales have to be kept.
"""

from dataclasses import dataclass
from typing import Self

from ...backend import Array
from ...number_formats.packing import in_groups

KINDS = ("tensor", "channel", "group")


@dataclass(frozen=True)
class Granularity:
    """Cuts rows (outputs, inputs) into units, the last axis of which shares a scale.

    `size` is that of a group.  Raises ValueError for another kind, or a size that is none.
    """

    kind: str = "channel"
    size: int = 0

    def __post_init__(self):
        if self.kind not in KINDS or (self.kind == "group") != (self.size > 0):
            raise ValueError(f"scales are per tensor, channel or group:SIZE, for example group:64, "
                             f"not per {self}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """What str() wrote: tensor, channel or group:64."""
        kind, _, size = text.partition(":")
        return cls(kind, int(size) if size.isdecimal() else -1 if size else 0)

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}" if self.size else self.kind

    def split(self, rows: Array) -> Array:
        """The units: (1, n), (outputs, inputs) or (outputs, groups, size).

        The last group is filled up with zeros, which every grid has.
        """
        if self.kind == "tensor":
            return rows.reshape(1, rows.size)
        return rows if self.kind == "channel" else in_groups(rows, self.size)

    def join(self, units: Array, shape: tuple[int, int]) -> Array:
        """The rows that were split."""
        if self.kind == "group":
            return units.reshape(shape[0], units.shape[1] * self.size)[:, :shape[1]]
        return units.reshape(shape)

    def spread(self, scale: Array, shape: tuple[int, int]) -> Array:
        """A number for each unit, (…, 1), as an array that broadcasts against the rows."""
        if self.kind == "group":
            return self.join(scale.repeat(self.size, axis=-1), shape)
        return scale


TENSOR, CHANNEL = Granularity("tensor"), Granularity("channel")
