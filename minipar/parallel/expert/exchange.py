"""The messages of expert parallelism: rows travel to the ranks of their experts, and back.

    rank 0   rows for experts 0 1 │ 2 3            all_to_all          from rank 0 │ from rank 1
    rank 1   rows for experts 0 1 │ 2 3            ─────────▶          rank 0: experts 0 1

Ranks send as many rows as their routers say.  So first all ranks learn all numbers of rows, by one
all-gather of E integers for each rank, a control message.  Then one all-to-all takes rows to their
experts, and another brings results back.  The two are conjugate: in backward, gradients of results
go to the experts, and gradients of rows come back.  So a layer has 2 all-to-alls in forward and 2
in backward.

A rank has n tokens of width d, with k experts each.  If all experts are used alike, it sends k n d
(p-1)/p numbers in each all-to-all; a p-th of the rows stays.
Lepikhin et al. 2020 (GShard), section 3.2.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...autograd import Tensor
from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import all_gather, all_to_all
from ..conjugate import conjugate

Table = tuple[tuple[int, ...], ...]         # table[i][j] rows travel from rank i to rank j


# Pairwise: each row travels once.  "auto" may forward small messages over several ranks.
def _send(comm: Communicator, rows: Array, table: Table) -> Array:
    return all_to_all(comm, rows, algorithm="pairwise", counts=table)


def _send_back(comm: Communicator, rows: Array, table: Table) -> Array:
    return all_to_all(comm, rows, algorithm="pairwise", counts=tuple(zip(*table)))


SendRows, ReturnRows = conjugate(_send, _send_back, "SendRows", "ReturnRows")


def send_rows(x: Tensor, comm: Communicator, table: Table) -> Tensor:
    """V → V: x (rows, d), sorted by the rank they go to → the rows for this rank, by their source.
    """
    return SendRows.apply(x, comm=comm, table=table)


def return_rows(y: Tensor, comm: Communicator, table: Table) -> Tensor:
    """V → V: results y of the rows that `send_rows` brought here → back to where these came from.
    """
    return ReturnRows.apply(y, comm=comm, table=table)


class TokenExchange(NamedTuple):
    """The counts that one rank knows of an exchange.

    `by_expert` is the order that sorts the arrived rows by expert, and `by_source` is its inverse.
    `counts` are the rows of each expert of this rank, from all ranks.
    """

    table: Table
    by_expert: np.ndarray
    by_source: np.ndarray
    counts: tuple[int, ...]


def agree_on_exchange(comm: Communicator, counts: Sequence[int],
                      bounds: Sequence[tuple[int, int]]) -> TokenExchange:
    """Collective.  How rows travel: this rank has counts[e] of expert e, rank r experts bounds[r].

    Its `counts` are the rows that arrive for each of this rank's experts.
    """
    with comm.labelled("control"):
        by_rank = all_gather(comm, np.array([counts], np.int64))            # (p, E)
    table = tuple(tuple(int(row[start:stop].sum()) for start, stop in bounds) for row in by_rank)
    arrived = by_rank[:, slice(*bounds[comm.rank])]                         # (p, own experts)
    times = arrived.ravel().astype(np.intp)     # np.repeat takes no int64 on a machine of 32 bits
    expert_of_row = np.repeat(np.tile(np.arange(arrived.shape[1]), comm.size), times)
    by_expert = np.argsort(expert_of_row, kind="stable")
    by_source = np.empty_like(by_expert)
    by_source[by_expert] = np.arange(len(by_expert))
    return TokenExchange(table, by_expert, by_source, tuple(arrived.sum(axis=0).tolist()))
