"""DeviceMesh: the ranks as a grid with named axes, and a communicator along each axis.

    mesh = DeviceMesh(comm, pp=2, dp=2, tp=2)

    pp 0                 pp 1                 mesh["tp"]         this rank's row: 0 1, or 2 3, …
           tp 0  tp 1           tp 0  tp 1    mesh["dp"]         its column: 0 2, or 1 3, …
    dp 0      0     1    dp 0      4     5    mesh["dp", "tp"]   its table: 0 1 2 3, or 4 5 6 7
    dp 1      2     3    dp 1      6     7    mesh.coordinate("dp")

Expert parallelism (ep) is no axis of its own: it takes neighbouring ranks of dp.

    DeviceMesh(comm, dp=4, ep=2)        dp    0  1  2  3        mesh["ep"]     0 1, or 2 3
                                        ep   └────┘└────┘       mesh["edp"]    0 2, or 1 3

By default axes nest pp, replicate, dp, cp, tp from slowest to fastest, in whatever order they are
given.  Tensor parallelism (tp) sends most, so its ranks are neighbours on one node; pipelines (pp)
send least, so they cross nodes (Narayanan et al. 2021, arXiv 2104.04473).  Data parallelism (dp)
and context parallelism (cp) lie between them.  Ranks along `replicate` hold copies of what dp
shards (hybrid sharding).  `order` sets a different nesting; axes with other names need it.
"""

import itertools
import warnings
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from .communicator import Communicator

ORDER = ("pp", "replicate", "dp", "cp", "tp")


class DeviceMesh:
    """Collective.  The ranks of `comm` as a grid, like torch.distributed's DeviceMesh.

    `sizes` are the numbers of ranks along each axis; one may be -1, for the ranks that are left.
    `order` names the axes from slowest to fastest.  `shape` maps each axis, in that order, to its
    size.  The communicators of all axes and groups of axes are made here, so that mesh[…] sends
    nothing.  With `ep`, each `ep` neighbours along dp share the experts of a model: mesh["ep"].
    The ranks of dp with the same experts are mesh["edp"].  If dp is not given, dp = ep.  Raises
    ValueError if the sizes do not multiply to comm.size, or if ep does not divide dp.  Raises it
    also for axes that `order`, by default ORDER, does not name.
    """

    def __init__(self, comm: Communicator, *, order: Sequence[str] | None = None,
                 ep: int | None = None, **sizes: int):
        self.comm = comm
        if ep is not None:
            sizes.setdefault("dp", ep)
        self.axes = nest(list(sizes), order)
        self.shape = complete({axis: sizes[axis] for axis in self.axes}, comm.size)
        self.ep = 1 if ep is None else ep
        self.grid = np.arange(comm.size).reshape(tuple(self.shape.values()))
        self._lengths = self.shape if ep is None else split_dp(self.shape, ep)
        place = np.unravel_index(comm.rank, tuple(self._lengths.values()))
        self._coordinates = self.coordinates_of(comm.rank) | {
            axis: int(i) for axis, i in zip(self._lengths, place)}
        self._comms = {group: self._along(group) for n in range(1, len(self._lengths) + 1)
                       for group in itertools.combinations(self._lengths, n)}
        self._warn_if_tp_crosses_nodes()

    def __contains__(self, axis: str) -> bool:
        return axis in self._coordinates

    def __getitem__(self, axes: str | tuple[str, ...]) -> Communicator:
        """The communicator of the ranks that differ from this one along `axes` only."""
        names = (axes,) if isinstance(axes, str) else axes
        for name in names:
            self._check(name)
        parts = [part for name in names for part in self._parts(name)]
        if not names or len(set(parts)) < len(parts):
            raise KeyError(f"mesh[{axes!r}]: name each axis once, of {', '.join(self.axes)}")
        return self._comms[tuple(axis for axis in self._lengths if axis in parts)]

    def _parts(self, axis: str) -> tuple[str, ...]:
        return ("edp", "ep") if axis == "dp" and "ep" in self else (axis,)

    def coordinate(self, axis: str) -> int:
        """This rank's position along `axis`, which is its rank in mesh[axis]."""
        self._check(axis)
        return self._coordinates[axis]

    def coordinates_of(self, rank: int) -> dict[str, int]:
        """The position of a rank of `comm` along each axis."""
        return {axis: int(i) for axis, i in
                zip(self.axes, np.unravel_index(rank, self.grid.shape))}

    @cached_property
    def alone(self) -> Communicator:
        """Collective.  A communicator of this rank alone."""
        return subset(self.comm, self.comm.rank)

    def ranks_along(self, *axes: str) -> list[list[int]]:
        """The groups of ranks that mesh[axes] forms: one for each position along the other axes.

        `axes` are axes of `shape`, so not ep or edp.
        """
        for axis in axes:
            self._check(axis)
        fixed = [i for i, axis in enumerate(self.axes) if axis not in axes]
        moving = [i for i, axis in enumerate(self.axes) if axis in axes]
        length = int(np.prod([self.grid.shape[i] for i in moving]))
        return self.grid.transpose(*fixed, *moving).reshape(-1, length).tolist()

    def _along(self, axes: tuple[str, ...]) -> Communicator:
        color = 0
        for axis, size in self._lengths.items():    # a number for the place along all others
            if axis not in axes:
                color = color * size + self._coordinates[axis]
        return subset(self.comm, color, self.label_of(axes))

    def label_of(self, axes: Sequence[str]) -> str:
        """The end of the labels along `axes`, without axes of size 1: " over dp, tp"."""
        if {"edp", "ep"} <= set(axes):
            axes = ["dp" if axis == "edp" else axis for axis in axes if axis != "ep"]
        return " over " + ", ".join(axis for axis in axes if (self.shape | self._lengths)[axis] > 1)

    def _check(self, axis: str) -> None:
        if axis not in self:
            raise KeyError(f"this mesh has no axis {axis!r}: it has {', '.join(self.axes)}")

    def _warn_if_tp_crosses_nodes(self) -> None:
        if "tp" not in self.shape or self.comm.rank != 0:
            return
        for ranks in self.ranks_along("tp"):
            nodes = {self.comm.node_of(rank) for rank in ranks}
            if len(nodes) > 1:
                warnings.warn(f"the tp group of ranks {', '.join(map(str, ranks))} spans "
                              f"{len(nodes)} nodes: every layer waits for the slow links between "
                              "them; choose tp to divide the devices of a node, and keep it the "
                              "fastest axis", stacklevel=3)
                return

    def __str__(self) -> str:
        """The grid as tables: their rows and columns are the two fastest axes."""
        *outer, row, column = [*["" for _ in range(2 - len(self.axes))], *self.axes]
        grid = self.grid.reshape(*[self.shape[axis] for axis in outer], self.shape.get(row, 1), -1)
        labels = [f"{row} {i}" if row else "" for i in range(grid.shape[-2])]
        heads = [f"{column} {j}" for j in range(grid.shape[-1])]
        wide = max(len(text) for text in (*heads, str(self.comm.size - 1)))
        left = max(map(len, labels))
        sizes = " × ".join(f"{axis} {size}" for axis, size in self.shape.items())
        lines = [f"{self.comm.size} ranks: {sizes}"]
        for place in np.ndindex(grid.shape[:-2]):
            lines.append("  ".join(f"{axis} {i}" for axis, i in zip(outer, place)))
            lines.append("  ".join([" " * left, *(head.rjust(wide) for head in heads)]))
            lines += ["  ".join([label.ljust(left), *(str(rank).rjust(wide) for rank in ranks)])
                      for label, ranks in zip(labels, grid[place])]
        return "\n".join(line.rstrip() for line in lines if line)


