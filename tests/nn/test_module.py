"""Modules: names, order, transforms, initial values, state dictionaries."""

from copy import deepcopy

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Tensor
from minipar.nn import MLP, Activation, Linear, Module, Parameter, Sequential, normal, ones, zeros


class Pair(Module):
    """Two parameters and two modules, assigned in one of two orders."""

    def __init__(self, reverse=False):
        super().__init__()
        parts = {"gain": Parameter((3,), ones), "left": Linear(3, 2), "shift": Parameter((), zeros),
                 "right": [Linear(2, 2), Linear(2, 1, bias=False)]}
        for name in sorted(parts, reverse=reverse):
            setattr(self, name, parts[name])

    def forward(self, x):
        x = self.left(x * self.gain + self.shift)
        for layer in self.right:
            x = layer(x)
        return x


def values(module, seed=0, dtype=np.float64):
    return module.initialize(seed, dtype).state_dict()


def test_names_are_full_and_in_the_order_of_assignment():
    names = [name for name, _ in Pair().named_parameters()]
    assert names == ["gain", "shift", "left.weight", "left.bias", "right.0.weight", "right.0.bias",
                     "right.1.weight"]
    assert [name for name, _ in Pair().named_modules()] == ["", "left", "right", "right.0",
                                                            "right.1"]
    assert Pair().num_parameters() == 3 + 1 + 6 + 2 + 4 + 2 + 2


def test_initialize_tells_every_module_its_name():
    pair = Pair().initialize()
    assert [module.full_name for _, module in pair.named_modules()] == [
        "", "left", "right", "right.0", "right.1"]


def test_initial_values_depend_on_seed_and_name_alone():
    plain, reverse = values(Pair()), values(Pair(reverse=True))
    assert list(plain) != list(reverse) and plain.keys() == reverse.keys()
    for name in plain:
        np.testing.assert_array_equal(plain[name], reverse[name])
        rounded = values(Pair(), dtype=np.float32)[name]
        np.testing.assert_array_equal(rounded, plain[name].astype(np.float32))
    other = values(Pair(), seed=1)
    assert not (other["left.weight"] == plain["left.weight"]).any()
    assert not (plain["right.0.weight"] == plain["left.weight"][:2]).any()


def test_a_layer_more_does_not_change_the_others():
    small, large = values(MLP([4, 3, 2])), values(MLP([4, 3, 2, 5]))
    assert small.keys() < large.keys()
    for name, value in small.items():
        np.testing.assert_array_equal(value, large[name])


def test_initializers():
    x = values(Sequential(Linear(1000, 50, initializer=normal(0.02))))
    assert abs(x["0.weight"].std() / 0.02 - 1) < 0.02 and abs(x["0.weight"].mean()) < 3e-4
    assert not x["0.bias"].any()
    he = values(MLP([512, 64]))["0.weight"]
    assert abs(he.std() / np.sqrt(2 / 512) - 1) < 0.02


def test_an_unknown_attribute_raises_with_a_suggestion():
    with pytest.raises(AttributeError, match="Pair has no attribute 'lefft': did you mean 'left'?"):
        Pair().lefft  # noqa: B018
    with pytest.raises(AttributeError, match="Linear has no attribute 'weights'.*'weight'"):
        Linear(2, 3).weights  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'xyzzy'$"):
        Pair().xyzzy  # noqa: B018
    with pytest.raises(AttributeError, match="bias"):
        Linear(2, 3, bias=False).bias  # noqa: B018
    with pytest.raises(TypeError, match="Module defines no forward"):
        Module()(1)


def test_replacing_a_module_keeps_its_place_and_leaves_nothing_behind():
    pair = Pair()
    pair.left = Linear(3, 2, bias=False)
    assert [name for name, _ in pair.named_parameters()][:3] == ["gain", "shift", "left.weight"]
    pair.left = Parameter((2,), ones)           # a name means one thing
    assert isinstance(pair.left, Parameter) and "left.weight" not in dict(pair.named_parameters())
    pair.left = None
    assert pair.left is None and "left" not in dict(pair.named_parameters())


def test_lists_of_parameters_are_refused_because_they_would_be_lost():
    module = Module()
    with pytest.raises(TypeError, match="weights has a Parameter in a list"):
        module.weights = [Parameter((2,), ones), Parameter((2,), ones)]
    module.layers = (Linear(1, 1), Linear(1, 1))
    assert len(list(module.named_parameters())) == 4 and len(module.layers) == 2
    assert module.layers[-1] is list(module.layers)[1]


def test_a_parameter_with_two_names_is_one_parameter():
    module = Module()
    module.a, module.b = Linear(2, 2), Linear(2, 2, bias=False)
    module.b.weight = module.a.weight
    assert [name for name, _ in module.named_parameters()] == ["a.weight", "a.bias"]
    module.initialize()
    assert module.slabs[0].data.size == module.num_parameters() == 6
    assert module.a.weight is module.b.weight


