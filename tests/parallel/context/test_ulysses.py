"""Tokens exchanged for heads: the pair of exchanges, and who gets which columns."""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm.collectives import sum_over_ranks
from minipar.parallel.context.token_order import positions_of_ranks
from minipar.parallel.context.ulysses import (
    columns_of_qkv,
    heads_to_tokens,
    to_heads,
    to_tokens,
    tokens_to_heads,
)
from minipar.testing import worlds

BATCH, LENGTH, N = 2, 7, 3          # 7 tokens: no number of ranks divides them


def qkv_of(heads, kv_heads):
    return np.random.default_rng(0).standard_normal((BATCH, LENGTH, (heads + 2 * kv_heads) * N))


@worlds(1, 2, 3, 4, mpi=(2, 4))
@pytest.mark.parametrize("kv_heads", [12, 1])
@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
def test_every_rank_gets_whole_sequences_of_its_heads(world, order, kv_heads):
    heads, qkv = 12, qkv_of(12, kv_heads)

    def body(comm):
        p, r = comm.size, comm.rank
        positions = positions_of_ranks(order, LENGTH, p)
        columns = columns_of_qkv(heads, kv_heads, N, p)
        x = Tensor(qkv[:, positions[r]].copy())
        found = tokens_to_heads(x, comm, columns, positions).data
        q, k, v = np.split(qkv.reshape(BATCH, LENGTH, -1, N), [heads, heads + kv_heads], axis=2)
        mine = [np.array_split(q, p, axis=2)[r]]
        mine += [each if kv_heads == 1 else np.array_split(each, p, axis=2)[r] for each in (k, v)]
        assert np.array_equal(found, np.concatenate(mine, axis=2).reshape(BATCH, LENGTH, -1))
    world.run(body)


@worlds(1, 2, 3, 4, mpi=(3,))
def test_results_come_back_to_their_tokens(world):
    out = np.random.default_rng(1).standard_normal((BATCH, LENGTH, 12 * N))

    def body(comm):
        positions = positions_of_ranks("zigzag", LENGTH, comm.size)
        own = np.split(out, comm.size, axis=2)[comm.rank].copy()
        found = heads_to_tokens(Tensor(own), comm, positions).data
        assert np.array_equal(found, out[:, positions[comm.rank]])
    world.run(body)


@worlds(1, 2, 3, 4, mpi=(4,))
@pytest.mark.parametrize("kv_heads", [12, 1])
def test_the_exchanges_are_each_other_s_transpose(world, kv_heads):
    """⟨A x, y⟩ = ⟨x, Aᵀ y⟩; heads of keys that several ranks have add up."""
    def body(comm):
        positions = positions_of_ranks("zigzag", LENGTH, comm.size)
        columns = columns_of_qkv(12, kv_heads, N, comm.size)
        draw, width = np.random.default_rng(comm.rank), (12 + 2 * kv_heads) * N
        x = draw.standard_normal((BATCH, len(positions[comm.rank]), width))
        y = draw.standard_normal((BATCH, LENGTH, len(columns[0])))
        one = float(np.sum(to_heads(comm, x, columns, positions, width) * y))
        other = float(np.sum(x * to_tokens(comm, y, columns, positions, width)))
        assert sum_over_ranks(comm, one) == pytest.approx(sum_over_ranks(comm, other), rel=1e-12)
    world.run(body)


@pytest.mark.parametrize("heads, kv_heads, p, degrees", [
    (6, 6, 4, "1, 2, 3, 6"), (8, 4, 3, "1, 2, 4, 8"), (6, 2, 4, "1, 2, 6")])
def test_heads_that_do_not_divide_are_refused(heads, kv_heads, p, degrees):
    with pytest.raises(ValueError, match=f"gives {heads} heads with {kv_heads} of keys and values "
                       f"to {p} ranks.*choose a degree of {degrees}, or the ring"):
        columns_of_qkv(heads, kv_heads, N, p)
    for degree in map(int, degrees.split(", ")):
        columns_of_qkv(heads, kv_heads, N, degree)
