"""A partitioned program as rows that people read, in a table or a picture.

    value            operation  sharding      forward                backward
    h.0.attn.c_proj  linear     (dp, ·, ·)    all-reduce tp 197 kB   weights: all-reduce dp 17 kB

A row is an operation with all collectives of its operands and its result.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from ..units import in_bytes
from .partitioning.program import Instruction, Local, LocalProgram
from .spec import Axes, Dims

# the collective of the gradient, for each collective of the value
CONJUGATE = {"copy": "all-reduce", "all-gather": "reduce-scatter", "reduce-scatter": "all-gather",
             "slice": "all-gather", "all-to-all": "all-to-all", "permute": "permute"}


class CollectiveTotal(NamedTuple):
    """The collectives of one kind along some axes, and the bytes that a rank sends for them."""

    kind: str
    axes: Axes
    of_weights: bool
    num_bytes: float

    def __str__(self) -> str:
        weights = "weights: " if self.of_weights else ""
        return f"{weights}{self.kind} {'+'.join(self.axes)} {in_bytes(self.num_bytes)}"


@dataclass
class OperationRow:
    """An operation, and the collectives around it."""

    name: str
    operation: str
    shape: tuple[int, ...]
    dims: Dims                      # after the collectives
    local: tuple[int, ...]
    inputs: list[str]
    weights: list[tuple[str, Dims]]
    weight_shape: tuple[int, ...] = ()      # of the first weight
    forward: list[CollectiveTotal] = field(default_factory=list)
    backward: list[CollectiveTotal] = field(default_factory=list)

    @property
    def as_found(self) -> tuple:
        """What a row shares with the same row of an equal block: everything but names."""
        return (self.operation, self.shape, self.dims, self.local,
                [dims for _, dims in self.weights], self.forward, self.backward)


def rows(program: LocalProgram) -> list[OperationRow]:
    """A row for each operation of a program."""
    found: list[OperationRow] = []
    waiting: list[Instruction] = []             # collectives of the operands of the next operation
    is_home = True
    for each in program.instructions:
        if each.kind == "compute":
            found.append(new_row(each))
            for collective in (*waiting, each):
                note(found[-1], collective)
            waiting = []
        elif is_home:
            waiting.append(each)
        else:
            note(found[-1], each)
            found[-1].dims, found[-1].local = each.result.layout.dims, each.result.shape
        value = each.result.value
        if value.operation is not None and value.name == found[-1].name:
            is_home = is_home and each.kind != "compute" or program.homes[value] is each.result
    return found


def new_row(instruction: Instruction) -> OperationRow:
    """A row of an operation, without collectives."""
    result, operation = instruction.result, instruction.operation
    assert operation is not None
    inputs = [x for x in instruction.inputs if isinstance(x, Local)]
    weights = [x for x in inputs if x.value.is_parameter]
    return OperationRow(result.value.name, operation.function.__name__, result.value.shape,
                        result.layout.dims, result.shape,
                        [x.value.name for x in inputs if not x.value.is_parameter],
                        [(x.value.name, x.layout.dims) for x in weights],
                        weights[0].value.shape if weights else ())


def note(row: OperationRow, instruction: Instruction) -> None:
    """Add the messages of an instruction, and those of its gradient, to a row."""
    value = instruction.result.value
    kind = "all-gather" if instruction.kind == "gather" else instruction.kind
    if instruction.inner_bytes:
        kind = "rows exchanged" if row.operation == "GetItem" else "all-reduce"
        add(row.forward, CollectiveTotal(kind, instruction.axes, False, instruction.inner_bytes))
    elif instruction.num_bytes:
        add(row.forward, CollectiveTotal(kind, instruction.axes, value.is_parameter,
                                         instruction.num_bytes))
    if instruction.gradient_bytes and value.needs_grad:
        add(row.backward, CollectiveTotal(CONJUGATE.get(kind, kind), instruction.axes,
                                          value.is_parameter, instruction.gradient_bytes))


def add(known: list[CollectiveTotal], new: CollectiveTotal) -> None:
    """Append a collective, or add its bytes to a known one of the same kind along the same axes."""
    for i, each in enumerate(known):
        if each[:3] == new[:3]:
            known[i] = each._replace(num_bytes=each.num_bytes + new.num_bytes)
            return
    known.append(new)


class RepeatedRows(NamedTuple):
    """Rows that a program repeats: the first block's rows, and the names of all blocks."""

    rows: list[OperationRow]
    names: list[str]


def folded(rows: list[OperationRow]) -> list[RepeatedRows]:
    """The rows, with equal blocks of a model only once: rows of h.0, and the names h.0, h.1, …"""
    starts: dict[str, int] = {}
    for place, each in enumerate(rows):
        match = re.match(r"(h\.\d+)\.", each.name)
        if match:
            starts.setdefault(match[1], place)
    names = list(starts)
    if len(names) < 2:
        return [RepeatedRows(rows, [])]
    begin, length = starts[names[0]], starts[names[1]] - starts[names[0]]
    first = [each.as_found for each in rows[begin:begin + length]]
    alike = [names[0]]
    for name in names[1:]:
        block = rows[starts[name]:starts[name] + length]
        if [each.as_found for each in block] != first:
            break
        alike.append(name)
    end = begin + length * len(alike)
    return [RepeatedRows(rows[:begin], []), RepeatedRows(rows[begin:begin + length], alike),
            RepeatedRows(rows[end:], [])]
