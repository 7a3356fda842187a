"""The ranks of cp in groups: those that exchange heads, and those of a ring (tokens: token_order).

Ulysses with a degree u runs on u neighbouring ranks, and rings go through every u-th rank:

    p = 4, u = 2     ring block 0: ranks 0 1     ring block 1: ranks 2 3     rings: 0 2 and 1 3

A rank cannot tell from its own tokens how long the whole sequence is.  `Strategy.context_of` says
so by `sequences_of`, with or without pp.  Outside of a step the model's forward and loss call it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...backend import Array, asarray_like
from ...comm import Communicator
from ...comm.collectives import all_gather
from ...comm.mesh import subset
from ...number_formats import Format
from ..conjugate import conjugate
from .attention import METHODS
from .token_order import positions_of_ranks, sorting

# The length of the sequences in work; every simulated rank has its own.
_length: ContextVar[int | None] = ContextVar("sequence_length", default=None)


@contextmanager
def sequences_of(length: int) -> Iterator[None]:
    """Context of the forward of whole sequences of `length` tokens."""
    token = _length.set(length)
    try:
        yield
    finally:
        _length.reset(token)


class TokenLayout(NamedTuple):
    """The positions of the tokens on every rank, for sequences of one length."""

    length: int
    of_ranks: list[np.ndarray]          # of all cp ranks
    mine: np.ndarray
    neighbours: list[np.ndarray]        # of the ranks that exchange heads
    blocks: list[np.ndarray]            # of the ranks of the ring, after that exchange


class ContextOptions(NamedTuple):
    """The way in which ranks share sequences.

    `method` is "ring" or "all_gather"; `order` is one of ORDERS.  Groups of `ulysses` neighbouring
    ranks exchange heads first; if a group has all ranks, this is Ulysses alone.
    """

    method: str = "ring"
    order: str = "zigzag"
    ulysses: int = 1


class ContextSplit:
    """The ranks of `cp` share sequences, as `options` say.  Collective.

    Messages between them are codes of `message_format`, if given.
    Raises ValueError for options that do not exist or do not divide.
    """

    def __init__(self, cp: Communicator, options: ContextOptions | None = None,
                 message_format: Format | None = None):
        method, order, u = options or ContextOptions()
        if method not in METHODS:
            raise ValueError(f"unknown method of context parallelism {method!r}: choose from "
                             f"{', '.join(METHODS)}")
        if u < 1 or cp.size % u:
            raise ValueError(f"a Ulysses degree of {u} does not divide {cp.size} ranks of cp: "
                             f"choose a divisor of {cp.size}")
        positions_of_ranks(order, 1, 1)         # refuses an unknown order
        self.cp, self.method, self.order, self.message_format = cp, method, order, message_format
        self.neighbours, self.ring = subset(cp, cp.rank // u), subset(cp, cp.rank % u)
        self.layout_of = lru_cache(16)(self.make_layout)

    @property
    def layout(self) -> TokenLayout:
        """The layout of the sequences in work.  Raises RuntimeError outside of `sequences_of`."""
        length = _length.get()
        if length is None:
            raise RuntimeError("how long the whole sequences are is not known here: call "
                               "model.loss or model(ids), or enter sequences_of(length) first")
        return self.layout_of(length)

    def make_layout(self, length: int) -> TokenLayout:
        """The layout of sequences of `length` tokens; `layout_of` remembers it."""
        u, blocks = self.neighbours.size, positions_of_ranks(self.order, length, self.ring.size)
        of_ranks = [part for block in blocks for part in np.array_split(block, u)]
        first = self.cp.rank // u * u
        return TokenLayout(length, of_ranks, of_ranks[self.cp.rank], of_ranks[first:first + u],
                           blocks)


def cut_tokens(comm: Communicator, x: Array, layout: TokenLayout) -> Array:
    """This rank's tokens of x (b, t, …), the same on all ranks: (b, t/p, …)."""
    return np.take(x, asarray_like(layout.mine, x), axis=1)


def gather_tokens(comm: Communicator, x: Array, layout: TokenLayout) -> Array:
    """All tokens (b, t, …), in their order, of this rank's x (b, t/p, …).  Collective."""
    whole = all_gather(comm, x, 1, counts=[len(each) for each in layout.of_ranks])
    return np.take(whole, asarray_like(sorting(layout.of_ranks), x), axis=1)


CutTokens, GatherTokens = conjugate(cut_tokens, gather_tokens, "CutTokens", "GatherTokens")
