"""Rows of several sequences, laid end to end: what one step of the model computes.

    sequence A, 3 tokens of its prompt     sequence B, decoding     sequence C, decoding
    ids         5  9  2                    7                        7
    positions   0  1  2                    18                       6
    slots       table_A[0]·B + 0, 1, 2     table_B[18 div B]·B + …  …

Everything but attention treats these tokens as one batch of T rows, whatever sequence they are of.
Attention is computed for all rows of equally many tokens at once: they are a group.
Yu et al. 2022 (Orca), section 4.2: selective batching.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...backend import Array, asarray_like


class Row(NamedTuple):
    """Tokens of one sequence, the position of the first, and the sequence's table of blocks."""

    tokens: Sequence[int]
    start: int
    table: Sequence[int]


class Group(NamedTuple):
    """S rows of t tokens each; arrays on the device, but for `longest` and `shortest`."""

    num_rows: int               # S
    num_queries: int            # t
    tokens: Array | slice       # (S t,) their numbers among all T; or all of them
    tables: Array               # (S, longest table), 0 behind the end of a table
    lengths: Array              # (S, 1) tokens of each sequence, those of this step included
    limits: Array               # (S, t, 1) keys that each query sees
    longest: int                # of the lengths
    shortest: int


@dataclass
class RowBatch:
    """Rows end to end: S rows, T tokens in all."""

    rows: Sequence[Row]
    ids: Array                  # (T,)
    positions: np.ndarray       # (T,) on the host
    slots: Array                # (T,) of the pool: block · block_size + slot in the block
    last: Array                 # (S,) the number of each row's last token among all T
    longest: int                # tokens of the longest sequence
    groups: list[Group]


def lay_out(rows: Sequence[Row], block_size: int, like: Array | None = None) -> RowBatch:
    """The rows, end to end, as arrays on the device of `like`."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    last: list[int] = []
    by_count: dict[int, list[tuple[Row, int]]] = {}     # each row with its first token's number
    for row in rows:
        tokens, start, table = row
        span = range(start, start + len(tokens))
        by_count.setdefault(len(tokens), []).append((row, len(ids)))
        ids += tokens
        positions += span
        slots += [table[i // block_size] * block_size + i % block_size for i in span]
        last.append(len(ids) - 1)

    def array(values: list | np.ndarray) -> Array:
        made = np.asarray(values, np.int64)
        return made if like is None else asarray_like(made, like)
    groups = [_group(members, count, len(rows), array) for count, members in by_count.items()]
    return RowBatch(rows, array(ids), np.array(positions), array(slots), array(last),
                    max(group.longest for group in groups), groups)


def _group(members: list[tuple[Row, int]], count: int, num_rows: int,
           array: Callable[[Any], Array]) -> Group:
    """The rows of `count` tokens."""
    lengths = [row.start + count for row, _ in members]
    longest_table = max(len(row.table) for row, _ in members)
    tables = [[*row.table, *[0] * (longest_table - len(row.table))] for row, _ in members]
    tokens = slice(None) if len(members) == num_rows else array(
        [token for _, first in members for token in range(first, first + count)])
    limits = np.array(lengths)[:, None, None] + np.arange(1 - count, 1)[:, None]
    return Group(len(members), count, tokens, array(tables), array([[n] for n in lengths]),
                 array(limits), max(lengths), min(lengths))
