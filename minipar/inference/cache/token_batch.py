"""The tokens that one step computes: the new tokens of each sequence, all of them end to end.

    sequence x, 3 tokens of its prompt     sequence y, decoding     sequence z, decoding
    ids         5  9  2                    7                        7
    positions   0  1  2                    18                       6
    slots       table_x[0]·B + 0, 1, 2     table_y[18 div B]·B + …  …

The SequenceInput of a sequence has its new tokens: a chunk of its prompt, one token, or the drafts
of speculation.  A slot is the room for the keys and values of one token; B slots are a block.

All layers but attention treat the T tokens as one batch, whichever sequence a token belongs to.
Attention is computed at once for all sequences with the same number of new tokens: an InputGroup.
Yu et al. 2022 (Orca), section 3: selective batching.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...backend import Array, asarray_like, to_host


class SequenceInput(NamedTuple):
    """New tokens of one sequence, the position of the first, and the sequence's table of blocks."""

    tokens: Sequence[int]
    start: int
    table: Sequence[int]


class InputGroup(NamedTuple):
    """S sequences with t new tokens each.  The arrays are on the device."""

    num_sequences: int          # S
    num_queries: int            # t
    tokens: Array | slice       # (S t,) their indices among the T tokens; a slice of all
    tables: Array               # (S, longest table), 0 behind the end of a table
    lengths: Array              # (S, 1) tokens of each sequence, with those of this step
    limits: Array               # (S, t, 1) number of keys that each query sees
    longest: int                # the largest of the lengths
    shortest: int               # the smallest


class TouchedBlocks(NamedTuple):
    """The m blocks that the T tokens of a step are written to, for a cache with block scales."""

    blocks: Array               # (m,) their numbers
    begins: Array               # (m,) true: the first slot is written, so the block is new
    owner: Array                # (T,) index of each token's block among the m
    slot: Array                 # (T,) the token's slot in that block


class TokenBatch:
    """The T new tokens of S sequences, end to end; arrays on the device of `like`.

    `slots`, `touched`, `last` and `groups` are made when first asked for, and serve all layers.
    """

    def __init__(self, inputs: Sequence[SequenceInput], block_size: int, like: Array | None = None):
        self.inputs, self.block_size, self.like = inputs, block_size, like
        self.ids = self._array([token for each in inputs for token in each.tokens])         # (T,)
        self.positions = np.array([i for each in inputs for i in positions(each)])  # (T,), host
        self.longest = max(each.start + len(each.tokens) for each in inputs)    # of the sequences

    def _array(self, values: list | np.ndarray) -> Array:
        made = np.asarray(values, np.int64)
        return made if self.like is None else asarray_like(made, self.like)

    @cached_property
    def slots(self) -> Array:
        """(T,): each token's slot in the pool, block · block_size + slot in the block."""
        size = self.block_size
        return self._array([each.table[i // size] * size + i % size
                            for each in self.inputs for i in positions(each)])

    @cached_property
    def touched(self) -> TouchedBlocks:
        """The blocks that the tokens are written to."""
        slots = to_host(self.slots)
        blocks, owner = np.unique(slots // self.block_size, return_inverse=True)
        slot = slots % self.block_size
        begins = np.isin(blocks, blocks[owner[slot == 0]])
        return TouchedBlocks(self._array(blocks), self._array(begins) > 0, self._array(owner),
                             self._array(slot))

    @cached_property
    def last(self) -> Array:
        """(S,): the index of each sequence's last token among the T tokens."""
        return self._array(np.cumsum([len(each.tokens) for each in self.inputs]) - 1)

    @cached_property
    def groups(self) -> list[InputGroup]:
        """The sequences, grouped by their number of new tokens."""
        by_count: dict[int, list[tuple[SequenceInput, int]]] = {}   # with the first token's index
        first = 0
        for each in self.inputs:
            by_count.setdefault(len(each.tokens), []).append((each, first))
            first += len(each.tokens)
        return [self._group(members, count) for count, members in by_count.items()]

    def _group(self, members: list[tuple[SequenceInput, int]], count: int) -> InputGroup:
        """The group of the `members`, sequences with `count` new tokens."""
        lengths = [each.start + count for each, _ in members]
        longest_table = max(len(each.table) for each, _ in members)
        tables = [[*each.table, *[0] * (longest_table - len(each.table))] for each, _ in members]
        tokens = slice(None) if len(members) == len(self.inputs) else self._array(
            [token for _, first in members for token in range(first, first + count)])
        limits = np.array(lengths)[:, None, None] + np.arange(1 - count, 1)[:, None]
        return InputGroup(len(members), count, tokens, self._array(tables),
                          self._array([[n] for n in lengths]), self._array(limits), max(lengths),
                          min(lengths))


def positions(given: SequenceInput) -> range:
    """The positions of a sequence's new tokens."""
    return range(given.start, given.start + len(given.tokens))
