"""Attention of tokens that are spread over ranks = plain attention, forward and backward."""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.autograd.online_softmax import finish, merge, no_keys
from minipar.parallel.context.all_gather import (
    all_gather_attention,
    all_gather_attention_backward,
)
from minipar.parallel.context.attention import context_attention
from minipar.parallel.context.blocks import AttentionDropout, attend_block
from minipar.parallel.context.mask import AttentionMask
from minipar.parallel.context.ring import ring_attention, ring_attention_backward
from minipar.parallel.context.token_order import ORDERS, positions_of_ranks
from minipar.testing import worlds
from tests.support.context_cases import CASES, by_definition, draw

METHODS = {"ring": (ring_attention, ring_attention_backward),
           "all_gather": (all_gather_attention, all_gather_attention_backward)}


def by_kv_head(x, kv_heads, mine):
    """x (b, heads, t, n) → (b, kv heads, group, t/p, n) of the tokens `mine`."""
    return x.reshape(x.shape[0], kv_heads, -1, *x.shape[2:])[:, :, :, mine]


def compare(comm, case, order, method, keep=None, scale=1.0):
    """All results of this rank's tokens, by a method, with those of plain attention."""
    positions = positions_of_ranks(order, case.q.shape[2], comm.size)
    mine, kv_heads = positions[comm.rank], case.k.shape[1]
    q, k, v, grad = (by_kv_head(x, kv_heads, mine) for x in case[:4])
    dropout = None if keep is None else AttentionDropout(
        by_kv_head(keep, kv_heads, mine), scale)
    attend, attend_backward = METHODS[method]
    out, lse = attend(comm, q, k, v, positions, case.mask, dropout)
    found = (out, lse, *attend_backward(comm, grad, q, k, v, out, lse, positions, case.mask,
                                        dropout))
    plain = by_definition(case, 1.0 if keep is None else keep, scale)
    for array, (name, whole) in zip(found, plain.items()):
        np.testing.assert_allclose(array, by_kv_head(whole, kv_heads, mine), rtol=1e-10,
                                   atol=1e-12, err_msg=f"{name} of rank {comm.rank}")


@worlds(1, 2, 3, 4, mpi=(3, 4))
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CASES)
def test_the_ring_is_plain_attention(world, name, order):
    world.run(lambda comm: compare(comm, CASES[name], order, "ring"))


@worlds(2, 3, mpi=(4,))
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["causal, 23 tokens", "padded"])
def test_so_is_the_specification(world, name, order):
    world.run(lambda comm: compare(comm, CASES[name], order, "all_gather"))


@worlds(1, 3, mpi=())
@pytest.mark.parametrize("method", METHODS)
def test_dropout_of_probabilities(world, method):
    case = CASES["causal, grouped"]
    keep = np.random.default_rng(1).random((2, 4, 24, 24)) < 0.7
    world.run(lambda comm: compare(comm, case, "zigzag", method, keep, 1 / 0.7))


@worlds(3, mpi=())
def test_large_scores(world):
    """Blocks whose scores are a thousand apart: exp of any of them alone would overflow."""
    case = draw(2, 1, 12, 1, AttentionMask())
    case.q[...] *= 40
    case.k[:, :, ::2] *= 40
    world.run(lambda comm: compare(comm, case, "contiguous", "ring"))


@pytest.mark.parametrize("order", ORDERS)
def test_each_hop_alone_is_attention_to_its_block(order):
    """Merged in any order, the hops are the whole; a block that a query does not see counts 0."""
    case, p = CASES["padded"], 4
    positions = positions_of_ranks(order, 24, p)
    q = case.q.reshape(3, 2, 2, 24, 4) / 2              # / √n
    kv = np.stack([case.k, case.v])[:, :, :, None]
    for rank in (0, 2):
        mine, parts = positions[rank], []
        for keys in positions:
            part = no_keys(q[..., mine, :])
            attend_block(part, q[..., mine, :], kv[..., keys, :], case.mask.tiles(mine, keys), keys)
            out, lse = finish(part)
            seen = case.mask.visible(mine, keys)[:, None, None]
            scores = np.where(seen, q[..., mine, :] @ kv[0][..., keys, :].swapaxes(-1, -2), -np.inf)
            total = np.sum(np.exp(scores), axis=-1, keepdims=True)
            with np.errstate(divide="ignore"):
                np.testing.assert_allclose(lse, np.log(total), rtol=1e-12)
            np.testing.assert_allclose(
                out, np.exp(scores) @ kv[1][..., keys, :] / np.where(total, total, 1), atol=1e-12)
            parts.append(part)
        whole = no_keys(q[..., mine, :])
        for part in reversed(parts):
            whole = merge(whole, part)
        plain = by_definition(case)["out"].reshape(3, 2, 2, 24, 4)[..., mine, :]
        np.testing.assert_allclose(finish(whole)[0], plain, atol=1e-12)


@worlds(2, mpi=(2,))
def test_a_wrong_number_of_tokens_is_refused(world):
    positions = positions_of_ranks("zigzag", 9, 2)

    def body(comm):
        with pytest.raises(ValueError, match=f"rank {comm.rank} has {5 - comm.rank} tokens"):
            context_attention(Tensor(np.ones((1, 6, 12))), comm, positions, 2)
    world.run(body)
