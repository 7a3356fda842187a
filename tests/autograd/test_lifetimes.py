"""Arrays are freed as early as promised: by weak references, with the garbage collector off."""

import gc
import weakref

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Function, Tensor, saved_tensors_hooks
from minipar.nn import GPT, GPTConfig, Linear


@pytest.fixture(autouse=True)
def without_garbage_collector():
    """Reference counts alone must do: memory that waits for the collector is memory in use."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def t(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


def storage(tensor):
    array = tensor.data
    while array.base is not None:
        array = array.base
    return weakref.ref(array)


class Gather(Function):
    """A copy for one use, as of a weight that is spread over many ranks."""

    def forward(ctx, shard):
        return shard.copy()

    def backward(ctx, g):
        return [g]


def test_an_intermediate_that_nobody_saved_is_freed_at_once():
    h = ag.linear(t(4, 5), t(5, 6), t(6))
    alive = storage(h)
    y = ag.gelu(h)                  # saves its slope, not its input
    assert alive() is not None
    del h
    assert alive() is None
    y.sum().backward()


@pytest.mark.parametrize("use", [
    lambda h: h + 1.0, lambda h: h - 2.0, lambda h: h * 3.0, lambda h: h / 2.0, lambda h: -h,
    ag.exp, ag.tanh, ag.sqrt, ag.relu, ag.softmax, ag.log_softmax, lambda h: h.sum(axis=0),
    lambda h: h.max(axis=0), lambda h: ag.concatenate([h, h]),
    lambda h: ag.dropout(h, np.ones(h.shape, bool), 0.5), lambda h: h[[0, 0]],
    lambda h: ag.cross_entropy(h, np.zeros(4, int)),
    lambda h: ag.layer_norm(h, t(6), t(6)), lambda h: ag.where(np.ones(h.shape, bool), h, 0.0)])
def test_operations_whose_derivative_does_not_need_x_let_go_of_it(use):
    h = ag.exp(t(4, 6)) * 1.0
    alive = storage(h)
    y = use(h)
    del h
    assert alive() is None
    y.sum().backward()


def test_a_weight_used_through_a_temporary_copy_is_freed_before_backward():
    x, layer = Tensor(np.ones((2, 3))), Linear(3, 4).initialize(0, np.float64)
    full = Gather.apply(layer.weight)
    alive = storage(full)
    y = ag.linear(x, full, layer.bias)          # the first layer: dx is not needed
    del full
    assert alive() is None
    y.sum().backward()
    np.testing.assert_array_equal(layer.weight.grad, np.full((3, 4), 2.0))


def test_a_hook_can_drop_gathered_weights_and_gather_them_again():
    """Any view of a gathered buffer is recognised, dropped, and made again when it is used."""
    layers = [Linear(3, 3).initialize(seed, np.float64) for seed in range(3)]
    gathered, gathers, alive = {}, [], []

    def pack(array):
        owner = array if array.base is None else array.base
        return (gathered[id(owner)], array.strides) if id(owner) in gathered else array

    def unpack(item):
        if isinstance(item, np.ndarray):
            return item
        i, strides = item
        gathers.append(i)
        again = layers[i].weight.data.copy()
        return again if strides == again.strides else again.T

    def forward(x, gather):
        for i, layer in enumerate(layers):
            full = gather(layer.weight)
            gathered[id(full.data)] = i
            alive.append(storage(full))
            x = ag.linear(x, full.T if i == 1 else full)        # layer 1 saves a view
            del gathered[id(full.data)], full
        return x.sum()

    with saved_tensors_hooks(pack, unpack):
        loss = forward(t(2, 3), Gather.apply)
    assert [ref() for ref in alive] == [None] * 3
    loss.backward()
    assert gathers == [2, 1, 0]
    grads = [layer.weight.grad.copy() for layer in layers]
    for layer in layers:
        layer.zero_grad()
    forward(t(2, 3), lambda weight: weight * 1.0).backward()    # without any hook
    for layer, grad in zip(layers, grads):
        np.testing.assert_array_equal(layer.weight.grad, grad)


def test_what_was_saved_is_freed_as_the_walk_goes():
    saved, log = {}, []

    class Probe(Function):
        def forward(ctx, x, name):
            a = x.copy()
            ctx.save(a)
            ctx.name, saved[name] = name, weakref.ref(a)
            return x + 0

        def backward(ctx, g):
            (a,), name = ctx.saved, ctx.name

            def dx():
                a()
                log.append((name, "".join(n for n, ref in saved.items() if ref() is not None)))
                return g
            return [dx]
    y = t(3)
    for name in "abcd":
        y = Probe.apply(y, name=name)
    y.sum().backward()
    assert log == [("d", "abcd"), ("c", "abc"), ("b", "ab"), ("a", "a")]
    assert all(ref() is None for ref in saved.values())


def test_nothing_of_a_training_step_stays_alive():
    model = GPT(GPTConfig(7, 4, num_layers=2, num_heads=2, width=8)).initialize(0, np.float64)
    ids, refs = np.array([[1, 2, 3], [4, 5, 6]]), []

    def pack(array):
        owner = array if array.base is None else array.base
        if not any(np.shares_memory(owner, slab.data) for slab in model.slabs):
            refs.append(weakref.ref(array))
        return array
    with saved_tensors_hooks(pack, lambda array: array):
        loss = model.loss(ids, ids)
    assert len([ref for ref in refs if ref() is not None]) > 20
    loss.backward()                             # the loss itself is still here
    kept = [ref() for ref in refs if ref() is not None]
    assert all(array is ids or array.base is ids for array in kept) and len(refs) > 20
    del kept, loss
    before = len(gc.get_objects())
    for _ in range(3):
        model.loss(ids, ids).backward()
    assert len(gc.get_objects()) - before < 50  # no cycles are left behind for the collector


def test_a_graph_that_is_never_walked_is_freed_too():
    y = ag.gelu(ag.linear(t(4, 5), t(5, 6)))
    node = weakref.ref(y.grad_target)
    del y
    assert node() is None


def test_the_gradient_passed_along_is_freed_when_it_has_been_used():
    alive = []

    class Watch(Function):
        def forward(ctx, x):
            return x

        def backward(ctx, g):
            alive.append(sum(ref() is not None for ref in refs))
            fresh = g + 0
            refs.append(weakref.ref(fresh))
            return [fresh]
    refs, y = [], t(3)
    for _ in range(6):
        y = Watch.apply(y)
    y.backward(np.ones(3))
    assert max(alive) <= 1
    assert all(ref() is None for ref in refs)


def test_contributions_are_freed_once_they_are_summed():
    refs, alive = [], []

    class Emit(Function):
        def forward(ctx, x):
            return x

        def backward(ctx, g):
            def dx():
                fresh = g + 0
                refs.append(weakref.ref(fresh))
                return fresh
            return [dx]

    class Probe(Function):
        def forward(ctx, x):
            return x

        def backward(ctx, g):
            alive.append(sum(ref() is not None for ref in refs))
            return [g]
    h = Probe.apply(t(3))
    (Emit.apply(h) + Emit.apply(h) + Emit.apply(h)).sum().backward()
    assert len(refs) == 3 and alive == [0]
