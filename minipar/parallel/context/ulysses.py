"""Ulysses: an all-to-all turns some of the tokens into some of the heads, and back.

    before          heads 0 1 2 3        after           heads 0 1 2 3
    rank 0  tokens  a b  █ █ █ █         rank 0  tokens  a b  █ █
    rank 1  tokens  c d  █ █ █ █                         c d  █ █
                                         rank 1  tokens  a b      █ █
                                                         c d      █ █

Between the two exchanges every rank has whole sequences of its own heads.  Any attention will do
there, a ring over other ranks included.  Heads of keys and values are repeated if there are fewer
of them than ranks.

    q, k, v there and o back     (p-1)/p · b · t/p · (2 heads + 2 max(kv, p)) · n  elements sent

Jacobs et al. 2023 (arXiv 2309.14509).
"""

from collections.abc import Sequence

import numpy as np

from ...autograd import Tensor
from ...backend import Array, asarray_like
from ...comm import Communicator, collectives
from ...number_formats import Format
from ..conjugate import conjugate
from ..errors import ulysses_heads_do_not_divide_error
from ..wire_formats.low_precision import decode, encode
from .token_order import sorting

Columns = list[np.ndarray]      # of each rank


def to_heads(comm: Communicator, x: Array, columns: Columns, positions: Sequence[np.ndarray],
             width: int, fmt: Format | None = None) -> Array:
    """This rank's tokens of all heads (b, t/p, width) → all tokens of its heads (b, t, w).

    Rank r gets the columns[r], w of them.  Rank r's tokens, at positions[r], are brought into the
    order of the sequence; messages are codes of `fmt`.  Collective.
    """
    p, (batch, time, _) = comm.size, x.shape
    pieces = np.stack([x[..., asarray_like(own, x)] for own in columns])      # (p, b, t/p, w)
    outgoing = pieces.transpose(0, 2, 1, 3).reshape(p * time, batch, len(columns[0]))
    counts = [[len(own)] * p for own in positions]
    whole = exchange(comm, outgoing, counts, fmt)
    return np.take(whole, asarray_like(sorting(positions), x), axis=0).transpose(1, 0, 2)


def to_tokens(comm: Communicator, x: Array, columns: Columns, positions: Sequence[np.ndarray],
              width: int, fmt: Format | None = None) -> Array:
    """All tokens of this rank's heads (b, t, w) → its tokens of all heads (b, t/p, width).

    The transpose of `to_heads`: where several ranks have a column, their values are added up.
    """
    p, order = comm.size, np.argsort(sorting(positions))
    outgoing = np.take(x.transpose(1, 0, 2), asarray_like(order, x), axis=0)
    counts = [[len(own) for own in positions]] * p
    pieces = exchange(comm, outgoing, counts, fmt)
    time = len(positions[comm.rank])
    pieces = pieces.reshape(p, time, *pieces.shape[1:]).transpose(0, 2, 1, 3)     # (p, b, t/p, w)
    found = np.zeros((*pieces.shape[1:3], width), x.dtype, like=x)
    for own, piece in zip(columns, pieces):
        found[..., asarray_like(own, x)] += piece
    return found


def exchange(comm: Communicator, rows: Array, counts: list[list[int]],
             fmt: Format | None) -> Array:
    """The rows that all ranks send to this one; rank i sends `counts[i][j]` of its to j."""
    return decode(collectives.all_to_all(comm, encode(rows, fmt), algorithm="pairwise",
                                         counts=counts), fmt)


ToHeads, ToTokens = conjugate(to_heads, to_tokens, "ToHeads", "ToTokens")


def columns_of_qkv(heads: int, kv_heads: int, n: int, num_ranks: int) -> Columns:
    """The columns of a fused [q | k | v] that each rank gets: its heads of q, k and v.

    With fewer heads of keys and values than ranks, several ranks get the same ones.  Raises
    ValueError if heads do not divide.
    """
    shared = max(1, num_ranks // kv_heads)          # ranks that have the same head of keys
    if heads % num_ranks or kv_heads * shared % num_ranks:
        raise ulysses_heads_do_not_divide_error(heads, kv_heads, num_ranks)
    of_q = np.arange(heads * n).reshape(num_ranks, -1)
    of_kv = np.arange(kv_heads * n).reshape(num_ranks // shared, -1).repeat(shared, axis=0)
    k, v = heads * n + of_kv, (heads + kv_heads) * n + of_kv
    return list(np.concatenate([of_q, k, v], axis=1))


def tokens_to_heads(qkv: Tensor, comm: Communicator, columns: Columns,
                    positions: Sequence[np.ndarray], fmt: Format | None = None) -> Tensor:
    """V → V (check_types.py): `to_heads`; its gradient goes back by `to_tokens`."""
    return ToHeads.apply(qkv, comm=comm, columns=columns, positions=positions,
                         width=qkv.shape[-1], fmt=fmt)


def heads_to_tokens(out: Tensor, comm: Communicator, positions: Sequence[np.ndarray],
                    fmt: Format | None = None) -> Tensor:
    """V → V: the results of all heads for this rank's tokens; the inverse of the exchange of q."""
    width = out.shape[-1] * comm.size
    return ToTokens.apply(out, comm=comm, columns=np.split(np.arange(width), comm.size),
                          positions=positions, width=width, fmt=fmt)
