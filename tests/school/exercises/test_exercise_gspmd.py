"""Tests of the exercises on GSPMD: rules, a step of propagation, conflicts, resharding."""

from types import SimpleNamespace

import numpy as np
import pytest

from minipar.gspmd.graph import Operation, Value
from minipar.gspmd.partitioning import reshard
from minipar.gspmd.partitioning.reshard import ShardedLayout, ShardMove
from minipar.gspmd.rules import products
from minipar.gspmd.rules.factor_flow import Flow, View
from minipar.gspmd.rules.rule import FactorRule


def operation(*shapes, result):
    inputs = [None if shape is None else Value(f"x{i}", shape, np.dtype(float))
              for i, shape in enumerate(shapes)]
    return Operation(object, inputs, {}, Value("y", result, np.dtype(float)))


def linear_rule(leading, bias=True):
    return products.linear(operation((*leading, 6), (6, 8), (8,) if bias else None,
                                     result=(*leading, 8)))


def test_the_inner_dimension_is_contracted():
    rule = linear_rule((4, 5))
    x, w, _ = rule.operands
    assert rule.contracted == {*x[-1]} == {*w[0]}
    assert rule.sizes[x[-1][0]] == 6 and not rule.whole


@pytest.mark.parametrize("leading", [(4,), (4, 5), (2, 3, 4)])
def test_leading_dimensions_pass_through(leading):
    rule = linear_rule(leading)
    x, w, _ = rule.operands
    assert rule.result == (*x[:-1], w[1])
    assert [rule.sizes[factors[0]] for factors in x[:-1]] == list(leading)


def test_a_bias_lies_along_the_outputs():
    rule = linear_rule((4, 5))
    assert rule.operands[2] == (rule.result[-1],)
    assert rule.repeated == {2}


def test_a_linear_layer_without_a_bias():
    rule = linear_rule((4,), bias=False)
    assert rule.operands[2] is None and len(rule.result) == 2


def flow(rule, round_number=3, mesh=None):
    shardings = SimpleNamespace(rules={None: rule}, mesh=mesh or {"dp": 2, "tp": 4, "cp": 2})
    return Flow(None, shardings, round_number)


def view(place, **axes):
    return View(place, Value(f"v{place}", (), np.dtype(float)), axes, ())


RULE = FactorRule((), (), {"a": 8, "b": 8}, repeated=frozenset([1]))


def test_the_longer_axes_are_agreed():
    views = [view(-1, a=("dp", "tp", "cp")), view(0, a=("dp",)), view(2, a=("dp", "tp"))]
    assert flow(RULE).agreed_axes("a", views) == ("dp", "tp", "cp")
    assert flow(RULE).agreed_axes("a", [view(-1, a=()), view(0, a=("dp",))]) == ("dp",)


def test_a_difference_cuts_and_forbids_growth():
    first, second = view(0, a=("dp", "tp")), view(2, a=("dp", "cp"))
    assert flow(RULE).agreed_axes("a", [view(-1, a=()), first, second]) == ("dp",)
    third = view(3, a=("dp", "cp", "tp"))
    assert flow(RULE).agreed_axes("a", [view(-1, a=()), first, second, third]) == ("dp",)
    assert flow(RULE).agreed_axes("a", [view(-1, a=("dp", "cp")), first]) == ("dp",)


def test_repeated_operands_count_in_the_last_round():
    views = [view(-1, a=()), view(0, a=()), view(1, a=("tp",))]
    assert flow(RULE, 3).agreed_axes("a", views) == ()
    assert flow(RULE, 4).agreed_axes("a", views) == ("tp",)


def test_values_without_the_factor_do_not_count():
    assert flow(RULE).agreed_axes("a", [view(-1, b=("tp",)), view(0, a=("dp",), b=())]) == ("dp",)


def order(rule, agreed, views):
    ranking = flow(rule).ranking(agreed, views)
    return sorted(rule.factors, key=ranking.__getitem__)


PRODUCT = FactorRule((), (), {"n": 48, "k": 32, "m": 16})


def test_the_larger_tensor_keeps_the_axis():
    """x (n, k) is larger than w (k, m); both want dp in the result (n, m)."""
    x, w = view(0, n=("dp",), k=()), view(1, k=(), m=("dp",))
    result = view(-1, n=("tp",), m=("tp",))
    agreed = {"n": ("dp",), "k": (), "m": ("dp",)}
    assert order(PRODUCT, agreed, [result, x, w]) == ["n", "m", "k"]
    swapped = PRODUCT.__class__((), (), {"n": 16, "k": 32, "m": 48})
    assert order(swapped, agreed, [result, x, w]) == ["m", "n", "k"]


