"""saved_tensors_hooks, no_grad, and what is saved at all."""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Function, Tensor, no_grad, saved_tensors_hooks
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig


def t(*shape, seed=0, requires_grad=True):
    return Tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad)


def logging_hooks(log, name=""):
    def pack(array):
        log.append((f"pack{name}", array.shape))
        return array

    def unpack(array):
        log.append((f"unpack{name}", array.shape))
        return array
    return saved_tensors_hooks(pack, unpack)


def shapes_saved(function, *inputs):
    log = []
    with logging_hooks(log):
        function(*inputs)
    return [shape for _, shape in log]


def test_pack_is_called_once_per_saved_array_and_unpack_once_per_use():
    log, x, w = [], t(4, 5), t(5, 6)
    with logging_hooks(log):
        y = ag.linear(x, w)
    assert log == [("pack", (4, 5)), ("pack", (5, 6))]
    y.sum().backward()
    assert sorted(log[2:]) == [("unpack", (4, 5)), ("unpack", (5, 6))]


def test_unpack_is_called_only_for_the_gradient_that_is_computed():
    log, x, w = [], t(4, 5), t(5, 6)
    w.slot.weight_only = True
    with logging_hooks(log):
        y = ag.linear(x, w)
    del log[:]
    rest = y.backward(np.ones((4, 6)), defer_weights=True)
    assert log == [("unpack", (5, 6))]
    rest()
    assert log == [("unpack", (5, 6)), ("unpack", (4, 5))]


def test_every_array_of_a_gpt_is_packed_once_and_unpacked_once():
    model, log = GPT(GPTConfig(7, 4, 2, 2, 8, dropout=0.0)).initialize(0, np.float64), []
    ids = np.array([[1, 2, 3]])
    with logging_hooks(log):
        loss = model.loss(ids, ids)
    packed = sorted(shape for _, shape in log)
    del log[:]
    loss.backward()
    unpacked = sorted(shape for _, shape in log)
    gains = [(8,)] * 5                      # layer norm looks at u twice: for dx and for dgain
    units = [(1, 3, 8)] * 5
    assert unpacked == sorted(packed + units) and gains[0] in packed


def test_the_derivative_sees_what_unpack_returns():
    x = t(3)
    with saved_tensors_hooks(lambda a: a.astype(np.float16), lambda a: a.astype(np.float64)):
        y = ag.exp(x)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, y.data.astype(np.float16))


def test_hooks_hold_for_the_forward_not_for_the_backward():
    log, x = [], t(3)
    y = ag.exp(x)
    with logging_hooks(log):
        y.sum().backward()
    assert log == []


def test_nested_hooks_compose_the_innermost_packs_first():
    log, x = [], t(3)
    with logging_hooks(log, " outer"), logging_hooks(log, " inner"):
        y = ag.exp(x)
    y.sum().backward()
    assert [what for what, _ in log] == ["pack inner", "pack outer", "unpack outer",
                                         "unpack inner"]


def test_a_ledger_outside_counts_what_a_rounding_hook_inside_keeps():
    def rounding():
        return saved_tensors_hooks(lambda a: a.astype(np.float16), lambda a: a.astype(float))
    x, ledger = t(100), Ledger()
    with ledger.recording(), rounding():
        y = ag.exp(x)
    assert ledger.live == 200
    y.sum().backward()
    assert ledger.live == 0
    np.testing.assert_allclose(x.grad, np.exp(x.data), rtol=1e-3)
    assert not np.array_equal(x.grad, np.exp(x.data))


def test_hooks_end_with_their_context_also_after_an_error():
    log = []
    with pytest.raises(ZeroDivisionError), logging_hooks(log):
        raise ZeroDivisionError
    ag.exp(t(3))
    assert log == []


def test_no_grad_records_and_saves_nothing():
    log = []
    with logging_hooks(log), no_grad():
        y = ag.gelu(ag.linear(t(4, 5), t(5, 6))) * t(6)
    assert log == [] and y.grad_target is None and not y.requires_grad
    with pytest.raises(ZeroDivisionError), no_grad():
        raise ZeroDivisionError
    assert ag.exp(t(3)).requires_grad


def test_only_what_a_wanted_gradient_needs_is_saved():
    x, w, b = ag.exp(t(4, 5)), t(5, 6), t(6)
    fixed = {a: Tensor(a.data) for a in (x, w, b)}
    assert shapes_saved(ag.linear, fixed[x], w, b) == [(4, 5)]
    assert shapes_saved(ag.linear, x, fixed[w], b) == [(5, 6)]
    assert shapes_saved(ag.linear, fixed[x], fixed[w], b) == []
    assert shapes_saved(ag.matmul, x, fixed[w]) == [(5, 6)]
    assert shapes_saved(ag.matmul, fixed[x], w) == [(4, 5)]
    assert shapes_saved(lambda: x * 2.0) == []          # a number is no array, hooks never see it
    assert shapes_saved(lambda: x * fixed[x]) == [(4, 5)]
    assert shapes_saved(lambda: x * x) == [(4, 5)] * 2
    assert shapes_saved(lambda: x + x) == shapes_saved(lambda: x - b[:5]) == []
    for op in (ag.exp, ag.log, ag.tanh, ag.gelu, ag.softmax, ag.relu):
        assert shapes_saved(op, fixed[x]) == []
        assert shapes_saved(op, x) == [(4, 5)]
    assert shapes_saved(ag.cross_entropy, x, np.zeros(4, int)) == [(4, 5)]
    assert shapes_saved(ag.cross_entropy, fixed[x], np.zeros(4, int)) == []
    assert shapes_saved(lambda: x.T.reshape(2, 10)[1:]) == []


def test_attention_saves_its_inputs_once_and_the_probabilities():
    qkv = t(2, 3, 12)
    assert shapes_saved(lambda: ag.fused_attention(qkv, 2)) == [(2, 3, 12), (2, 2, 1, 3, 3)]


def test_a_pullback_that_does_not_need_the_context_lets_it_go():
    """Function.backward unpacks lazily: an entry that is not asked for is never unpacked."""
    class Both(Function):
        def forward(ctx, a, b):
            ctx.save(a, b)
            return a * b

        def backward(ctx, g):
            a, b = ctx.saved
            return [lambda: g * b(), lambda: g * a()]
    log, a = [], t(3)
    with logging_hooks(log):
        y = Both.apply(a, np.ones(3))
    del log[:]
    y.sum().backward()
    assert log == [("unpack", (3,))] and a.grad is not None
