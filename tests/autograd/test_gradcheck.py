"""Every operation's derivative against finite differences, in float64.

    python tests/autograd/test_gradcheck.py     prints the worst error of each
"""

from functools import partial

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Function, Tensor, gradcheck
from minipar.autograd.ops import attention
from minipar.backend import arrays

NOT_OPERATIONS = {"IGNORE_INDEX", "Function", "GradientSlot", "Meter", "Tensor", "backward",
                  "count_targets", "current_meter", "gradcheck", "no_grad", "saved_tensors_hooks",
                  "reachable_slots"}


def cases():
    """(name in minipar.autograd or on Tensor, function, inputs, options of gradcheck)."""
    rng = np.random.default_rng(0)
    found = []

    def t(*shape):
        return Tensor(np.asarray(rng.standard_normal(shape)), requires_grad=True)

    def away_from_zero(*shape):
        sign = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        return Tensor(np.asarray(rng.uniform(0.5, 2, shape) * sign), requires_grad=True)

    def positive(*shape):
        return Tensor(np.abs(away_from_zero(*shape).data), requires_grad=True)

    def mask(*shape):
        return rng.random(shape) < 0.6

    def add(op, function, *inputs, **options):
        found.append((op, function, inputs, options))

    # arithmetic: the same shapes; every kind of broadcasting; 0-d; no rows; scalars, both ways
    pairs = [((3, 5), (3, 5)), ((2, 3, 5), (5,)), ((3, 1), (1, 4)), ((1,), (2, 1, 3)), ((), (3,)),
             ((2, 1), ()), ((), ()), ((0, 3), (3,)), ((0, 3), (1, 1)), ((1, 1, 1), (1,))]
    for a, b in pairs:
        add("__add__", lambda a, b: a + b, t(*a), t(*b))
        add("__sub__", lambda a, b: a - b, t(*a), t(*b))
        add("__mul__", lambda a, b: a * b, t(*a), t(*b))
        add("__truediv__", lambda a, b: a / b, t(*a), away_from_zero(*b))
    x, w = t(3, 2), away_from_zero(3, 2)
    for other in (2.5, -3, rng.standard_normal((4, 3, 2))):     # numbers and arrays: constants
        add("__radd__", lambda x, c=other: c + x, x)
        add("__rsub__", lambda x, c=other: c - x, x)
        add("__rmul__", lambda x, c=other: c * x, x)
        add("__rtruediv__", lambda x, c=other: c / x, w)
        add("__truediv__", lambda x, c=other: x / c, x)
    add("__mul__", lambda x: x * x, x)                  # both inputs are one
    add("__truediv__", lambda x: x / x, w)
    add("__neg__", lambda x: -x, x)
    for p in (2, 3, -1, -2.0, 1, 0):
        add("__pow__", lambda x, p=p: x**p, away_from_zero(2, 3))
    add("__pow__", lambda x: x**0.5, positive(3, 1))
    add("__pow__", lambda x: x**2, t())

    # element by element
    for shape in ((3, 5), (7,), (1, 1), (0, 4), (2, 1, 3)):
        add("swiglu", ag.swiglu, t(*shape), t(*shape))
        for op in ("exp", "tanh", "relu", "gelu"):
            add(op, getattr(ag, op), t(*shape))
        add("log", ag.log, positive(*shape))
        add("sqrt", ag.sqrt, positive(*shape))
        add("dropout", partial(ag.dropout, keep=mask(*shape), rate=0.4), t(*shape))
    add("gelu", ag.gelu, Tensor(np.array([-30.0, -8, -1e-3, 0, 1e-3, 8, 30]), requires_grad=True))
    add("dropout", partial(ag.dropout, keep=mask(3, 1), rate=0.25), t(2, 3, 4))
    for a, b in pairs[:4]:
        add("where", partial(ag.where, mask(*np.broadcast_shapes(a, b))), t(*a), t(*b))
    m = mask(2, 3)
    add("where", lambda a: ag.where(m, a, a * 2.0), t(2, 3))
    add("where", lambda a: ag.where(m, a, 0.0), t(3))
    to32 = {"epsilon": 1e-2, "tolerance": 1e-4}         # of float32, which rounds at 1e-7
    for op in (ag.astype, Tensor.astype):
        add("astype", lambda x, op=op: op(op(x, np.float32), np.float64), t(3, 2), **to32)

    # sums and maxima: one axis, several, all; kept or not
    for op in ("sum", "mean", "max"):
        for function in (getattr(ag, op), getattr(Tensor, op)):
            for shape, axis in [((2, 3, 4), None), ((2, 3, 4), 1), ((2, 3, 4), (0, -1)), ((5,), 0),
                                ((1, 3), 0), ((2, 3, 4), (0, 1, 2))]:
                for keepdims in (False, True):
                    add(op, lambda x, f=function, a=axis, k=keepdims: f(x, a, k), t(*shape))
            add(op, lambda x, f=function: f(x, 1), t(0, 3))
    add("sum", ag.sum, t(0, 3))
    ties = np.array([[1.0, 2, 2], [3, 0, 3]])           # two equal: half each, as differences say
    add("max", lambda x: ag.max(x, axis=1), Tensor(ties, requires_grad=True))

    # rearranging and picking
    for reshape in (ag.reshape, Tensor.reshape):
        add("reshape", lambda x, f=reshape: f(x, 3, -1), t(2, 3, 2))
        add("reshape", lambda x, f=reshape: f(x, 0, 2), t(0, 3, 2))
        add("reshape", lambda x, f=reshape: f(f(x), 1, 1), t(1))
    for transpose in (ag.transpose, Tensor.transpose):
        add("transpose", lambda x, f=transpose: f(x, 2, 0, 1), t(2, 3, 4))
        add("transpose", lambda x, f=transpose: f(x, -1, 0, -2), t(2, 1, 3))
        add("transpose", lambda x, f=transpose: f(x), t(3))
    add("T", lambda x: x.T, t(2, 3, 4))
    for shape, to in [((3, 1), (2, 3, 4)), ((1,), (5,)), ((), (2, 2)), ((2, 3), (2, 3))]:
        add("broadcast_to", lambda x, to=to: ag.broadcast_to(x, to), t(*shape))
    repeated, grid = np.array([0, 2, 2, 0]), np.array([[0, 1], [1, -1]])
    for index in (1, -1, slice(1, None, 2), (slice(None), 2), (..., None, 0), (0, 1, 2), repeated,
                  grid, (repeated, slice(None), grid[:1, :1]), (slice(0, 1), repeated),
                  [1, 1], mask(3, 4, 5), slice(2, 2), np.int64(2), (None, ..., slice(None, -1)),
                  mask(3), np.array([], dtype=int), (slice(None, None, -1), 0)):
        add("__getitem__", lambda x, i=index: x[i], t(3, 4, 5))
    add("getitem", lambda x: ag.getitem(x, (repeated, slice(1))), t(3, 2))
    for axis, sizes in ((0, (1, 3, 2)), (1, (2, 0, 1)), (-1, (1,))):
        shapes = [(2, n) if axis else (n, 2) for n in sizes]
        add("concatenate", lambda *p, a=axis: ag.concatenate(p, a), *[t(*s) for s in shapes])
    add("concatenate", lambda x: ag.concatenate([x, x * 2.0, x]), t(2, 2))
    for split in (ag.split, Tensor.split):
        add("split", lambda x, f=split: f(x, 3, 1)[2] * f(x, 3, -1)[0], t(2, 6))
        add("split", lambda x, f=split: f(x, 2)[1], t(4))
        add("split", lambda x, f=split: f(x, 1)[0], t(0, 2))

    # products
    for a, b in [((3, 4), (4, 2)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 1)),
                 ((1, 1), (1, 1)), ((0, 3), (3, 2)), ((3, 4), (2, 4, 1)), ((2, 0), (0, 3))]:
        add("matmul", ag.matmul, t(*a), t(*b))
        add("__matmul__", lambda a, b: a @ b, t(*a), t(*b))
    add("__rmatmul__", lambda x: m.astype(float) @ x, t(3, 2))
    for leading in ((4,), (2, 3), (), (0,), (2, 0), (1, 1)):
        add("linear", ag.linear, t(*leading, 3), t(3, 5), t(5))
        add("linear", ag.linear, t(*leading, 3), t(3, 1))
    for ids in ([0, 3, 3, 1], [[1], [1]], [], 2, [[[0, 0]]]):
        ids = np.array(ids, dtype=np.int64)
        add("embedding", lambda table, ids=ids: ag.embedding(table, ids), t(4, 3))
    # rows brought to a scale, and the loss
    for shape in ((3, 5), (4,), (2, 1), (0, 3), (2, 2, 3)):
        for scale in (1.0, 30.0):
            add("softmax", lambda x, s=scale: ag.softmax(x * s), t(*shape))
            add("log_softmax", lambda x, s=scale: ag.log_softmax(x * s), t(*shape))
        add("layer_norm", ag.layer_norm, t(*shape), t(shape[-1]), t(shape[-1]))
        add("rms_norm", ag.rms_norm, t(*shape), t(shape[-1]))
        targets = rng.integers(0, shape[-1], shape[:-1])
        add("cross_entropy", lambda x, y=targets: ag.cross_entropy(x, y), t(*shape))
    some = np.array([2, -100, 0, -100])                 # -100: rows that do not count; or none does
    for targets in (some, np.full(4, -100), np.where(some < 0, 7, some), some.astype(np.int32)):
        for divisor in (None, 10.0):
            ignore = 7 if 7 in targets else -100
            add("cross_entropy", lambda x, y=targets, n=divisor, i=ignore: (
                ag.cross_entropy(x, y, n, ignore_index=i)), t(4, 3))
    add("cross_entropy", lambda x: ag.cross_entropy(x, some),
        Tensor(1000 * rng.standard_normal((4, 3)), requires_grad=True), epsilon=1e-3)

    for batch, time, heads, turned, width in [(2, 3, 3, 2, 4), (2, 0, 2, 2, 2), (0, 2, 3, 0, 6)]:
        angle = rng.standard_normal((batch, time, width // 2))
        add("rotary", lambda x, a=angle, n=turned: ag.rotary(x, np.cos(a), np.sin(a), n),
            t(batch, time, heads * width))
    # attention: (heads, kv heads, time, d)
    for heads, kv, time, d in [(2, 2, 3, 2), (4, 2, 3, 2), (4, 1, 1, 3), (1, 1, 4, 2)]:
        for causal in (False, True):
            for rate in (0.0, 0.4):
                for batch in (2, 0):
                    keep = mask(batch, heads, time, time) if rate else None
                    options = {"causal": causal, "keep": keep, "rate": rate}
                    add("fused_attention", lambda x, h=heads, kv=kv, o=options: (
                        ag.fused_attention(x, h, kv, **o)), t(batch, time, (heads + 2 * kv) * d))
    return found


CASES = cases()


def worst_errors() -> dict[str, float]:
    """The worst error over all cases of each operation, for a table of all of them."""
    worst = dict.fromkeys(sorted({op for op, *_ in CASES}), 0.0)
    for op, function, inputs, options in CASES:
        worst[op] = max(worst[op], gradcheck(function, *inputs, **options))
    return worst


@pytest.mark.parametrize("number", range(len(CASES)),
                         ids=[f"{op}-{i}" for i, (op, *_) in enumerate(CASES)])
def test_derivative(number):
    _, function, inputs, options = CASES[number]
    error = gradcheck(function, *inputs, **options)
    assert error <= options.get("tolerance", 1e-7)
    for x in inputs:
        assert x.grad.shape == x.shape and x.grad.dtype == np.float64


@pytest.mark.parametrize("op", ["gelu", "fused_attention"])
def test_derivatives_do_not_depend_on_how_work_is_cut_into_blocks(op, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 64)
    monkeypatch.setattr(attention, "QUERIES", 2)
    checked = [gradcheck(f, *inputs, **options) for name, f, inputs, options in CASES if name == op]
    assert checked


def test_every_public_operation_has_a_case():
    checked = {op for op, *_ in CASES} | {"getitem"}
    assert set(ag.__all__) - NOT_OPERATIONS - checked == set()


def test_every_operator_and_method_has_a_case():
    own = {name for name, value in vars(Tensor).items() if getattr(
        getattr(value, "fget", value), "__module__", Tensor.__module__) != Tensor.__module__}
    assert {"__add__", "T", "sum", "__rmatmul__"} <= own
    facts = {"shape", "ndim", "size", "dtype"}      # by the operator module: attrgetter
    assert own - facts - {op for op, *_ in CASES} == {"backward"}


def test_gradcheck_catches_a_wrong_derivative_and_names_the_element():
    class Wrong(Function):
        def forward(ctx, x):
            return x * 2.0

        def backward(ctx, g):
            return [g * np.array([2.0, 2.001, 2.0])]
    with pytest.raises(AssertionError, match=r"input 0 at \(1,\) is"):
        gradcheck(Wrong.apply, Tensor(np.ones(3), requires_grad=True))


def test_gradcheck_catches_a_gradient_of_another_shape():
    class Wide(Function):
        def forward(ctx, x):
            return np.sum(x)

        def backward(ctx, g):
            return [np.ones((3, 3))]
    with pytest.raises(AssertionError, match=r"shape \(3, 3\), the input \(3,\)"):
        gradcheck(Wide.apply, Tensor(np.ones(3), requires_grad=True))


def test_gradcheck_refuses_float32():
    with pytest.raises(TypeError, match="needs float64"):
        gradcheck(ag.exp, Tensor(np.ones(3, np.float32), requires_grad=True))


if __name__ == "__main__":
    for name, error in worst_errors().items():
        print(f"{name:30} {error:.1e}")
