"""Exercises mesh_groups, bytes_by_axis and sum_over_dp."""

import numpy as np
import pytest

from minipar.comm import Cluster, Trace
from minipar.comm.collectives import all_gather
from minipar.comm.cost.traffic import bytes_by_axis
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, GPTConfig
from minipar.optim import SGD
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.parallel.zero.zero1 import ZeRO1

# mesh_groups


def groups(order, sizes, *axes):
    """Ranks of mesh[axes], on each rank, as they say themselves."""
    def body(comm):
        group = DeviceMesh(comm, order=order, **sizes)[axes]
        return all_gather(group, np.array([comm.rank])).tolist()
    return Cluster(int(np.prod(list(sizes.values())))).run(body)[0]


CUBE = {"pp": 2, "dp": 2, "tp": 2}


def test_one_axis_of_a_cube():
    assert groups(None, CUBE, "tp") == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7],
                                        [6, 7]]
    assert groups(None, CUBE, "dp")[:4] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert groups(None, CUBE, "pp")[4:] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_two_axes_of_a_cube():
    assert groups(None, CUBE, "pp", "tp")[2] == [2, 3, 6, 7]
    assert groups(None, CUBE, "dp", "tp")[5] == [4, 5, 6, 7]


def test_all_axes_are_all_ranks():
    assert groups(None, CUBE, "pp", "dp", "tp") == [list(range(8))] * 8


def test_axes_of_different_lengths():
    """2 × 3 × 2: the places along the other axes must not be mistaken for each other."""
    found = groups(None, {"pp": 2, "dp": 3, "tp": 2}, "tp")
    assert found == [[rank - rank % 2, rank - rank % 2 + 1] for rank in range(12)]
    assert groups(None, {"pp": 3, "dp": 2, "tp": 2}, "dp")[9] == [9, 11]


def test_another_nesting():
    assert groups(("tp", "dp", "pp"), CUBE, "tp")[3] == [3, 7]
    assert groups(("tp", "dp", "pp"), CUBE, "pp")[3] == [2, 3]


# bytes_by_axis

def cube():
    """Rank 0's mesh."""
    return Cluster(8).run(lambda comm: DeviceMesh(comm, **CUBE))[0][0]


def message(source, dest, num_bytes, label=""):
    return source, dest, num_bytes, label, 0.0, 0.0, 1.0


def test_the_axis_is_where_the_ends_differ():
    trace = Trace([message(0, 1, 8), message(2, 0, 16), message(3, 7, 32)])
    assert bytes_by_axis(trace, cube()) == {
        "tp": {(0, 1): 8}, "dp": {(2, 0): 16}, "pp": {(3, 7): 32}}


def test_messages_over_one_link_add_up_and_there_is_not_back():
    trace = Trace([message(0, 1, 8), message(0, 1, 8), message(1, 0, 4)])
    assert bytes_by_axis(trace, cube())["tp"] == {(0, 1): 16, (1, 0): 4}


def test_bookkeeping_is_left_out():
    trace = Trace([message(0, 1, 8, "control"), message(0, 1, 8, "all_reduce")])
    assert bytes_by_axis(trace, cube())["tp"] == {(0, 1): 8}


def test_ends_that_differ_along_several_axes():
    found = bytes_by_axis(Trace([message(0, 7, 8), message(6, 5, 8)]), cube())
    assert found == {"pp": {}, "dp": {}, "tp": {}, "pp dp tp": {(0, 7): 8},
                     "dp tp": {(6, 5): 8}}


def test_a_mesh_of_some_of_the_world_s_ranks():
    """Traces have numbers of the world; ranks 1, 2, 3 and 5 are the mesh's 0, 1, 2 and 3."""
    trace = Trace([message(1, 2, 8), message(5, 2, 16), message(0, 1, 32), message(3, 4, 64)])

    def body(comm):
        part = comm.split(0 if comm.rank in (1, 2, 3, 5) else None)
        return part and DeviceMesh(part, pp=2, tp=2)
    mesh = Cluster(6).run(body)[0][1]
    assert bytes_by_axis(trace, mesh) == {"pp": {(3, 1): 16}, "tp": {(0, 1): 8}}


# sum_over_dp

def gpt():
    return GPT(GPTConfig(7, context=4, num_layers=2, num_heads=2, width=4)).initialize(0, float)


def batches(strategy):
    ids = np.random.default_rng(1).integers(0, 7, (2, 4, 5))
    rows = np.array(strategy.rows(4))
    return [Microbatch(part[rows, :-1], part[rows, 1:], rows) for part in ids]


def trained(comm, shape=None):
    """Parameters after a step of SGD, which shows the scale of gradients, and bytes sent along dp
    before it."""
    mesh = DeviceMesh(comm, **shape) if shape else None
    strategy = ZeRO1(gpt(), mesh) if mesh else Strategy(gpt(), comm)
    comm.start_trace()
    strategy.forward_backward(batches(strategy))
    trace = comm.stop_trace()
    strategy.step(SGD(strategy.slabs, lr=0.5))
    return strategy.state_dict(), trace, mesh, sum(slab.data.size for slab in strategy.slabs)


@pytest.mark.parametrize("shape", [{"dp": 4}, {"pp": 2, "dp": 2}, {"dp": 2, "tp": 2}],
                         ids=lambda shape: " ".join(shape))
def test_a_step_is_that_of_one_process(shape):
    expected = Cluster(1).run(trained)[0][0][0]
    found = Cluster(4).run(lambda comm: trained(comm, shape))[0]
    for parameters, *_ in found:
        for name, values in expected.items():
            np.testing.assert_allclose(parameters[name], values, rtol=1e-9, atol=1e-12,
                                       err_msg=name)


def test_zero1_sends_half_of_it_before_the_step():
    """A reduce-scatter: each of 2 ranks sends the half that is the other's, and has its own."""
    found = Cluster(4).run(lambda comm: trained(comm, {"pp": 2, "dp": 2}))[0]
    traffic = bytes_by_axis(Trace.merged(trace for _, trace, *_ in found), found[0][2])
    assert sum(traffic["dp"].values()) == 8 * sum(size for *_, size in found)
