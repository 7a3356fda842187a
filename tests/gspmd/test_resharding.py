"""Resharding: any layout to any other, on ranks: the right numbers, the planned bytes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipar import Cluster, DeviceMesh
from minipar.autograd import Tensor
from minipar.gspmd import P, constrain, plan
from minipar.gspmd.execution.execute import Executable
from minipar.gspmd.partitioning.reshard import ArraySizes, ShardedLayout, cheapest
from minipar.gspmd.spec import local_shape

MESH = {"a": 2, "b": 3}


def specs(num_dims=2):
    """All ways to give two axes to dimensions."""
    for places in itertools.product([None, *range(num_dims)], repeat=2):
        for order in (("a", "b"), ("b", "a")):
            dims = [()] * num_dims
            for axis in order:
                place = places[list(MESH).index(axis)]
                if place is not None:
                    dims[place] = (*dims[place], axis)
            yield tuple(dims)


ALL = sorted(set(specs()))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ALL), st.sampled_from(ALL),
       st.tuples(st.integers(1, 13), st.integers(1, 7)))
def test_any_layout_to_any_other(start, goal, shape):
    whole = np.arange(np.prod(shape), dtype=float).reshape(shape)
    planned = plan(lambda x: constrain(x, P(*[axes or None for axes in goal])),
                   Tensor(whole, requires_grad=True), mesh=MESH,
                   annotations={"x0": P(*[axes or None for axes in start])})

    def body(comm):
        rank = Executable(planned.program, DeviceMesh(comm, order=("a", "b"), **MESH))
        (given_, taken) = planned.program.inputs["x0"], planned.program.outputs[0]
        assert taken.layout.dims == goal
        piece = Tensor(np.array(rank.piece_of(given_, whole)), requires_grad=True)
        (result,) = rank({"x0": piece})
        np.testing.assert_array_equal(result.data, rank.piece_of(taken, whole))
        result.backward(rank.piece_of(taken, whole))        # the gradient comes the same way back
        np.testing.assert_array_equal(piece.grad, rank.piece_of(given_, whole))

    Cluster(6).run(body)


@pytest.mark.parametrize("start", ALL, ids=str)
@pytest.mark.parametrize("partial", [(), ("a",), ("b",), ("a", "b")], ids=str)
def test_it_is_no_dearer_than_the_obvious_ways(start, partial):
    """Gather everything and slice; or sum everything first."""
    used = {axis for axes in start for axis in axes}
    if used & set(partial):
        return
    array = ArraySizes((12, 18), 8)
    n = np.prod(local_shape(array.shape, start, MESH)) * 8
    p = np.prod([MESH[axis] for axis in used]) if used else 1
    summed = np.prod([MESH[axis] for axis in partial]) if partial else 1
    obvious = 2 * n * (summed - 1) / summed + (p - 1) * n
    for goal in ALL:
        moves = cheapest(array, ShardedLayout(start, frozenset(partial)), goal, MESH)
        assert sum(move.num_bytes for move in moves) <= obvious + 1e-9
        layout = moves[-1].after if moves else ShardedLayout(start)
        assert layout == ShardedLayout(goal)


@pytest.mark.parametrize(("start", "partial", "goal", "kinds"), [
    (("a", None), (), (None, None), ["all-gather"]),
    ((None, None), (), ("a", None), ["slice"]),
    (("a", None), (), (None, "a"), ["all-to-all"]),
    ((None, None), ("a",), (None, None), ["all-reduce"]),
    ((None, None), ("a",), (None, "a"), ["reduce-scatter"]),
    ((("a", "b"), None), (), (("b", "a"), None), ["permute"]),
    ((None, None), ("a", "b"), (None, None), ["all-reduce"]),
    (("b", None), ("a",), ("b", "a"), ["reduce-scatter"]),
])
def test_the_menu(start, partial, goal, kinds):
    array = ArraySizes((12, 18), 8)
    moves = cheapest(array, ShardedLayout(P(*start).dims, frozenset(partial)), P(*goal).dims, MESH)
    assert [move.kind for move in moves] == kinds
