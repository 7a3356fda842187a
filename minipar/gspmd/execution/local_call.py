"""Calls on pieces: for each operation its Function with local options, or one that sends messages.

    reshape, broadcast   to the local shape
    fused attention      of the local heads
    rotary positions     of the local heads, with the angles of the local rows and positions
    x[index]             whole slices stay whole; a dimension that stays cut: shifted_slice.py
    embedding            cut: rows of the local words, zeros for others (parallel/tensor/vocabulary)
    cross-entropy        cut: of the local classes, with all-reduces (the same file)
    max                  cut: over the ranks as well

All other operations take the same options for a piece as for the whole.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...autograd import Function
from ...backend import Array, keep_where
from ...comm import Communicator
from ...comm.collectives import all_reduce
from ...parallel.tensor.vocabulary import PartialEmbedding, VocabularyCrossEntropy
from ..graph import Operation
from ..partitioning.program import Cut, Instruction
from ..rules.shapes import full_index, sliced_dimension
from ..spec import Axes, index_along, num_pieces, piece_bounds, piece_length
from .padding import along as along_dim
from .shifted_slice import ShiftedSlice

WORDS = {PartialEmbedding: 0, VocabularyCrossEntropy: -1}     # the dimension of the vocabulary
Along = Callable[[Axes], Communicator]          # the communicator along axes, in their order


class MaxOverRanks(Function):
    """y = max x over some axes and over the ranks;  dx = g at the maximum, shared evenly."""

    metered = False         # it waits for other ranks

    @staticmethod
    def forward(ctx, x, comm, axis, keepdims):
        kept = all_reduce(comm, local_max(x, axis), "max", "ring")
        ctx.save((x == kept) | np.isnan(x))
        ctx.comm, ctx.axis, ctx.keepdims = comm, axis, keepdims
        return kept if keepdims else np.squeeze(kept, axis)

    @staticmethod
    def backward(ctx, g):
        (at_max,), comm, axis, keepdims = ctx.saved, ctx.comm, ctx.axis, ctx.keepdims

        def dx():
            where = at_max()
            count = np.sum(where, axis=axis, keepdims=True).astype(g.dtype)
            spread = g if axis is None or keepdims else np.expand_dims(g, axis)
            return keep_where(where, spread / all_reduce(comm, count, "sum", "ring"))
        return [dx]


def local_max(x: Array, axis: Any) -> Array:
    """The maximum over `axis`, which keeps length 1; without elements the lowest number."""
    if x.size:
        return np.max(x, axis=axis, keepdims=True)
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min if x.dtype.kind in "iu" \
        else False
    return np.max(x, axis=axis, keepdims=True, initial=lowest)


def local_call(instruction: Instruction, mesh: Mapping[str, int], coordinates: Mapping[str, int],
               along: Along, shape: tuple[int, ...]) -> tuple[type[Function], dict[str, Any]]:
    """The function that a rank at `coordinates` of the mesh calls, and its options.

    `shape` is the shape of the rank's piece of the result.
    """
    operation, cut = instruction.operation, instruction.cut
    assert operation is not None
    name, options = operation.function.__name__, operation.options
    if name in ("Reshape", "BroadcastTo"):
        return operation.function, {"shape": shape}
    if name == "FusedAttention":
        p = num_pieces(cut.get("h", ()), mesh)
        return operation.function, options | {"num_heads": options["num_heads"] // p,
                                              "num_kv_heads": options["num_kv_heads"] // p}
    if name == "Rotary":
        return operation.function, _local_rotary(options, cut, operation, mesh, coordinates)
    if name == "GetItem" and instruction.axes:
        sliced = sliced_dimension(operation)
        assert sliced is not None
        return ShiftedSlice, {"comm": along(instruction.axes), **sliced._asdict()}
    if name == "GetItem":
        return operation.function, {"index": _local_index(options["index"], instruction)}
    if name == "Embedding" and cut.get("v"):
        start = _first_word(operation.inputs[0].shape[0], cut["v"], mesh, coordinates)
        return PartialEmbedding, {"start": start, "vocab_size": operation.inputs[0].shape[0]}
    if name == "CrossEntropy" and cut.get("v"):
        total = operation.inputs[0].shape[-1]
        start = _first_word(total, cut["v"], mesh, coordinates)
        bounds = start, start + piece_length(total, cut["v"], mesh)
        return VocabularyCrossEntropy, options | {
            "comm": along(cut["v"]), "bounds": bounds, "num_classes": total}
    if name == "Max" and instruction.axes:
        return MaxOverRanks, {"axis": None, "keepdims": False} | options | {
            "comm": along(instruction.axes)}
    return operation.function, options


def _first_word(length: int, axes: Axes, mesh: Mapping[str, int],
                coordinates: Mapping[str, int]) -> int:
    """The index of the first word of this rank's padded piece."""
    return index_along(axes, mesh, coordinates) * piece_length(length, axes, mesh)


def _local_rotary(options: Mapping[str, Any], cut: Cut, operation: Operation,
                  mesh: Mapping[str, int], coordinates: Mapping[str, int]) -> dict[str, Any]:
    """The number of this rank's heads, and the angles of its rows and positions."""
    shape = operation.inputs[0].shape
    angles = [options["cos"], options["sin"]]
    for dim, name in ((0, "b"), (1, "t")):
        axes = cut.get(name, ())
        if axes and angles[0].shape[dim] > 1:
            start, stop = piece_bounds(shape[dim], axes, mesh, coordinates)
            angles = [each[along_dim(dim, slice(start, stop))] for each in angles]
    return {"cos": angles[0], "sin": angles[1],
            "num_heads": options["num_heads"] // num_pieces(cut.get("h", ()), mesh)}


def _local_index(index: Any, instruction: Instruction) -> Any:
    """The index with whole slices written as `:`, since local dimensions are shorter."""
    assert instruction.operation is not None
    shape = instruction.operation.inputs[0].shape
    parts = full_index(index, len(shape))
    if parts is None:
        return index
    lengths = iter(shape)
    local = []
    for part in parts:
        length = 0 if part is None else next(lengths)
        is_whole = isinstance(part, slice) and range(length)[part] == range(length)
        local.append(slice(None) if is_whole else part)
    return tuple(local)
