"""The ledger counts every saved storage once, from its first save to its last release."""

import gc

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Tensor, no_grad
from minipar.backend.shape_array import ShapeArray
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, MLP, Activation, GPTConfig, Linear, Sequential


@pytest.fixture(autouse=True)
def without_garbage_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def t(*shape, dtype=np.float64):
    return Tensor(np.ones(shape, dtype), requires_grad=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_linear_and_gelu_save_the_input_and_the_slope(dtype):
    """Linear keeps x (b, i); GELU keeps its slope (b, o), not its input, which is freed."""
    b, i, o = 5, 3, 7
    model = Sequential(Linear(i, o), Activation("gelu")).initialize(0, dtype)
    ledger = Ledger(model.parameters())
    with ledger.recording():
        y = model(t(b, i, dtype=dtype))
    assert ledger.live == ledger.peak == b * (i + o) * np.dtype(dtype).itemsize
    y.sum().backward()
    assert ledger.live == 0 and ledger.peak == b * (i + o) * np.dtype(dtype).itemsize


def test_two_views_of_one_storage_count_once():
    x, ledger = ag.exp(t(4, 6)), Ledger()
    with ledger.recording():
        y = ag.linear(x[:2], t(6, 1)) + ag.linear(x.T.reshape(6, 4).T[2:], t(6, 1))
    weights = 2 * 6 * 8
    assert ledger.live == x.data.nbytes + weights
    y.sum().backward()
    assert ledger.live == 0


def test_parameters_do_not_count_nor_do_views_of_them():
    layer = Linear(4, 4).initialize(0, np.float64)
    ledger, x = Ledger(layer.parameters()), t(2, 4)
    with ledger.recording():
        y = ag.linear(ag.linear(x, layer.weight), layer.weight.T)
    assert ledger.live == 2 * (2 * 4 * 8)           # x and the layer between
    y.sum().backward()
    assert ledger.live == 0


def test_live_goes_down_as_backward_proceeds():
    seen, x, ledger = [], t(10), Ledger()

    class Probe(ag.Function):
        def forward(ctx, x):
            return x

        def backward(ctx, g):
            seen.append(ledger.live)
            return [g]
    with ledger.recording():
        for _ in range(3):
            x = ag.exp(Probe.apply(x))
    assert ledger.live == 3 * 80
    x.sum().backward()
    assert seen == [160, 80, 0] and (ledger.live, ledger.peak) == (0, 240)


def test_the_peak_is_over_all_that_was_alive_together():
    ledger = Ledger()
    with ledger.recording():
        for size in (100, 300, 200):
            ag.exp(t(size)).sum().backward()
            assert ledger.live == 0
        assert ledger.peak == 300 * 8
        one, two = ag.exp(t(100)), ag.exp(t(250))
    assert (ledger.live, ledger.peak) == (350 * 8, 350 * 8)
    del one
    assert ledger.live == 250 * 8
    two.sum().backward()
    assert (ledger.live, ledger.peak) == (0, 350 * 8)


def test_a_graph_that_is_dropped_releases_what_it_saved():
    ledger = Ledger()
    with ledger.recording():
        y = ag.gelu(ag.linear(t(4, 5), t(5, 6)))
    assert ledger.live > 0
    del y
    assert ledger.live == 0


def test_a_storage_is_counted_again_when_it_comes_back():
    x, ledger = Tensor(np.ones((3, 4))), Ledger()
    for _ in range(3):
        with ledger.recording():
            y = ag.linear(x, t(4, 2))
        assert ledger.live == ledger.peak == x.data.nbytes
        y.sum().backward()
        assert ledger.live == 0


def test_numbers_take_no_memory_and_no_grad_saves_nothing():
    ledger = Ledger()
    with ledger.recording():
        y = t(3) * 2.0 / 5 + 1
        with no_grad():
            ag.exp(t(3))
    assert ledger.live == ledger.peak == 0 and y.requires_grad


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_a_gpt_saves_what_the_formula_says(dtype, kv_heads):
    """Elements for one block, of batch b, t tokens, width d, h heads, kv heads k, head width e:

    2 (b t d + b t) norms: u and 1/σ,     2 b t d inputs of c_attn and c_fc,
    b t (d + 2 k e) qkv,  b h t² probabilities,  b t d input of c_proj,  2 · 4 b t d GELU's slope
    and output: with k = h, 16 b t d + h b t² + 2 b t.
    """
    b, time, d, a, layers, v = 2, 8, 16, 4, 3, 11
    config = GPTConfig(v, time, layers, a, d, num_kv_heads=kv_heads)
    model = GPT(config).initialize(0, dtype)
    ids = np.zeros((b, time), np.int64)
    ledger = Ledger(model.parameters())
    with ledger.recording():
        loss = model.loss(ids, ids)
    qkv = d + 2 * kv_heads * (d // a)
    block = b * time * (13 * d + qkv + 2) + a * b * time**2
    head = b * time * (2 * d + 1) + b * time * v            # ln_f, the head's input, dlogits
    size = np.dtype(dtype).itemsize
    assert ledger.live == size * (layers * block + head) + ids.nbytes
    if kv_heads == a:
        assert block == 16 * b * time * d + a * b * time**2 + 2 * b * time
    loss.backward()
    assert ledger.live == 0 and ledger.peak == size * (layers * block + head) + ids.nbytes


def test_relu_shares_its_output_with_the_next_layer():
    b = 6
    model = MLP([5, 4, 3]).initialize(0, np.float64)
    ledger = Ledger(model.parameters())
    with ledger.recording():
        y = model(Tensor(np.ones((b, 5))))
    assert ledger.live == 8 * b * (5 + 4)                   # x; relu's output, saved twice
    y.sum().backward()
    assert ledger.live == 0


def test_a_shape_only_run_saves_the_same_bytes():
    model = MLP([5, 4, 3], activation="gelu").initialize(array=ShapeArray((), np.float32))
    ledger = Ledger(model.parameters())
    with ledger.recording():
        y = model(Tensor(ShapeArray((6, 5), np.float32)))
    assert ledger.live == 4 * 6 * (5 + 4 + 4)
    y.sum().backward()
    assert ledger.live == 0
