"""The tokens that one step computes: a row for each sequence, all rows end to end.

    sequence x, 3 tokens of its prompt     sequence y, decoding     sequence z, decoding
    ids         5  9  2                    7                        7
    positions   0  1  2                    18                       6
    slots       table_x[0]·B + 0, 1, 2     table_y[18 div B]·B + …  …

A row is the new tokens of one sequence: a chunk of its prompt, or one token.  A slot is the room
for the keys and values of one token; B slots are a block.

All layers but attention treat the T tokens as one batch and ignore which sequence a token is of.
Attention is computed for all rows of the same number of tokens at once: they are a RowGroup.
Yu et al. 2022 (Orca), section 3: selective batching.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...backend import Array, asarray_like, to_host


class Row(NamedTuple):
    """Tokens of one sequence, the position of the first, and the sequence's table of blocks."""

    tokens: Sequence[int]
    start: int
    table: Sequence[int]


class RowGroup(NamedTuple):
    """S rows of t tokens each; arrays on the device, but for `longest` and `shortest`."""

    num_rows: int               # S
    num_queries: int            # t
    tokens: Array | slice       # (S t,) their numbers among all T; or all of them
    tables: Array               # (S, longest table), 0 behind the end of a table
    lengths: Array              # (S, 1) tokens of each sequence, those of this step included
    limits: Array               # (S, t, 1) keys that each query sees
    longest: int                # of the lengths
    shortest: int


class Touched(NamedTuple):
    """The m blocks into which the T tokens of a step are written."""

    blocks: Array               # (m,)
    begins: Array               # (m,) true: the first slot is written, so the block is new
    owner: Array                # (T,) which of the m blocks each token belongs to
    slot: Array                 # (T,) its slot there


class RowBatch:
    """Rows end to end, S rows and T tokens in all; arrays on the device of `like`.

    Each array is made when it is first asked for, and serves all layers.
    """

    def __init__(self, rows: Sequence[Row], block_size: int, like: Array | None = None):
        self.rows, self.block_size, self.like = rows, block_size, like
        self.ids = self._array([token for row in rows for token in row.tokens])             # (T,)
        self.positions = np.array([i for row in rows for i in span(row)])       # (T,) on the host
        self.longest = max(row.start + len(row.tokens) for row in rows)         # sequence, tokens

    def _array(self, values: list | np.ndarray) -> Array:
        made = np.asarray(values, np.int64)
        return made if self.like is None else asarray_like(made, self.like)

    @cached_property
    def slots(self) -> Array:
        """(T,): where each token is in the pool, block · block_size + slot in the block."""
        size = self.block_size
        return self._array([row.table[i // size] * size + i % size
                            for row in self.rows for i in span(row)])

    @cached_property
    def touched(self) -> Touched:
        """The blocks that are written."""
        slots = to_host(self.slots)
        blocks, owner = np.unique(slots // self.block_size, return_inverse=True)
        slot = slots % self.block_size
        begins = np.isin(blocks, blocks[owner[slot == 0]])
        return Touched(self._array(blocks), self._array(begins) > 0, self._array(owner),
                       self._array(slot))

    @cached_property
    def last(self) -> Array:
        """(S,): the number of each row's last token among all T."""
        return self._array(np.cumsum([len(row.tokens) for row in self.rows]) - 1)

    @cached_property
    def groups(self) -> list[RowGroup]:
        """The rows by their number of tokens."""
        by_count: dict[int, list[tuple[Row, int]]] = {}     # each row with its first token's number
        first = 0
        for row in self.rows:
            by_count.setdefault(len(row.tokens), []).append((row, first))
            first += len(row.tokens)
        return [self._group(members, count) for count, members in by_count.items()]

    def _group(self, members: list[tuple[Row, int]], count: int) -> RowGroup:
        """The rows of `count` tokens."""
        lengths = [row.start + count for row, _ in members]
        longest_table = max(len(row.table) for row, _ in members)
        tables = [[*row.table, *[0] * (longest_table - len(row.table))] for row, _ in members]
        tokens = slice(None) if len(members) == len(self.rows) else self._array(
            [token for _, first in members for token in range(first, first + count)])
        limits = np.array(lengths)[:, None, None] + np.arange(1 - count, 1)[:, None]
        return RowGroup(len(members), count, tokens, self._array(tables),
                        self._array([[n] for n in lengths]), self._array(limits), max(lengths),
                        min(lengths))


def span(row: Row) -> range:
    """The positions of a row's tokens."""
    return range(row.start, row.start + len(row.tokens))
