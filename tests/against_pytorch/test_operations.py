"""The value and the gradients of every operation, against torch.autograd in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from minipar import autograd as ag
from minipar.autograd import Tensor
from minipar.autograd.ops.attention import attention_by_autograd

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape)


def positive(*shape):
    return RNG.uniform(0.5, 2.0, shape)


IDS = np.array([[3, 0, 3], [1, 3, 4]])
TARGETS = np.array([[2, -100, 0], [4, 4, -100]])
MASK = RNG.random((2, 3, 4)) < 0.6
KEEP = RNG.random((2, 4, 5, 7)) < 0.7
SELECT = np.array([[2, 0, 1], [2, 2, 0]])


def torch_attention(q, k, v, causal=False):
    """As PyTorch's, but the last query, not the first, is the one that sees all keys."""
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen if causal else None,
                                          enable_gqa=True)


def torch_dropped_attention(q, k, v):
    probabilities = torch.softmax(q @ k.mT / q.shape[-1]**0.5, -1)
    return (probabilities * torch.tensor(KEEP) / 0.7) @ v


def torch_fused(qkv, heads, kv_heads):
    b, t, width = qkv.shape
    d = width // (heads + 2 * kv_heads)
    q, k, v = (x.view(b, t, -1, d).transpose(1, 2)
               for x in qkv.split([heads * d, kv_heads * d, kv_heads * d], dim=2))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return y.transpose(1, 2).reshape(b, t, heads * d)


ANGLES = RNG.standard_normal((1, 5, 2))


def torch_rotary(x, num_heads):
    """The first heads, of width 4, times e^{i·angle} as complex numbers: pairs are the halves."""
    b, t, width = x.shape
    heads = x.view(b, t, -1, 2, 2)[:, :, :num_heads]
    turned = torch.complex(heads[..., 0, :], heads[..., 1, :]) * torch.polar(
        torch.ones(ANGLES.shape, dtype=torch.float64), torch.tensor(ANGLES))[:, :, None]
    pairs = torch.stack([turned.real, turned.imag], dim=3).reshape(b, t, -1)
    return torch.cat([pairs, x[:, :, 4 * num_heads:]], dim=2)


