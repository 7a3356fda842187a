"""PartitionSpec: along which mesh axes each dimension of an array is cut.

    mesh dp = 2, tp = 4       P("dp", None)         rows over dp, columns whole
                              P(None, ("dp", "tp")) columns over 8 ranks, dp the major axis
                              P()                   the same whole array on every rank

A dimension of n elements over p ranks is cut into pieces of ⌈n/p⌉; the last ones may be shorter.
So 6 over 4 is 2, 2, 2, 0, as with XLA and PyTorch's DTensor.
"""

import ast
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Axes = tuple[str, ...]
Dims = tuple[Axes, ...]         # for each dimension the mesh axes that cut it, major first


class PartitionSpec:
    """The axes of each dimension, as jax.sharding.PartitionSpec: None, a name, or several.

    Dimensions that are left out are whole.  `priority` decides when several annotations compete:
    priority 0 is propagated before priority 1, and so on.  Raises ValueError for an axis that is
    named twice, TypeError for anything but names.
    """

    def __init__(self, *entries: str | None | tuple[str, ...], priority: int = 0):
        dims = []
        for entry in entries:
            axes = () if entry is None else tuple(entry) if isinstance(entry, tuple | list) \
                else (entry,)
            if not all(isinstance(axis, str) for axis in axes):
                raise TypeError(f"an entry of a PartitionSpec is None, the name of a mesh axis or "
                                f"a tuple of names, not {entry!r}")
            dims.append(axes)
        self.dims, self.priority = tuple(dims), priority
        check_once(self.dims, str(self))

    @classmethod
    def parse(cls, text: str) -> "PartitionSpec":
        """The spec written as "(None, tp)" or "dp, (cp, tp)".  Raises ValueError for other text."""
        try:
            tree = ast.parse(f"({text.strip()},)", mode="eval").body
        except SyntaxError:
            raise cannot_parse_error(text) from None
        entries = [_entry(node, text) for node in tree.elts]        # type: ignore[attr-defined]
        if len(entries) == 1 and isinstance(tree.elts[0], ast.Tuple):   # type: ignore[attr-defined]
            entries = list(entries[0])
        try:
            return cls(*entries)
        except TypeError:               # parentheses in parentheses of an entry
            raise cannot_parse_error(text) from None

    def dims_of(self, shape: tuple[int, ...], mesh: Mapping[str, int], name: str) -> Dims:
        """The axes of each dimension of an array of `shape`.

        Raises ValueError for too many dimensions, and for axes that the mesh does not have.
        """
        if len(self.dims) > len(shape):
            raise ValueError(f"{self} names {len(self.dims)} dimensions, but {name} has the shape "
                             f"{shape}: leave some out")
        for axis in all_axes(self.dims):
            if axis not in mesh:
                raise ValueError(f"{self} of {name} names the axis {axis!r}, but the mesh has "
                                 f"{', '.join(mesh)}")
        return (*self.dims, *[()] * (len(shape) - len(self.dims)))

    def __repr__(self) -> str:
        return f"P{show(self.dims)}" if self.dims else "P()"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, PartitionSpec) and (self.dims, self.priority) == (
            other.dims, other.priority)

    def __hash__(self) -> int:
        return hash((self.dims, self.priority))


P = PartitionSpec


def cannot_parse_error(text: str) -> ValueError:
    """The error for a spec that is not a list of None, names and tuples of names."""
    return ValueError(f"cannot read the partition spec {text!r}: write the axes of each dimension, "
                      "as in (None, tp) or (dp, (cp, tp))")


def _entry(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str)):
        return node.value
    if isinstance(node, ast.Tuple):
        return tuple([_entry(part, text) for part in node.elts])
    raise cannot_parse_error(text)


def show(dims: Dims) -> str:
    """The axes of each dimension as text: (dp, ·, cp+tp)."""
    return "(" + ", ".join("+".join(axes) or "·" for axes in dims) + ")"


def check_once(dims: Dims, what: str) -> None:
    """Raise ValueError if an axis occurs twice: then no rank would have some blocks."""
    axes = all_axes(dims)
    for axis in axes:
        if axes.count(axis) > 1:
            raise ValueError(f"{what} names the axis {axis!r} twice: an axis cuts one dimension")


def is_extension(old: Axes, new: Axes) -> bool:
    """True if `new` begins with `old` and goes on."""
    return len(new) > len(old) and new[:len(old)] == old


def all_axes(cut: Iterable[Axes]) -> Axes:
    """The axes of all dimensions, or of all factors, as one tuple."""
    return tuple([axis for axes in cut for axis in axes])


def assignments(axes: Iterable[str], choices: Iterable[Sequence]) -> Iterator[dict[Any, Axes]]:
    """All ways to give each axis to one of its choices; each way maps choices to their axes.

    If the choice for an axis is None, nothing gets the axis.
    """
    for chosen in itertools.product(*choices):
        cut: dict[Any, Axes] = {}
        for axis, name in zip(axes, chosen):
            if name is not None:
                cut[name] = (*cut.get(name, ()), axis)
        yield cut


def num_pieces(axes: Axes, mesh: Mapping[str, int]) -> int:
    """The number of pieces into which `axes` cut a dimension."""
    return math.prod(mesh[axis] for axis in axes)


def piece_length(length: int, axes: Axes, mesh: Mapping[str, int]) -> int:
    """The length of a piece, ⌈n/p⌉."""
    return -(-length // num_pieces(axes, mesh))


def local_shape(shape: tuple[int, ...], dims: Dims, mesh: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a rank's padded piece."""
    return tuple([piece_length(n, axes, mesh) for n, axes in zip(shape, dims)])


def piece_bounds(length: int, axes: Axes, mesh: Mapping[str, int],
                 coordinates: Mapping[str, int]) -> tuple[int, int]:
    """(start, stop) of the piece at `coordinates` of the mesh, without its padding."""
    index, piece = index_along(axes, mesh, coordinates), piece_length(length, axes, mesh)
    return min(length, index * piece), min(length, (index + 1) * piece)


def index_along(axes: Axes, mesh: Mapping[str, int], coordinates: Mapping[str, int]) -> int:
    """The number of the piece at `coordinates` of the mesh, growing fastest along the last axis."""
    index = 0
    for axis in axes:
        index = index * mesh[axis] + coordinates[axis]
    return index


def nests(length: int, outer: Axes, inner: str, mesh: Mapping[str, int]) -> bool:
    """True if cutting each piece of `outer` by `inner` gives the pieces of (*outer, inner)."""
    return not outer or piece_length(length, (*outer, inner), mesh) * mesh[inner] == piece_length(
        length, outer, mesh)
