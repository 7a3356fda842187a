"""The walk through the graph: deep chains, accumulation, ready hooks, what is refused."""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Function, Tensor, no_grad
from minipar.nn import GPT, GPTConfig, Parameter, ones


def t(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


def weight(*shape):
    w = Parameter(shape, ones)
    w.data = np.ones(shape)
    return w


class Mark(Function):
    """The identity, which reports when the gradient passes."""

    def forward(ctx, x, name, log):
        ctx.name, ctx.log = name, log
        return x

    def backward(ctx, g):
        name, log = ctx.name, ctx.log

        def dx():
            log.append(name)
            return g
        return [dx]


@pytest.mark.parametrize("length", [10_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_long_chains_need_no_recursion(length):
    x = t(3)
    y = x
    for _ in range(length):
        y = y * 1.0
    y.sum().backward()
    assert (x.grad == 1).all()
    z = x
    for _ in range(length):
        z = z * 1.0
    del z                           # nor does letting go of a chain that was never walked


def test_a_diamond_is_walked_once():
    x = t(3)
    a = x * 2.0
    b = a * 3.0
    (a * b + a).sum().backward()
    np.testing.assert_allclose(x.grad, 24 * x.data + 2)


def test_a_ladder_of_diamonds_takes_linear_time():
    x, calls = t(), []
    y = x
    for _ in range(100):            # 2¹⁰⁰ paths, 100 nodes
        y = Mark.apply(y, name="dx", log=calls)
        y = y * 0.5 + y * 0.5
    y.backward()
    assert x.grad == 1 and len(calls) == 100


def test_a_leaf_can_be_the_root():
    x = t()
    x.backward()
    assert x.grad == 1


def test_a_second_backward_teaches():
    x = t(3)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="went through this graph before.*run the forward again"):
        y.backward()
    with pytest.raises(RuntimeError, match="before and freed it"):
        (y * 2.0).backward()        # a new graph on top of the old


def test_backward_of_the_wrong_thing_teaches():
    with pytest.raises(RuntimeError, match=r"shape \(3,\) needs the gradient of the same shape"):
        (t(3) * 2.0).backward()
    with pytest.raises(RuntimeError, match="depends on nothing with requires_grad=True"):
        Tensor(np.ones(())).backward()
    with no_grad():
        y = t().sum()
    with pytest.raises(RuntimeError, match="made under no_grad"):
        y.backward()
    with pytest.raises(ValueError, match=r"\(3,\) float64 needs .* not \(2,\) float64"):
        (t(3) * 2.0).backward(np.ones(2))
    with pytest.raises(ValueError, match=r"needs .* not \(3,\) float32"):
        (t(3) * 2.0).backward(np.ones(3, np.float32))


def test_a_tensor_that_is_no_leaf_has_no_gradient_and_says_why():
    with pytest.raises(AttributeError, match="made by an operation"):
        (t(3) * 2.0).slot  # noqa: B018
    with pytest.raises(AttributeError, match="asks for none"):
        Tensor(np.ones(3)).slot  # noqa: B018
    with pytest.raises(TypeError, match="floating-point numbers, not int64"):
        Tensor(np.arange(3), requires_grad=True)


@pytest.mark.parametrize("result, message", [
    ([None], "returned None for input 0, which needs a gradient"),
    ([np.ones(3), None], "returned 2 gradients for 1 inputs")])
def test_a_function_whose_backward_is_wrong_is_named(result, message):
    class Broken(Function):
        def forward(ctx, x):
            return x

        def backward(ctx, g):
            return result
    with pytest.raises(RuntimeError, match=f"Broken.backward {message}"):
        Broken.apply(t(3)).sum().backward()


def test_several_backwards_add_up():
    a, b = t(3), t(3, seed=1)
    for _ in range(3):
        (a + b).backward(np.ones(3))
    assert (a.grad == 3).all() and (b.grad == 3).all()


def test_gradients_never_alias():
    a, b, seed = t(3), t(3, seed=1), np.ones(3)
    c = a + b                       # Add hands the very same array to both
    (c + c + a).backward(seed)
    assert (a.grad == 3).all() and (b.grad == 2).all() and (seed == 1).all()
    assert not np.shares_memory(a.grad, b.grad)
    assert not np.shares_memory(a.grad, seed) and not np.shares_memory(b.grad, seed)
    x = t(4)
    x.reshape(2, 2).T.reshape(4).backward(seed4 := np.arange(4.0))
    assert not np.shares_memory(x.grad, seed4)


def test_a_buffer_is_overwritten_first_and_added_to_afterwards():
    x, buffer = t(3), np.full(3, 7.0)
    x.slot.get_grad_buffer = lambda: buffer
    for _ in range(2):
        (x * 1.0).backward(np.ones(3))
    assert x.grad is buffer and (buffer == 2).all()


def test_ready_hooks_fire_once_in_backward_order_before_earlier_dx():
    order = []
    weights, tied = [weight(4, 4) for _ in range(3)], weight(4)
    for i, w in enumerate(weights):
        w.slot.ready_hooks.append(lambda slot, i=i: order.append((f"w{i}", slot.grad.copy())))
    tied.slot.ready_hooks.append(lambda slot: order.append(("tied", slot.grad.copy())))
    h = t(2, 4, seed=9)
    for i, w in enumerate(weights):
        h = ag.linear(Mark.apply(h, name=f"dx{i}", log=order), w) + tied
    h.sum().backward()
    names = [entry if isinstance(entry, str) else entry[0] for entry in order]
    assert names == ["w2", "dx2", "w1", "dx1", "tied", "w0", "dx0"]
    for entry in order:             # at that moment the gradient was complete
        if not isinstance(entry, str):
            name, grad = entry
            np.testing.assert_array_equal(grad, (tied if name == "tied" else
                                                 weights[int(name[1])]).grad)


@pytest.mark.parametrize("swap", [False, True])
def test_weights_come_before_dx_on_whichever_side_they_are(swap):
    order = []
    w = weight(4)
    w.slot.ready_hooks.append(lambda slot: order.append("w"))
    x = Mark.apply(Tensor(np.ones(4)) * t(4), name="dx", log=order)
    y = w * x if swap else x * w
    y.sum().backward()
    assert order == ["w", "dx"]


def test_gpt_gradients_are_ready_layer_by_layer_from_the_top():
    model = GPT(GPTConfig(7, 4, num_layers=3, num_heads=2, width=8)).initialize(0, np.float64)
    fired, early = [], []
    for name, p in model.named_parameters():
        p.slot.ready_hooks.append(lambda slot, name=name: fired.append(name))
    for i, block in enumerate(model.h):     # what has fired when the gradient leaves block i
        def probed(x, i=i, forward=block.forward):
            return forward(Mark.apply(x, name=i, log=Moments(early, fired)))
        block.forward = probed
    ids = np.array([[1, 2, 3]])
    model.loss(ids, ids).backward()
    assert sorted(fired) == sorted(name for name, _ in model.named_parameters())
    blocks = [name.split(".")[1] for name in fired if name.startswith("h.")]
    assert blocks == sorted(blocks, reverse=True)
    assert fired[:2] == ["ln_f.bias", "ln_f.weight"]
    assert set(fired[-2:]) == {"wpe.weight", "wte.weight"}      # wte is tied to the head
    assert [i for i, _ in early] == [2, 1, 0]
    for i, count in early:
        own = {name for name in fired if name.startswith(f"h.{i}.")}
        assert len(own) == 12 and own <= set(fired[:count])


class Moments:
    """A log that writes down how many hooks had fired."""

    def __init__(self, log, fired):
        self.log, self.fired = log, fired

    def append(self, name):
        self.log.append((name, len(self.fired)))