def test_the_earlier_operand_breaks_a_tie():
    sizes = FactorRule((), (), {"m": 16, "k": 32, "n": 16})
    x, w = view(0, n=("dp",), k=()), view(1, k=(), m=("dp",))
    result = view(-1, n=(), m=())
    agreed = {"n": ("dp",), "k": (), "m": ("dp",)}
    assert order(sizes, agreed, [result, x, w]) == ["n", "m", "k"]
    even = FactorRule((), (), {"m": 4, "k": 4, "n": 4})     # x, w and the result are as large
    result = view(-1, n=("dp",), m=("tp",))                 # and it has n's axis as well as x
    assert order(even, agreed, [result, x, w]) == ["n", "m", "k"]


def test_more_pieces_win_in_element_wise_operations():
    sum_of = FactorRule((), (), {"a": 8, "b": 8}, moves=True, elementwise=True)
    x, y, result = view(0, a=("dp",), b=()), view(1, a=(), b=("tp",)), view(-1, a=(), b=())
    agreed = {"a": ("dp",), "b": ("tp",)}
    assert order(sum_of, agreed, [result, x, y]) == ["b", "a"]
    moved = FactorRule((), (), {"a": 8, "b": 8}, moves=True)
    assert order(moved, agreed, [result, x, y]) == ["a", "b"]


def test_a_value_that_disagrees_is_no_source():
    """The result is the largest, but cut along n by tp: it is no source of dp there."""
    sizes = FactorRule((), (), {"n": 8, "k": 2, "m": 8})
    x, w = view(0, n=("dp",), k=()), view(1, k=(), m=("cp",))
    result = view(-1, n=("tp",), m=("cp",))
    ranking = flow(sizes).ranking({"n": ("dp",), "k": (), "m": ("cp",)}, [result, x, w])
    assert ranking["n"][0] == -16 and ranking["m"][0] == -64


def test_a_value_that_is_not_cut_is_no_source():
    """Both want dp in the result, which has it nowhere yet: the larger operand has it first."""
    sizes = FactorRule((), (), {"n": 64, "k": 32, "m": 128})
    x, w = view(0, n=("dp",), k=()), view(1, k=(), m=("dp",))
    agreed = {"n": ("dp",), "k": (), "m": ("dp",)}
    assert order(sizes, agreed, [view(-1, n=(), m=()), x, w]) == ["m", "n", "k"]


def layout(name):
    return ShardedLayout(((name,),))


def ways(*edges):
    """The moves from each layout, as (from, to, bytes)."""
    return lambda here: [ShardMove("move", (), 0, -1, cost, layout(end))
                         for start, end, cost in edges if layout(start) == here]


def found(*edges):
    path = reshard.shortest_path(layout("s"), layout("t"), ways(*edges))
    return [move.after.dims[0][0] for move in path]


def test_two_cheap_moves_beat_an_expensive_one():
    assert found(("s", "t", 10), ("s", "a", 3), ("a", "t", 4)) == ["a", "t"]
    assert found(("s", "a", 9), ("a", "t", 0), ("s", "b", 4), ("b", "t", 4)) == ["b", "t"]
    assert found(("s", "a", 1), ("a", "b", 1), ("b", "t", 1), ("a", "t", 5)) == ["a", "b", "t"]


def test_of_equal_bytes_the_fewest_moves():
    assert found(("s", "a", 3), ("a", "t", 3), ("s", "t", 6)) == ["t"]


def test_a_sum_that_is_cut_is_a_reduce_scatter():
    array, mesh = reshard.ArraySizes((8, 8), 4), {"tp": 4}
    partial = ShardedLayout(((), ()), frozenset(["tp"]))
    kinds = [move.kind for move in reshard.cheapest(array, partial, ((), ("tp",)), mesh)]
    assert kinds == ["reduce-scatter"]
    cut = ShardedLayout((("tp",), ()))
    assert [move.kind for move in reshard.cheapest(array, cut, ((), ("tp",)), mesh)] == [
        "all-to-all"]


def test_there_is_no_way():
    with pytest.raises(ValueError, match="no way from"):
        reshard.shortest_path(layout("s"), layout("t"), ways(("s", "a", 1)))
