"""The formulas of plain operations, and what computes the same in one operation: also gradients."""

import math

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Tensor
from minipar.autograd.ops.attention import attention_by_autograd
from minipar.autograd.ops.cross_entropy import cross_entropy_by_autograd
from minipar.autograd.ops.normalization import layer_norm_by_autograd, rms_norm_by_autograd
from minipar.backend import arrays

rng = np.random.default_rng(0)


def t(*shape):
    return Tensor(rng.standard_normal(shape), requires_grad=True)


def close(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def same(function, formula, *inputs):
    """Both have the same values and gradients."""
    upstream = rng.standard_normal(formula(*inputs).shape)
    found = []
    for each in (function, formula):
        y = each(*inputs)
        y.backward(upstream)
        found.append([y.data, *[x.grad for x in inputs]])
        for x in inputs:
            x.grad = None
    for one, other in zip(*found):
        close(one, other)


def plain_attention(q, k, v, causal, keep, rate):
    """One query at a time, over lists."""
    out = np.zeros_like(q)
    batch, heads, queries, d = q.shape
    for b, h, i in np.ndindex(batch, heads, queries):
        shared = h // (heads // k.shape[1])
        last = i + k.shape[2] - queries if causal else k.shape[2] - 1
        scores = [q[b, h, i] @ k[b, shared, j] / math.sqrt(d) for j in range(last + 1)]
        weights = np.exp(scores) / np.sum(np.exp(scores))
        for j, weight in enumerate(weights):
            kept = 1 if keep is None else keep[b, h, i, j] / (1 - rate)
            out[b, h, i] += weight * kept * v[b, shared, j]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("heads, kv", [(2, 2), (4, 2), (3, 1), (1, 1)])
@pytest.mark.parametrize("queries, keys", [(5, 5), (2, 5), (1, 1)])
def test_attention(causal, rate, heads, kv, queries, keys):
    q, k, v = t(2, heads, queries, 3), t(2, kv, keys, 3), t(2, kv, keys, 3)
    keep = rng.random((2, heads, queries, keys)) < 0.6 if rate else None
    y = attention_by_autograd(q, k, v, causal, keep, rate)
    close(y.data, plain_attention(q.data, k.data, v.data, causal, keep, rate))


def attention_of_one_layer(qkv, heads, kv, causal, keep, rate):
    """qkv (b, t, (heads + 2 kv) d) → (b, t, heads d)."""
    b, time, width = qkv.shape
    x = qkv.reshape(b, time, heads + 2 * kv, width // (heads + 2 * kv)).transpose(0, 2, 1, 3)
    q, k, v = x[:, :heads], x[:, heads:heads + kv], x[:, heads + kv:]
    y = attention_by_autograd(q, k, v, causal, keep, rate)
    return y.transpose(0, 2, 1, 3).reshape(b, time, -1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("heads, kv", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("block_bytes", [64, 1 << 18])
@pytest.mark.parametrize("time", [1, 5, 64, 130])           # of up to three blocks of queries
def test_fused_attention(causal, rate, heads, kv, block_bytes, time, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", block_bytes)
    keep = rng.random((2, heads, time, time)) < 0.6 if rate else None
    same(lambda qkv: ag.fused_attention(qkv, heads, kv, causal, keep, rate),
         lambda qkv: attention_of_one_layer(qkv, heads, kv, causal, keep, rate),
         t(2, time, (heads + 2 * kv) * 3))


@pytest.mark.parametrize("shape", [(2, 3, 7), (4, 1), (5,)])
def test_norms(shape):
    x, gain, bias = t(*shape), t(shape[-1]), t(shape[-1])
    same(ag.layer_norm, layer_norm_by_autograd, x, gain, bias)
    same(ag.rms_norm, rms_norm_by_autograd, x, gain)


@pytest.mark.parametrize("ignored", [-100, 3])
@pytest.mark.parametrize("targets", [[[0, -100, 3], [-100, 2, -100]], [[1, 2, 0], [2, 0, 0]],
                                     [[-100] * 3] * 2])
def test_cross_entropy(targets, ignored):
    targets = np.where(np.array(targets) == -100, ignored, targets)
    same(lambda x: ag.cross_entropy(x, targets, 12.0, ignored),
         lambda x: cross_entropy_by_autograd(x, targets, 12.0, ignored), t(2, 3, 4))
