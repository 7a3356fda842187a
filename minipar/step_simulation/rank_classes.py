"""Classes of ranks that do the same at the same times: one of each is simulated for all of them.

    mesh pp 2, dp 4, tp 2          colours at first        after refinement
    16 ranks                       pp 0: a    pp 1: b      the same: 2 classes
    … and rank 5 is slow           a, b, and c for it      its neighbours differ, then theirs …

The algorithm is colour refinement of graphs.  At first two ranks have one colour if their programs
and sizes are equal.  They keep one colour as long as their neighbours have equal colours, and the
links to these neighbours are of equal kinds.  Neighbours are the ranks along each axis, in order
from the rank itself on.  A ring, a pairwise exchange and doubling see no more of the ranks.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np


def find_classes(shape: Mapping[str, int], program: Sequence[Hashable],
                 kind_of_link: Callable[[np.ndarray, np.ndarray], np.ndarray],
                 neighbours: Sequence[tuple[str, ...]]) -> list[int]:
    """For each rank of a mesh the first rank of its class, which stands for it.

    `program` has a value for each rank: what it computes, and of which sizes.  The ranks of a class
    have equal values.  `kind_of_link` maps arrays of sources and dests to numbers.  `neighbours`
    are the groups of axes along which ranks send messages.
    """
    groups = [cyclic_groups(shape, axes) for axes in neighbours]
    num_ranks, draw = len(program), np.random.default_rng(0)
    kinds = [kind_of_link(np.arange(num_ranks)[:, None], group) for group in groups]
    numbers: dict[Hashable, int] = {}
    colours = np.array([numbers.setdefault(each, len(numbers)) for each in program])
    while True:
        # A number for all that a rank sees: a sum with random odd weights, modulo 2^64.
        seen = colours.astype(np.uint64) * np.uint64(draw.integers(1, 1 << 62) * 2 + 1)
        for group, kind in zip(groups, kinds):
            weights = draw.integers(1, 1 << 62, (2, group.shape[1]), np.uint64) * 2 + 1
            seen += colours[group].astype(np.uint64) @ weights[0] + kind.astype(
                np.uint64) @ weights[1]
        _, first, refined = np.unique(seen, return_index=True, return_inverse=True)
        if len(first) == len(np.unique(colours)):
            return first[refined].tolist()
        colours = refined


def cyclic_groups(shape: Mapping[str, int], axes: Sequence[str]) -> np.ndarray:
    """For each rank its group along `axes`, from itself on (ranks, size of a group)."""
    grid = np.arange(int(np.prod([*shape.values()]))).reshape(tuple(shape.values()))
    moving = [i for i, axis in enumerate(shape) if axis in axes]
    fixed = [i for i in range(len(shape)) if i not in moving]
    size = int(np.prod([grid.shape[i] for i in moving]))
    groups = grid.transpose(*fixed, *moving).reshape(-1, size)
    turned = (np.arange(size)[:, None] + np.arange(size)) % size
    result = np.empty((grid.size, size), int)
    result[groups.ravel()] = groups[:, turned].reshape(-1, size)
    return result
