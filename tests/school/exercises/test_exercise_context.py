"""Exercises of context parallelism, on arrays and on the simulated cluster."""

import numpy as np
import pytest

from minipar.autograd.online_softmax import finish, no_keys
from minipar.backend import row_dot
from minipar.comm import Cluster
from minipar.parallel.context import blocks, token_order, ulysses
from minipar.parallel.context.blocks import AttentionDropout
from minipar.parallel.context.mask import AttentionMask, Tile
from minipar.parallel.context.ring import ring_attention, ring_attention_backward

DRAW = np.random.default_rng(0)


# ---- who has which tokens

def test_pieces_of_zigzag():
    assert [mine.tolist() for mine in token_order.zigzag(8, 2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    found = token_order.zigzag(24, 4)
    assert [mine.tolist() for mine in found][1] == [3, 4, 5, 18, 19, 20], "rank 1 of 4"


@pytest.mark.parametrize("length, p", [(7, 1), (7, 2), (23, 4), (3, 4), (24, 3)])
def test_every_token_is_on_one_rank(length, p):
    found = token_order.zigzag(length, p)
    assert len(found) == p, "one array for each rank"
    assert sorted(np.concatenate(found).tolist()) == list(range(length)), "every token once"
    assert all((np.diff(mine) > 0).all() for mine in found), "positions rise on every rank"


@pytest.mark.parametrize("p", [2, 3, 4])
def test_all_ranks_see_as_many_pairs(p):
    positions = token_order.zigzag(8 * p, p)
    for hop in range(p):
        seen = {int(AttentionMask().visible(positions[r], positions[(r - hop) % p]).sum())
                for r in range(p)}
        assert seen == {4 * 9 if hop == 0 else 2 * 16}, f"pairs of all ranks in hop {hop}"


# ---- attention, block by block

def arrays(queries, keys, scale=1.0):
    """q (b, kv heads, group, queries, n), kv (2, b, kv heads, 1, keys, n); grouped queries."""
    return scale * DRAW.standard_normal((2, 2, 3, queries, 4)), DRAW.standard_normal(
        (2, 2, 2, 1, keys, 4))


def plain(q, kv, seen, keep=1.0):
    """Attention and log-sum-exp with all keys at once; `seen` (queries, keys)."""
    scores = np.where(seen, q @ kv[0].swapaxes(-1, -2), -np.inf)
    lse = np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    p = np.exp(scores - np.where(np.isfinite(lse), lse, 0))
    return (p * keep) @ kv[1], lse, p


def by_blocks(q, kv, positions, cuts, dropout=None):
    """Attention of the queries at `positions` to keys 0 … in blocks that end at `cuts`."""
    total = no_keys(q)
    for start, stop in zip([0, *cuts], cuts):
        keys = np.arange(start, stop)
        blocks.attend_block(total, q, kv[..., start:stop, :], AttentionMask().tiles(
            positions, keys), keys, dropout)
    return finish(total)


def close(ours, right, what):
    for array, expected, name in zip(ours, right, what):
        np.testing.assert_allclose(array, expected, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("cuts", [[12], [4, 12], [3, 5, 11, 12]])
def test_blocks_one_after_the_other(cuts):
    positions = np.array([0, 1, 2, 9, 10, 11])
    q, kv = arrays(6, 12)
    seen = np.arange(12) <= positions[:, None]
    before = q.copy(), kv.copy()
    close(by_blocks(q, kv, positions, cuts), plain(q, kv, seen), ("the attention", "log-sum-exp"))
    assert all(map(np.array_equal, before, (q, kv))), "q, k and v are not yours to change"


def test_a_block_that_no_query_sees():
    """Its tiles are none; a query that sees no key at all gives 0."""
    q, kv = arrays(3, 4)
    out, lse = by_blocks(q, kv, np.array([-3, 0, 2]), [2, 4])
    seen = np.arange(4) <= np.array([-3, 0, 2])[:, None]
    close((out, lse), plain(q, kv, seen), ("the attention", "log-sum-exp"))
    assert (out[..., 0, :] == 0).all() and np.isneginf(lse[..., 0, :]).all()


def test_scores_a_thousand_apart():
    q, kv = arrays(5, 10, scale=400.0)
    positions = np.arange(5) + 5
    close(by_blocks(q, kv, positions, [3, 6, 10]),
          plain(q, kv, np.arange(10) <= positions[:, None]), ("the attention", "log-sum-exp"))


def test_dropout_is_not_in_the_sum():
    q, kv = arrays(6, 9)
    keep, positions = DRAW.random((2, 2, 3, 6, 9)) < 0.6, np.arange(6) + 3
    found = by_blocks(q, kv, positions, [4, 9], AttentionDropout(keep, 1 / 0.6))
    close(found, plain(q, kv, np.arange(9) <= positions[:, None], keep / 0.6),
          ("the attention with dropout", "log-sum-exp of all keys"))


# ---- backward of a hop

def right_gradients(q, kv, seen, g, keep=1.0):
    """dq without its 1/√n, dkv: with all keys at once."""
    out, _, p = plain(q, kv, seen, keep)
    ds = p * ((g @ kv[1].swapaxes(-1, -2)) * keep - row_dot(g, out))
    dk, dv = (np.sum(x, axis=2, keepdims=True) for x in (
        ds.swapaxes(-1, -2) @ q, (p * keep).swapaxes(-1, -2) @ g))
    return ds @ kv[0], np.stack([dk, dv])


def check_blocks(keep=None):
    q, kv = arrays(7, 12)
    g, positions = DRAW.standard_normal(q.shape), np.array([0, 1, 2, 8, 9, 10, 11])
    seen = np.arange(12) <= positions[:, None]
    factors = 1.0 if keep is None else keep / 0.6
    dropout = None if keep is None else AttentionDropout(keep, 1 / 0.6)
    out, lse, _ = plain(q, kv, seen, factors)
    dq, dkv = np.zeros_like(q), np.zeros_like(kv)
    for keys in (np.arange(5), np.arange(5, 12)):
        blocks.attend_block_backward(g, row_dot(g, out), lse, q, kv[..., keys, :],
                                     AttentionMask().tiles(positions, keys), keys, dq,
                                     dkv[..., keys[0]:keys[-1] + 1, :], dropout)
    close((dq, *dkv), (lambda dq, dkv: (dq, *dkv))(*right_gradients(q, kv, seen, g, factors)),
          ("dq", "dk, summed over the heads of a group", "dv"))


def test_gradients_of_one_block():
    """All keys in one block, but in several tiles."""
    q, kv = arrays(6, 6)
    g, seen = DRAW.standard_normal(q.shape), np.tril(np.ones((6, 6), bool))
    out, lse, _ = plain(q, kv, seen)
    tiles = [Tile(slice(0, 2), 2, ~seen[None, :2, :2]), Tile(slice(2, 6), 6, ~seen[None, 2:])]
    dq, dkv = np.zeros_like(q), np.zeros_like(kv)
    blocks.attend_block_backward(g, row_dot(g, out), lse, q, kv, tiles, np.arange(6), dq, dkv)
    right = right_gradients(q, kv, seen, g)
    close((dq, *dkv), (right[0], *right[1]), ("dq", "dk, summed over the heads of a group", "dv"))
    check_blocks()


def test_gradients_with_dropout():
    check_blocks(DRAW.random((2, 2, 3, 7, 12)) < 0.6)


@pytest.mark.parametrize("p", [2, 3])
def test_gradients_around_the_ring(p):
    q, kv = arrays(10, 10)
    g, seen = DRAW.standard_normal(q.shape), np.tril(np.ones((10, 10), bool))
    dq, dkv = right_gradients(q / 2, kv, seen, g)           # n = 4
    positions = [np.arange(r, 10, p) for r in range(p)]

    def body(comm):
        mine = positions[comm.rank]
        own = q[..., mine, :], *kv[..., mine, :]
        out, lse = ring_attention(comm, *own, positions, AttentionMask())
        found = ring_attention_backward(comm, g[..., mine, :], *own, out, lse, positions,
                                        AttentionMask())
        close(found, (dq[..., mine, :] / 2, *dkv[..., mine, :]), ("dq", "dk", "dv"))
    Cluster(p).run(body)


# ---- tokens for heads

@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [24, 7])
def test_whole_sequences_of_some_heads(p, length):
    x = DRAW.standard_normal((2, length, 12))
    positions = token_order.positions_of_ranks("zigzag", length, p)
    columns = np.split(np.arange(12).reshape(2, -1).T.ravel(), p)      # not those side by side

    def body(comm):
        found = ulysses.to_heads(comm, x[:, positions[comm.rank]], columns, positions, 12)
        assert found.shape == (2, length, 12 // p), f"rank {comm.rank} of {p}: (b, t, w)"
        assert np.array_equal(found, x[..., columns[comm.rank]]), f"rank {comm.rank} of {p}"
    Cluster(p).run(body)


@pytest.mark.parametrize("p", [2, 3])
def test_there_and_back(p):
    """Two ranks of heads that share a column: their values are added up on the way back."""
    x = DRAW.standard_normal((2, 7, 4))
    positions = token_order.positions_of_ranks("striped", 7, p)
    columns = [np.array([0, 1, 2 + r % 2]) for r in range(p)]
    times = np.bincount(np.concatenate(columns), minlength=4)

    def body(comm):
        mine = x[:, positions[comm.rank]]
        there = ulysses.to_heads(comm, mine, columns, positions, 4)
        back = ulysses.to_tokens(comm, there, columns, positions, 4)
        np.testing.assert_allclose(back, mine * times, rtol=1e-12)
    Cluster(p).run(body)
