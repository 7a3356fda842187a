"""Rows of several sequences, laid end to end: what one step of the model computes.

    sequence A, 3 tokens of its prompt     sequence B, decoding     sequence C, decoding
    ids         5  9  2                    7                        7
    positions   0  1  2                    18                       6
    slots       table_A[0]·B + 0, 1, 2     table_B[18 div B]·B + …  …

Everything but attention treats these tokens as one batch of 1 × T, whatever sequence they are of.
Yu et al. 2022 (Orca), section 4.2: selective batching.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Row(NamedTuple):
    """Tokens of one sequence, the position of the first, and the sequence's table of blocks."""

    tokens: Sequence[int]
    start: int
    table: Sequence[int]


@dataclass
class RowBatch:
    """Rows end to end.  S sequences, T tokens in all; the arrays are on the host."""

    ids: np.ndarray             # (1, T)
    positions: np.ndarray       # (1, T)
    slots: np.ndarray           # (T,) of the pool: block · block_size + slot in the block
    tables: np.ndarray          # (S, longest table), 0 behind the end of a table
    lengths: np.ndarray         # (S,) tokens of each sequence, those of this step included
    num_queries: np.ndarray     # (S,) tokens of this step
    groups: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    @property
    def last(self) -> np.ndarray:
        """(S,): the number of each row's last token among all T."""
        return np.cumsum(self.num_queries) - 1


def lay_out(rows: Sequence[Row], block_size: int) -> RowBatch:
    """The rows, end to end.  Rows with equally many tokens form a group, computed together."""
    counts = np.array([len(row.tokens) for row in rows])
    starts = np.array([row.start for row in rows])
    tables = np.zeros((len(rows), max(len(row.table) for row in rows)), np.int64)
    for i, row in enumerate(rows):
        tables[i, :len(row.table)] = row.table
    firsts = np.cumsum(counts) - counts                         # of each row, among all tokens
    owner = np.repeat(np.arange(len(rows)), counts)             # (T,): the row of each token
    positions = np.arange(counts.sum()) - (firsts - starts)[owner]
    slots = tables[owner, positions // block_size] * block_size + positions % block_size
    groups = []
    for count in np.unique(counts):
        members = np.flatnonzero(counts == count)
        groups.append((members, firsts[members][:, None] + np.arange(count)))
    ids = np.array([token for row in rows for token in row.tokens], np.int64)
    return RowBatch(ids[None], positions[None], slots, tables, starts + counts, counts, groups)