def test_each_use_of_a_parameter_sees_what_on_use_adds():
    pair, x = Pair().initialize(2, np.float64), Tensor(np.ones((2, 3)))
    before, seen = pair(x).data, []

    def double(weight):
        seen.append(weight)
        return weight * 2.0
    doors = [parameter.on_use(double) for parameter in pair.parameters()]
    after = pair(x).data
    assert len(seen) == 7                               # every use of every parameter
    state = pair.state_dict()                           # which are what they were
    np.testing.assert_array_equal(state["gain"], np.ones(3))
    for parameter in pair.parameters():
        parameter.on_use(lambda weight: weight * 0.5)           # applied after the first
    np.testing.assert_array_equal(pair(x).data, before)
    assert not np.allclose(after, before)
    pair(x).sum().backward()
    assert pair._parameters["gain"].grad is not None
    for door in doors:
        door.remove()
    np.testing.assert_array_equal(pair.gain.data, np.full(3, 0.5))
    pair._parameters["gain"].on_use(lambda weight: weight + 1.0, first=True)
    np.testing.assert_array_equal(pair.gain.data, np.ones(3))       # (1 + 1) * 0.5
    assert len(seen) == 7 * 3 and (pair.state_dict()["gain"] == 1).all()


def test_a_tied_weight_has_one_list():
    module = Module()
    module.a, module.b = Linear(2, 2, bias=False), Linear(2, 2, bias=False)
    module.b.weight = module.a.weight
    module.initialize(0, np.float64)
    plain = module.a.weight.data.copy()
    door = module.a._parameters["weight"].on_use(lambda weight: weight * 3.0)
    np.testing.assert_array_equal(module.b.weight.data, plain * 3)
    door.remove()
    np.testing.assert_array_equal(module.b.weight.data, plain)


def test_wrappers_of_a_call_nest_and_are_taken_out():
    layer, x = Linear(2, 2).initialize(0, np.float64), Tensor(np.ones((1, 2)))
    plain, order = layer(x).data, []

    def wrapper(name, factor, add):
        def call(forward, x):
            order.append(name)
            return forward(x * factor) + add
        return call
    outer = layer.around(wrapper("outer", 2.0, 1.0))
    inner = layer.around(wrapper("inner", 3.0, 0.0), inside=True)
    np.testing.assert_allclose(layer(x).data, layer.forward(x * 6.0).data + 1)
    assert order == ["outer", "inner"]
    copied = deepcopy(layer)
    outer.remove()
    np.testing.assert_allclose(layer(x).data, layer.forward(x * 3.0).data)
    inner.remove()
    np.testing.assert_array_equal(layer(x).data, plain)
    np.testing.assert_allclose(copied(x).data, copied.forward(x * 6.0).data + 1)


def test_state_dict_is_a_copy_and_loads_back():
    one, two = Pair().initialize(0), Pair().initialize(1)
    state = one.state_dict()
    data = two.slabs[0].data
    two.load_state_dict(state)
    assert two.slabs[0].data is data                    # into the slab, not beside it
    np.testing.assert_array_equal(one.slabs[0].data, data)
    state["gain"][...] = 5
    assert (one.gain.data == 1).all() and (two.gain.data == 1).all()
    two.load_state_dict({name: value.astype(np.float64) for name, value in state.items()})
    assert two.gain.dtype == np.float32 and (two.gain.data == 5).all()


def test_a_state_that_does_not_fit_is_named_and_changes_nothing():
    pair = Pair().initialize(0, np.float64)
    before, state = pair.slabs[0].data.copy(), Pair().initialize(1, np.float64).state_dict()
    del state["shift"], state["right.1.weight"]
    state["left.bias"], state["extra"] = np.ones(3), np.ones(1)
    with pytest.raises(ValueError) as caught:
        pair.load_state_dict(state)
    for part in ("missing shift", "missing right.1.weight", "unexpected extra",
                 "left.bias has shape (3,), expected (2,)"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(pair.slabs[0].data, before)


def test_without_numbers_there_is_no_state():
    for use in (Pair().state_dict, lambda: Pair().load_state_dict(values(Pair()))):
        with pytest.raises(ValueError, match="shapes but no numbers: call initialize"):
            use()


def test_sequential_mlp_and_activations():
    x = np.random.default_rng(0).standard_normal((5, 4))
    model = MLP([4, 3, 2], activation="tanh").initialize(0, np.float64)
    p = model.state_dict()
    assert list(p) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    expected = np.tanh(x @ p["0.weight"] + p["0.bias"]) @ p["2.weight"] + p["2.bias"]
    np.testing.assert_allclose(model(Tensor(x)).data, expected, rtol=1e-12)
    np.testing.assert_array_equal(model.logits(x).data, model(Tensor(x)).data)
    labels = np.array([0, 1, -100, 1, 0])
    np.testing.assert_allclose(model.loss(x, labels, 10.0).data,
                               ag.cross_entropy(model.logits(x), labels).data * 0.4, rtol=1e-12)
    assert len(model) == 3 and isinstance(model[1], Activation)
    for sizes in ([4], [4, 0], []):
        with pytest.raises(ValueError, match="two or more positive sizes"):
            MLP(sizes)
    with pytest.raises(ValueError, match="'swish': choose from relu, gelu, tanh"):
        MLP([2, 3, 4], activation="swish")


def test_to_empty_is_initialize_without_values():
    drawn, empty = MLP([3, 4, 2]).initialize(1, np.float64), MLP([3, 4, 2]).to_empty(np.float64)
    assert not any(parameter.data.any() for parameter in empty.parameters())
    assert [p.data.dtype for p in empty.parameters()] == [np.float64] * 4
    assert [m.full_name for _, m in empty.named_modules()] \
        == [m.full_name for _, m in drawn.named_modules()]
    assert empty.slabs[0].segments == drawn.slabs[0].segments
    empty.load_state_dict(drawn.state_dict())
    assert np.array_equal(empty.slabs[0].data, drawn.slabs[0].data)
    with pytest.raises(ValueError, match="floating-point"):
        MLP([3, 2]).to_empty(np.int64)
