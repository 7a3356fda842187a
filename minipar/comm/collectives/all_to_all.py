"""All-to-all: rank r's chunk number i becomes rank i's chunk number r, a transpose over ranks.

    before   rank 0: a0 a1 a2    rank 1: b0 b1 b2    rank 2: c0 c1 c2
    after    rank 0: a0 b0 c0    rank 1: a1 b1 c1    rank 2: a2 b2 c2

Chunks may differ in length, by a table that all ranks know (`counts`).
"""

from collections.abc import Sequence

import numpy as np

from ...backend import Array
from ..chunks import axis_first, check_out, deliver, find_algorithm, piece_bounds, with_length
from ..communicator import Communicator


def pairwise(comm: Communicator, outgoing: list[Array], incoming: list[Array],
             counts: Sequence[Sequence[int]] | None = None) -> None:
    """p - 1 rounds, n(p-1)/p bytes: in round k rank r sends to r + k and receives from r - k.

    Thakur, Rabenseifner & Gropp 2005, section 4.4.
    """
    p, r = comm.size, comm.rank
    incoming[r][...] = outgoing[r]
    for k in range(1, p):
        comm.sendrecv(outgoing[(r + k) % p], (r + k) % p, incoming[(r - k) % p], (r - k) % p)


ALGORITHMS = {"pairwise": pairwise, "auto": pairwise}


def all_to_all(comm: Communicator, array: Array, split_dim: int = 0, concat_dim: int = 0,
               algorithm: str = "auto", counts: Sequence[Sequence[int]] | None = None,
               out: Array | None = None) -> Array:
    """Cut `array` along `split_dim`, exchange, join what came along `concat_dim`, into `out` if
    there is one.

    Rank i sends rank j the length counts[i][j] (a table equal on all ranks); without `counts`, all
    pieces are equal.  Raises ValueError if they do not add up to the axis `split_dim`.
    """
    exchange = find_algorithm(ALGORITHMS, algorithm)
    p, r, work = comm.size, comm.rank, axis_first(array, split_dim)
    length = work.shape[0]
    if counts is None and length % p:
        raise ValueError(f"axis {split_dim} of length {length} does not divide among {p} ranks")
    if counts is not None and [np.size(row) for row in counts] != [p] * p:
        raise ValueError(f"counts has {len(counts)} rows, or one of another length: give {p} rows "
                         f"of {p}, what each rank sends each")
    cuts = piece_bounds(length, p, None if counts is None else counts[r])
    outgoing = [work[start:stop] for start, stop in cuts]
    lengths = [length // p] * p if counts is None else [row[r] for row in counts]
    incoming = [np.empty_like(work, shape=(n, *work.shape[1:]), order="C") for n in lengths]
    joined = [np.moveaxis(piece, 0, split_dim) for piece in incoming]
    check_out(out, array, with_length(joined[0].shape, concat_dim,
                                      sum(piece.shape[concat_dim] for piece in joined)))
    with comm.collective("all_to_all", array, None if counts is None else split_dim,
                         split_dim=split_dim % array.ndim, concat_dim=concat_dim % array.ndim,
                         counts=counts, algorithm=algorithm):
        exchange(comm, outgoing, incoming, counts)
    return deliver(np.concatenate(joined, concat_dim), out)
