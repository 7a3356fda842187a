"""Granularity: the numbers that share a scale: per tensor, per channel (one output), per group.

    rows of a weight: one row for each output, with its inputs

    tensor   ┌──────────┐    channel  ┌──────────┐    group:4   ┌────┬────┬──┐
             │          │             ├──────────┤              ├────┼────┼──┤    the last group
             │          │             ├──────────┤              ├────┼────┼──┤    may be shorter
             └──────────┘             └──────────┘              └────┴────┴──┘
    scales   1                        outputs                   outputs · ⌈inputs / 4⌉

The fewer numbers share a scale, the smaller are their maximum and the steps of the grid, but the
more scales have to be stored.
"""

from dataclasses import dataclass
from typing import Self

from ...backend import Array
from ...number_formats.packing import in_groups

GRANULARITIES = ("tensor", "channel", "group")


@dataclass(frozen=True)
class Granularity:
    """Cuts rows (outputs, inputs) into units, along the last axis; a unit has one scale.

    `kind` is one of GRANULARITIES; `size` is the size of a group, 0 for other kinds.  Raises
    ValueError for anything else.
    """

    kind: str = "channel"
    size: int = 0

    def __post_init__(self):
        if self.kind not in GRANULARITIES or (self.kind == "group") != (self.size > 0):
            raise ValueError(f"scales are per tensor, channel or group:SIZE, for example group:64, "
                             f"not per {self}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The granularity that `text` names: tensor, channel or group:64, as str() writes it."""
        kind, _, size = text.partition(":")
        return cls(kind, int(size) if size.isdecimal() else -1 if size else 0)

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}" if self.size else self.kind

    def split(self, rows: Array) -> Array:
        """The units of `rows`: (1, n) for a tensor, (outputs, inputs) for channels, or (outputs,
        groups, size), with zeros, which every grid has, at the end of the last group.
        """
        if self.kind == "tensor":
            return rows.reshape(1, rows.size)
        return rows if self.kind == "channel" else in_groups(rows, self.size)

    def join(self, units: Array, shape: tuple[int, int]) -> Array:
        """The rows (shape) of units; the inverse of `split`."""
        if self.kind == "group":
            return units.reshape(shape[0], units.shape[1] * self.size)[:, :shape[1]]
        return units.reshape(shape)

    def spread(self, scale: Array, shape: tuple[int, int]) -> Array:
        """One number for each unit, (…, 1), as an array that broadcasts against the rows."""
        if self.kind == "group":
            return self.join(scale.repeat(self.size, axis=-1), shape)
        return scale


CHANNEL = Granularity("channel")
