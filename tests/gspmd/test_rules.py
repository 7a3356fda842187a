"""Factor rules: every operation has one, and an operation without one is named."""

import inspect
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Function, Tensor
from minipar.autograd.ops.elementwise import Broadcast
from minipar.gspmd import P, plan, trace
from minipar.gspmd.rules import RULES, rule_of
from minipar.gspmd.spec import show

FAMILIES = sorted(path.stem for path in Path(ag.__file__).parent.joinpath("ops").glob("*.py")
                  if path.stem != "__init__")


def operations():
    for family in FAMILIES:
        module = import_module(f"minipar.autograd.ops.{family}")
        for name, kind in vars(module).items():
            if inspect.isclass(kind) and issubclass(kind, Function) and kind.__module__ == \
                    module.__name__ and not name.startswith("_") and kind is not Broadcast:
                yield kind


@pytest.mark.parametrize("kind", list(operations()), ids=lambda kind: kind.__name__)
def test_every_operation_has_a_rule(kind):
    assert kind in RULES, "add a factor rule to gspmd/rules, or a refusal"


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        return [lambda: g]


def test_an_operation_without_a_rule_is_named():
    with pytest.raises(TypeError, match="Cube has no factor rule, so its sharding cannot be"):
        plan(lambda x: Cube.apply(x), Tensor(np.zeros((4, 4))), mesh={"x": 2}, annotations={})


def rule(function, *shapes):
    graph = trace(function, *[Tensor(np.zeros(shape)) for shape in shapes])
    return rule_of(graph.operations[-1])


@pytest.mark.parametrize(("before", "after", "first", "second"), [
    ((4, 6), (24,), (("f0",), ("f1",)), (("f0", "f1"),)),
    ((24,), (2, 3, 4), (("f0", "f1", "f2"),), (("f0",), ("f1",), ("f2",))),
    ((2, 12), (6, 4), (("f0",), ("f1", "f2")), (("f0", "f1"), ("f2",))),
    ((4, 1, 6), (4, 6, 1), (("f0",), (), ("f1",)), (("f0",), ("f1",), ())),
])
def test_reshapes_are_cut_into_common_factors(before, after, first, second):
    found = rule(lambda x: x.reshape(*after), before)
    assert found.operands == (first,) and found.result == second and not found.whole


def test_a_reshape_without_common_factors_is_whole():
    found = rule(lambda x: x.reshape(4, 9), (6, 6))
    assert not set(found.sizes) - found.whole


@pytest.mark.parametrize(("index", "whole"), [
    (slice(None), set()), (slice(1, 5), set()), (slice(0, 8, 2), {"a"}), (3, {"a"}),
    ((slice(1, 5), slice(0, 2)), {"a", "b"}), ((Ellipsis, None), set()),
    ((slice(None), 1), {"b"})])
def test_indices(index, whole):
    assert rule(lambda x: x[index], (8, 4)).whole == whole


def test_an_index_by_a_mask_is_refused():
    """The shape of a result may depend on shapes only, as that of an index of integers does."""
    with pytest.raises(TypeError, match="an index of integers and slices was expected"):
        trace(lambda x: x[np.arange(8) > 3], Tensor(np.zeros((8, 4))))
    trace(lambda x: x[np.array([0, 2])], Tensor(np.zeros((8, 4))))


@pytest.mark.parametrize(("text", "expected"), [
    ("dp", "(dp)"), ("(None, tp)", "(·, tp)"), ("dp, (cp, tp)", "(dp, cp+tp)"), ("()", "()"),
    ("(dp,)", "(dp)"), ("('dp', None)", "(dp, ·)"), ("((dp, tp),)", "(dp+tp)")])
def test_specs_are_read(text, expected):
    assert show(P.parse(text).dims) == expected


@pytest.mark.parametrize("text", ["1", "dp tp", "dp +", "(a, [b])", "f(x)"])
def test_other_text_is_no_spec(text):
    with pytest.raises(ValueError, match="cannot read the partition spec"):
        P.parse(text)


def test_specs_refuse_what_is_no_axis():
    with pytest.raises(TypeError, match="None, the name of a mesh axis or a tuple of names"):
        P(1)
    with pytest.raises(TypeError):
        P(("dp", 2))
    with pytest.raises(ValueError, match="names the axis 'dp' twice"):
        P("dp", "dp")
    assert repr(P()) == "P()" and repr(P(None, ("a", "b"))) == "P(·, a+b)"
    assert P("dp") == P("dp") != P("dp", priority=1) and len({P("dp"), P("dp")}) == 1
