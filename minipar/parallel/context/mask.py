"""Masks by positions: query i sees key j, wherever the tokens are.

Once tokens are dealt out over ranks, a triangle of a rank's rows and columns means nothing.  "Does
query i see key j" has the same answer everywhere, if i and j are positions in the sequence.

    causal       j ≤ i
    documents    both are of the same document
    lengths      both are before the end of their sample; a padded query sees nothing
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...autograd.ops.attention import QUERIES


class Tile(NamedTuple):
    """Some queries of a block, and the keys up to the last one that any of them may see.

    `hidden` (batch or 1, queries, m) is true where a query must not see one of the last m of these
    keys.  It is None if every query sees all of them.
    """

    rows: slice
    num_keys: int
    hidden: np.ndarray | None


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """The pairs of a query and a key that attention counts.

    `documents` (t,) is the number of the document of each position; `lengths` (b,) are the numbers
    of tokens of the samples, behind which there is padding.
    """

    causal: bool = True
    documents: np.ndarray | None = None
    lengths: np.ndarray | None = None

    def visible(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """(b or 1, len(queries), len(keys)): true where the query sees the key."""
        rows, cols = queries[None, :, None], keys[None, None]
        seen = np.ones((1, len(queries), len(keys)), bool)
        if self.causal:
            seen = seen & (cols <= rows)
        if self.documents is not None:
            seen = seen & (self.documents[rows] == self.documents[cols])
        if self.lengths is not None:
            ends = self.lengths[:, None, None]
            seen = seen & (rows < ends) & (cols < ends)
        return seen

    def tiles(self, queries: np.ndarray, keys: np.ndarray) -> Iterator[Tile]:
        """The tiles of a block to compute; the positions of its `queries` and `keys` both rise.

        Keys after all queries of a tile are left out, if the mask is causal; a tile whose queries
        see all of the rest needs no mask.
        """
        for rows in row_blocks(queries):
            first, last = queries[rows.start], queries[rows.stop - 1]
            num_keys, seen_by_all = len(keys), len(keys)
            if self.causal:
                num_keys = int(np.searchsorted(keys, last, "right"))
                seen_by_all = int(np.searchsorted(keys, first, "right"))
            if self.documents is not None or self.lengths is not None:
                seen_by_all = 0
            if num_keys:
                hidden = None if num_keys <= seen_by_all else \
                    ~self.visible(queries[rows], keys[seen_by_all:num_keys])
                yield Tile(rows, num_keys, hidden)


def row_blocks(positions: np.ndarray) -> Iterator[slice]:
    """Runs of at most QUERIES rows; a new one begins where the positions jump."""
    steps = np.diff(positions)
    jumps = (np.flatnonzero(steps > min(steps, default=1)) + 1).tolist()
    for start, stop in zip([0, *jumps], [*jumps, len(positions)]):
        for first in range(start, stop, QUERIES):
            yield slice(first, min(first + QUERIES, stop))