def subset(comm: Communicator, color: int, label: str | None = None) -> Communicator:
    """Collective.  The ranks with this rank's color; `label` ends the labels of their messages.

    Without `label`, the labels end as those of `comm` do.
    """
    found = comm.split(color)
    assert found is not None            # every rank has a color
    found.axes = comm.axes if label is None else label
    return found


def parse_mesh(text: str) -> dict[str, int]:
    """The sizes by axis of "pp=2,dp=4".  Raises ValueError for another form."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = part.strip().partition("=")
        if not axis.isidentifier() or not size.isdecimal() or int(size) < 1:
            raise ValueError(f"--mesh {text}: expected axis=size, for example dp=4, not {part!r}")
        if axis in sizes:
            raise ValueError(f"--mesh {text}: axis {axis} is given twice")
        sizes[axis] = int(size)
    return sizes


def nest(axes: list[str], order: Sequence[str] | None) -> list[str]:
    """The axes from slowest to fastest.  Raises ValueError if `order` does not name just these."""
    if not axes:
        raise ValueError("a mesh has at least one axis: for example DeviceMesh(comm, dp=4)")
    if order is None:
        unknown = [axis for axis in axes if axis not in ORDER]
        if unknown:
            raise ValueError(f"unknown axis {unknown[0]!r}: choose from {', '.join(ORDER)}, or "
                             "give order=(…) with all axes from slowest to fastest")
        order = [axis for axis in ORDER if axis in axes]
    if sorted(order) != sorted(axes):
        raise ValueError(f"order={tuple(order)} must name each of the axes {', '.join(axes)} once")
    return list(order)


def complete(shape: dict[str, int], num_ranks: int) -> dict[str, int]:
    """The shape, with -1 replaced by the ranks left.  Raises ValueError if it does not fit."""
    said = " × ".join(f"{axis}={size}" for axis, size in shape.items())
    open_axes = [axis for axis, size in shape.items() if size == -1]
    known = int(np.prod([size for size in shape.values() if size != -1], dtype=np.int64))
    if len(open_axes) > 1 or any(size < 1 for size in shape.values() if size != -1):
        raise ValueError(f"{said}: sizes are positive, at most one of them -1 (what is left)")
    if open_axes:
        shape = {**shape, open_axes[0]: num_ranks // known}
    if int(np.prod(list(shape.values()), dtype=np.int64)) != num_ranks:
        raise ValueError(f"a mesh of {said} does not fit {num_ranks} ranks: the sizes must "
                         f"multiply to {num_ranks}")
    return shape


def split_dp(shape: dict[str, int], ep: int) -> dict[str, int]:
    """The shape with dp cut into edp and ep.  Raises ValueError if ep does not divide dp."""
    if ep < 1 or shape["dp"] % ep:
        raise ValueError(f"ep={ep} takes neighbours of dp={shape['dp']}, and does not divide it: "
                         "choose a divisor of dp")
    parts = {axis: {axis: size} for axis, size in shape.items()}
    parts["dp"] = {"edp": shape["dp"] // ep, "ep": ep}
    return {axis: size for part in parts.values() for axis, size in part.items()}
