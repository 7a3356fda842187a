"""Errors about shapes and dtypes name the operation, its inputs, and those that it expects."""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Tensor
from tests.support.operations import operations


def t(*shape, dtype=np.float64):
    return Tensor(np.ones(shape, dtype), requires_grad=True)


def ids(*shape, value=0):
    return np.full(shape, value)


ON = np.ones((2, 3), bool)
# (what the message must name first, the call)
MISUSES = [
    ("Add", lambda: t(2, 3) + t(2, 4)), ("Add", lambda: t(3) + np.ones((2, 2))),
    ("Subtract", lambda: t(3) - t(2)), ("Multiply", lambda: t(3) * t(2)),
    ("Divide", lambda: t(3) / t(2)), ("Divide", lambda: np.ones(2) / t(3)),
    ("Where", lambda: ag.where(ON, t(2, 3), t(4))),
    ("Where", lambda: ag.where(ON.astype(int), t(2, 3), t(2, 3))),
    ("Where", lambda: ag.where(True, t(2, 3), t(2, 3))),
    ("Dropout", lambda: ag.dropout(t(2, 4), ON, 0.5)),
    ("Dropout", lambda: ag.dropout(t(3), ON, 0.5)),
    ("MatMul", lambda: t(2, 3) @ t(2, 3)), ("MatMul", lambda: t(3) @ t(3, 2)),
    ("MatMul", lambda: t(2, 3) @ 2.0), ("MatMul", lambda: t(2, 2, 3) @ t(3, 3, 1)),
    ("Linear", lambda: ag.linear(t(2, 3), t(4, 3))),
    ("Linear", lambda: ag.linear(t(2, 3), t(3))),
    ("Linear", lambda: ag.linear(t(2, 3), t(3, 4), t(1))),
    ("Linear", lambda: ag.linear(t(2, 3), t(3, 4), t(2, 1))),
    ("Embedding", lambda: ag.embedding(t(4, 2), np.ones(3))),
    ("Embedding", lambda: ag.embedding(t(4, 2), ids(3, value=4))),
    ("Embedding", lambda: ag.embedding(t(4, 2), ids(3, value=-1))),
    ("Embedding", lambda: ag.embedding(t(4), ids(3))),
    ("Embedding", lambda: ag.embedding(t(4, 2, 2), ids(3))),
    ("LayerNorm", lambda: ag.layer_norm(t(2, 3), t(2), t(3))),
    ("LayerNorm", lambda: ag.layer_norm(t(2, 3), t(3), t(1))),
    ("RMSNorm", lambda: ag.rms_norm(t(2, 3), t(2))), ("SwiGLU", lambda: ag.swiglu(t(3), t(2))),
    ("Rotary", lambda: ag.rotary(t(1, 2, 4), np.ones((1, 3, 1)), np.ones((1, 3, 1)), 2)),
    ("Rotary", lambda: ag.rotary(t(1, 2, 4), np.ones((1, 2, 1)), np.ones((1, 2, 1)), 3)),
    ("CrossEntropy", lambda: ag.cross_entropy(t(2, 3), ids(3))),
    ("CrossEntropy", lambda: ag.cross_entropy(t(2, 3), np.zeros(2))),
    ("CrossEntropy", lambda: ag.cross_entropy(t(2, 3), ids(2, value=3))),
    ("CrossEntropy", lambda: ag.cross_entropy(t(2, 3), ids(2, value=-2))),
    ("FusedAttention", lambda: ag.fused_attention(t(2, 3, 7), 2)),
    ("FusedAttention", lambda: ag.fused_attention(t(3, 12), 2)),
    ("FusedAttention", lambda: ag.fused_attention(t(2, 3, 12), 3, 2)),
    ("FusedAttention", lambda: ag.fused_attention(t(2, 3, 12), 2, keep=ON)),
    ("Reshape", lambda: t(2, 3).reshape(4)),
    ("Reshape", lambda: t(2, 3).reshape(-1, 4)),
    ("Transpose", lambda: t(2, 3).transpose(0, 0)),
    ("Transpose", lambda: t(2, 3).transpose(3, 0)),
    ("Transpose", lambda: t(2, 3).transpose(0)),
    ("BroadcastTo", lambda: ag.broadcast_to(t(2, 3), (2, 4))),
    ("BroadcastTo", lambda: ag.broadcast_to(t(2, 3), (3,))),
    ("GetItem", lambda: t(2, 3)[2]), ("GetItem", lambda: t(2, 3)[0, 0, 0]),
    ("GetItem", lambda: t(2, 3)[[5]]), ("GetItem", lambda: t(2, 3)[np.ones(3, bool)]),
    ("Concatenate", lambda: ag.concatenate([t(2, 3), t(2, 4)])),
    ("Concatenate", lambda: ag.concatenate([t(2, 3), t(2)])),
    ("Concatenate", lambda: ag.concatenate([t(2, 3)], axis=2)),
    ("Concatenate", lambda: ag.concatenate([])),
]
RULELESS = [
    ("Sum", lambda: t(2, 3).sum(2)), ("Max", lambda: t(2, 3).max((0, 0))),
    ("Max", lambda: t(0, 3).max(0)), ("Gelu", lambda: ag.gelu(t())),
    ("Softmax", lambda: ag.softmax(t())), ("split", lambda: ag.split(t(2, 3), 2, axis=1)),
    ("split", lambda: ag.split(t(2, 3), 2, axis=5)), ("split", lambda: ag.split(t(2, 3), 0)),
    ("mean", lambda: t(2, 3).mean(2)), ("mean", lambda: t(0, 3).mean(0)),
]


EXPECTS = {op.__name__: op.expects for op in operations()}


@pytest.mark.parametrize("name, call", MISUSES, ids=lambda x: x if isinstance(x, str) else "")
def test_a_misuse_names_the_operation_the_shapes_and_the_rule(name, call):
    with pytest.raises((ValueError, TypeError, IndexError)) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert message.endswith(f"; expected {EXPECTS[name]}") and EXPECTS[name]
    assert "; got " in message and "\n" not in message
    got = message.split("; got ")[1]
    if call is not MISUSES[-1][1]:
        assert "(" in got and "float64" in got


@pytest.mark.parametrize("name, call", RULELESS, ids=lambda x: x if isinstance(x, str) else "")
def test_operations_without_a_rule_name_themselves_too(name, call):
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert str(caught.value).startswith(name) and "\n" not in str(caught.value)


def test_every_operation_that_says_what_it_expects_is_misused_above():
    names = {op.__name__ for op in operations() if op.expects}
    assert len(names) > 10
    assert names - {name for name, _ in MISUSES} == set()


MIXED = (r"^\w+: (float(32|64) and float(32|64) do not mix: convert one|"
         "the inputs are float32, but the result is float64: convert the float64 operand)")
BINARY = [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b,
          lambda a, b: a @ b, ag.linear, lambda a, b: ag.where(np.ones((2, 2), bool), a, b),
          lambda a, b: ag.concatenate([a, b]), lambda a, b: a + b.data, lambda a, b: a.data * b,
          lambda a, b: ag.layer_norm(a, b[0], b[1]), lambda a, b: a * np.float64(2),
          lambda a, b: a * np.arange(2)]


@pytest.mark.parametrize("use", BINARY)
def test_precisions_do_not_mix(use):
    with pytest.raises(TypeError, match=MIXED):
        use(t(2, 2, dtype=np.float32), t(2, 2))


def test_an_error_keeps_its_cause():
    with pytest.raises(ValueError) as caught:
        t(2) + t(3)
    assert "could not be broadcast" in str(caught.value.__cause__)