# name: (minipar's function, PyTorch's, the arrays that both differentiate by)
CASES = {
    "add": (lambda a, b: a + b, lambda a, b: a + b, [normal(2, 3, 4), normal(3, 1)]),
    "add a number": (lambda a: 2.0 + a, lambda a: 2.0 + a, [normal(3)]),
    "subtract": (lambda a, b: a - b, lambda a, b: a - b, [normal(1, 4), normal(2, 3, 1)]),
    "subtract from a number": (lambda a: 1.0 - a, lambda a: 1.0 - a, [normal(3)]),
    "multiply": (lambda a, b: a * b, lambda a, b: a * b, [normal(2, 3), normal(3)]),
    "divide": (lambda a, b: a / b, lambda a, b: a / b, [normal(2, 3), positive(2, 1)]),
    "divide a number": (lambda a: 3.0 / a, lambda a: 3.0 / a, [positive(4)]),
    "negate": (lambda a: -a, lambda a: -a, [normal(4)]),
    "square": (lambda a: a**2, lambda a: a**2, [normal(2, 3)]),
    "power": (lambda a: a**-1.5, lambda a: a**-1.5, [positive(2, 3)]),
    "relu": (ag.relu, torch.relu, [normal(4, 5)]),
    "gelu": (ag.gelu, lambda x: F.gelu(x, approximate="tanh"), [3 * normal(4, 5)]),
    "where": (lambda a, b: ag.where(MASK, a, b), lambda a, b: torch.where(torch.tensor(MASK), a, b),
              [normal(3, 4), normal(2, 1, 4)]),
    "dropout": (lambda x: ag.dropout(x, MASK, 0.4), lambda x: x * torch.tensor(MASK) / 0.6,
                [normal(2, 3, 4)]),
    "astype": (lambda x: ag.astype(x, np.float64), lambda x: x.to(torch.float64), [normal(3)]),
    "matmul": (lambda a, b: a @ b, lambda a, b: a @ b, [normal(3, 4), normal(4, 2)]),
    "matmul of batches": (lambda a, b: a @ b, lambda a, b: a @ b,
                          [normal(2, 1, 3, 4), normal(5, 4, 2)]),
    "linear": (ag.linear, lambda x, w, b: F.linear(x, w.T, b),
               [normal(2, 3, 4), normal(4, 5), normal(5)]),
    "linear without bias": (ag.linear, lambda x, w: F.linear(x, w.T), [normal(3, 4), normal(4, 5)]),
    "embedding": (lambda table: ag.embedding(table, IDS),
                  lambda table: F.embedding(torch.tensor(IDS), table), [normal(5, 4)]),
    "sum": (lambda x: x.sum(), lambda x: x.sum(), [normal(2, 3)]),
    "sum of some axes": (lambda x: x.sum(axis=(0, 2)), lambda x: x.sum(dim=(0, 2)),
                         [normal(2, 3, 4)]),
    "sum, axis kept": (lambda x: x.sum(axis=-1, keepdims=True),
                       lambda x: x.sum(dim=-1, keepdim=True), [normal(2, 3)]),
    "mean": (lambda x: x.mean(axis=1), lambda x: x.mean(dim=1), [normal(2, 3, 4)]),
    "max": (lambda x: x.max(axis=1), lambda x: x.amax(dim=1), [normal(2, 3, 4)]),
    "max of equals": (lambda x: x.max(axis=0), lambda x: x.amax(dim=0), [np.ones((3, 2))]),
    "reshape": (lambda x: x.reshape(4, -1), lambda x: x.reshape(4, -1), [normal(2, 3, 4)]),
    "transpose": (lambda x: x.transpose(2, 0, 1), lambda x: x.permute(2, 0, 1), [normal(2, 3, 4)]),
    "broadcast_to": (lambda x: ag.broadcast_to(x, (2, 3, 4)), lambda x: x.expand(2, 3, 4),
                     [normal(3, 1)]),
    "slice": (lambda x: x[1:, None, ::2], lambda x: x[1:, None, ::2], [normal(3, 5)]),
    "rows taken twice": (lambda x: x[SELECT], lambda x: x[torch.tensor(SELECT)], [normal(3, 2)]),
    "elements by mask": (lambda x: x[MASK], lambda x: x[torch.tensor(MASK)], [normal(2, 3, 4)]),
    "concatenate": (lambda a, b: ag.concatenate([a, b], axis=1), lambda a, b: torch.cat([a, b], 1),
                    [normal(2, 3), normal(2, 1)]),
    "split": (lambda x: ag.split(x, 2, axis=1)[1], lambda x: x.chunk(2, dim=1)[1], [normal(3, 4)]),
    "softmax": (ag.softmax, lambda x: torch.softmax(x, -1), [5 * normal(3, 4)]),
    "log_softmax": (ag.log_softmax, lambda x: torch.log_softmax(x, -1), [5 * normal(3, 4)]),
    "layer_norm": (ag.layer_norm, lambda x, w, b: F.layer_norm(x, (6,), w, b),
                   [normal(2, 3, 6), normal(6), normal(6)]),
    "rms_norm": (ag.rms_norm, lambda x, w: F.rms_norm(x, (6,), w, eps=1e-5),
                 [normal(2, 3, 6), normal(6)]),
    "swiglu": (ag.swiglu, lambda gate, up: F.silu(gate) * up, [3 * normal(4, 5), normal(4, 5)]),
    "rotary": (lambda x: ag.rotary(x, np.cos(ANGLES), np.sin(ANGLES), 2),
               lambda x: torch_rotary(x, 2), [normal(2, 5, 12)]),
    "cross_entropy": (lambda x: ag.cross_entropy(x, TARGETS),
                      lambda x: F.cross_entropy(x.flatten(0, 1), torch.tensor(TARGETS.ravel()),
                                                ignore_index=-100), [normal(2, 3, 5)]),
    "cross_entropy × 1000": (lambda x: ag.cross_entropy(x * 1000.0, TARGETS),
                             lambda x: F.cross_entropy(1000 * x.flatten(0, 1),
                                                       torch.tensor(TARGETS.ravel()),
                                                       ignore_index=-100), [normal(2, 3, 5)]),
    "attention": (attention_by_autograd, torch_attention,
                  [normal(2, 4, 5, 3), normal(2, 4, 7, 3), normal(2, 4, 7, 3)]),
    "attention, causal, two blocks": (
        lambda q, k, v: attention_by_autograd(q, k, v, causal=True),
        lambda q, k, v: torch_attention(q, k, v, causal=True),
        [normal(2, 2, 70, 3), normal(2, 2, 75, 3), normal(2, 2, 75, 3)]),
    "attention, grouped": (
        lambda q, k, v: attention_by_autograd(q, k, v, causal=True),
        lambda q, k, v: torch_attention(q, k, v, causal=True),
        [normal(2, 6, 130, 2), normal(2, 3, 130, 2), normal(2, 3, 130, 2)]),
    "attention with dropout": (
        lambda q, k, v: attention_by_autograd(q, k, v, keep=KEEP, rate=0.3),
        torch_dropped_attention, [normal(2, 4, 5, 3), normal(2, 4, 7, 3), normal(2, 4, 7, 3)]),
    "fused_attention": (lambda x: ag.fused_attention(x, num_heads=2),
                        lambda x: torch_fused(x, 2, 2), [normal(2, 66, 18)]),
    "fused_attention, grouped": (lambda x: ag.fused_attention(x, num_heads=4, num_kv_heads=2),
                                 lambda x: torch_fused(x, 4, 2), [normal(2, 5, 24)]),
}
HELPERS = {"IGNORE_INDEX", "Function", "GradientSlot", "Meter", "Tensor", "backward",
           "count_targets", "current_meter", "gradcheck", "no_grad", "reachable_slots",
           "saved_tensors_hooks"}
SPELLED = {"getitem": "slice"}
# The others are element by element, and PyTorch calls them the same.
OTHERS = [name for name in ag.__all__
          if name not in HELPERS and SPELLED.get(name, name) not in CASES]
UNKNOWN = [name for name in OTHERS if not hasattr(torch, name)]
assert not UNKNOWN, f"PyTorch has no function of the name {UNKNOWN}: add a case to CASES"
CASES |= {name: (getattr(ag, name), getattr(torch, name), [positive(2, 3)]) for name in OTHERS}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients(name):
    ours, theirs, arrays = CASES[name]
    inputs = [Tensor(array.copy(), requires_grad=True) for array in arrays]
    leaves = [torch.tensor(array, requires_grad=True) for array in arrays]
    y, expected = ours(*inputs), theirs(*leaves)
    direction = np.random.default_rng(1).standard_normal(expected.shape)
    y.backward(direction)
    expected.backward(torch.tensor(direction))
    np.testing.assert_allclose(y.data, expected.detach().numpy(), rtol=1e-10, atol=1e-12)
    for x, leaf in zip(inputs, leaves):
        scale = max(1.0, float(leaf.grad.abs().max()))
        np.testing.assert_allclose(x.grad, leaf.grad.numpy(), rtol=1e-10, atol=1e-12 * scale)
