"""Exercises gathered_attention, merge_partials, rotary_turn and requantize."""

import numpy as np
import pytest

from minipar.autograd.online_softmax import Partial, merge
from minipar.autograd.ops.embedding import turn
from minipar.inference.cache.paged_attention import gathered_attention
from minipar.inference.cache.quantized import EMPTY, requantize

DRAW = np.random.default_rng(0)


def attention_row_by_row(q, k, v):
    """The same with loops: q (t, h, n) over k, v (length, kv heads, n)."""
    (t, heads, n), (length, kv_heads, _) = q.shape, k.shape
    out = np.empty_like(q)
    for i in range(t):
        for head in range(heads):
            seen, kv = length - t + i + 1, head // (heads // kv_heads)
            scores = k[:seen, kv] @ q[i, head] / np.sqrt(n)
            out[i, head] = np.exp(scores - np.logaddexp.reduce(scores)) @ v[:seen, kv]
    return out


def inputs(t, length, heads=4, kv_heads=2, n=6, scale=1.0):
    return [scale * DRAW.standard_normal((t, heads, n)),
            *(DRAW.standard_normal((length, kv_heads, n)) for _ in range(2))]


@pytest.mark.parametrize("t, length", [(1, 7), (3, 7), (7, 7)])
def test_attention_of_the_last_queries(t, length):
    arrays = inputs(t, length)
    before = [array.copy() for array in arrays]
    found = gathered_attention(*arrays)
    assert all(map(np.array_equal, arrays, before)), "q, k and v are not yours to change"
    assert np.allclose(found, attention_row_by_row(*arrays), rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (6, 2), (3, 1)])
def test_attention_of_grouped_heads(heads, kv_heads):
    q, k, v = inputs(2, 5, heads, kv_heads)
    assert np.allclose(gathered_attention(q, k, v), attention_row_by_row(q, k, v), atol=1e-12)


def test_attention_with_large_scores():
    q, k, v = inputs(2, 5, scale=2000.0)
    assert np.allclose(gathered_attention(q, k, v), attention_row_by_row(q, k, v), atol=1e-12)


def partial(scores, v) -> Partial:
    """Of scores (queries, keys) and v (keys, n)."""
    maximum = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - maximum)
    return Partial(weights @ v, maximum, weights.sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0, 900.0, -900.0])
def test_merged_parts_are_the_whole(shift):
    scores, v = DRAW.standard_normal((3, 9)), DRAW.standard_normal((9, 4))
    scores[:, 5:] += shift
    whole = partial(scores, v)
    found = merge(partial(scores[:, :5], v[:5]), partial(scores[:, 5:], v[5:]))
    assert np.allclose(found.out / found.sum, whole.out / whole.sum, rtol=0, atol=1e-12)
    assert np.allclose(np.log(found.sum) + found.maximum, np.log(whole.sum) + whole.maximum)


def test_many_parts_in_any_order():
    scores, v = 30 * DRAW.standard_normal((3, 8)), DRAW.standard_normal((8, 4))
    scores += 700
    whole = partial(scores, v)
    for order in (range(8), reversed(range(8))):
        total = None
        for i in order:
            part = partial(scores[:, i:i + 1], v[i:i + 1])
            total = part if total is None else merge(total, part)
        assert np.allclose(total.out / total.sum, whole.out / whole.sum, rtol=0, atol=1e-12)


def angles(positions, n=8):
    each = np.outer(positions, 10.0 ** -np.arange(n // 2))[None]
    return np.cos(each), np.sin(each)


def test_pairs_are_the_halves_of_a_head():
    x = np.arange(1.0, 9).reshape(1, 1, 8)
    cos, sin = angles([1.0])
    y = turn(x, cos, sin, 1)[0, 0]
    c, s = cos[0, 0], sin[0, 0]
    assert np.allclose(y[:4], x[0, 0, :4] * c - x[0, 0, 4:] * s)
    assert np.allclose(y[4:], x[0, 0, 4:] * c + x[0, 0, :4] * s)


def test_products_depend_on_the_distance_alone():
    q, k = DRAW.standard_normal((2, 1, 1, 8))
    products = [float(np.sum(turn(q, *angles([i]), 1) * turn(k, *angles([i - 3]), 1)))
                for i in (3, 4, 50)]
    assert np.allclose(products, products[0])
    assert not np.isclose(products[0], np.sum(q * k))


def test_every_head_and_position_is_turned_and_lengths_stay():
    x = DRAW.standard_normal((2, 5, 24))
    y = turn(x, *angles(range(5)), 3)
    for head in range(3):
        columns = slice(8 * head, 8 * head + 8)
        assert np.allclose(y[..., columns], turn(np.ascontiguousarray(x[..., columns]),
                                                 *angles(range(5)), 1))
    assert np.allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1))
    assert np.array_equal(y[:, 0], x[:, 0]), "position 0 is not turned"


def test_values_are_not_turned_and_x_stays():
    x = DRAW.standard_normal((1, 3, 32))
    before = x.copy()
    y = turn(x, *angles([5, 6, 7]), 2)
    assert np.array_equal(x, before), "x is not yours to change: return a copy"
    assert np.array_equal(y[..., 16:], x[..., 16:]), "only the first num_heads heads are turned"
    assert not np.isclose(y[..., :16], x[..., :16]).any()


def block_of_codes():
    """Codes (2 blocks, 4 slots, 3 heads, n = 5), some slots empty, and ratios of the heads."""
    codes = DRAW.integers(-127, 128, (2, 4, 3, 5)).astype(np.int8)
    codes[0, 2:], codes[1, 3] = EMPTY, EMPTY
    return codes, DRAW.uniform(0.2, 1.0, (2, 3))


def test_codes_mean_the_same_values():
    codes, ratio = block_of_codes()
    before = codes.copy()
    found = requantize(codes, ratio)
    assert np.array_equal(codes, before), "codes are not yours to change"
    assert found.dtype == np.int8 and found.shape == codes.shape
    for block, slot, head in np.ndindex(2, 4, 3):
        if codes[block, slot, head, 0] != EMPTY:
            values = codes[block, slot, head].astype(float) * ratio[block, head]
            assert np.abs(found[block, slot, head] - values).max() <= 0.5


def test_slots_without_a_token_stay_empty():
    codes, ratio = block_of_codes()
    assert np.array_equal(requantize(codes, ratio) == EMPTY, codes == EMPTY)


def test_codes_are_rounded_to_the_nearest():
    codes = np.array([7, -7, 100, -127, 0], np.int8).reshape(1, 1, 1, 5)
    found = requantize(codes, np.array([[0.4]]))
    assert found.ravel().tolist() == [3, -3, 40, -51, 0]
