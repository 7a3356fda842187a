"""Buckets: PyTorch's assignment, and reductions that start in one order and while backward runs."""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.launcher import metered
from minipar.nn import GPT, MLP, GPTConfig
from minipar.parallel.data.ddp import (
    DistributedDataParallel,
    ReductionQueue,
    assign_buckets,
    bucket_limits,
    cut_into_buckets,
)
from minipar.testing import worlds

PYTORCH = [     # numbers of float32, limits in bytes, what PyTorch 2.13 makes of them
    ([100, 200, 300, 400, 500], [1024], [[0, 1], [2], [3], [4]]),
    ([100, 200, 300, 400, 500], [400, 2048], [[0], [1, 2, 3], [4]]),
    ([1000, 10, 10, 10, 5000, 10, 10], [1024, 4096], [[0], [1, 2, 3, 4], [5, 6]]),
    ([300000, 1, 262144, 70000, 9, 9, 9], [1048576, 26214400], [[0], [1, 2, 3, 4, 5, 6]]),
]


@pytest.mark.parametrize("numels, limits, buckets", PYTORCH)
def test_the_assignment_is_pytorchs(numels, limits, buckets):
    assert assign_buckets([4 * n for n in numels], limits) == buckets


def test_no_parameters_no_buckets():
    assert assign_buckets([], [10]) == []


@pytest.mark.parametrize("mb", [0, -1, float("inf"), float("nan")])
def test_a_bucket_needs_room(mb):
    with pytest.raises(ValueError, match="bucket_mb=.*give a number of megabytes > 0"):
        bucket_limits(1, mb)


def test_buckets_are_runs_of_the_slab_from_its_end():
    def body(comm):
        model = MLP([3, 4, 5, 2]).initialize(0)             # 12 4 20 5 10 2 numbers
        last, middle, first = DistributedDataParallel(
            model, comm, bucket_mb=100 / 2**20, first_bucket_mb=48 / 2**20).flats
        assert [flat.size for flat in (last, middle, first)] == [12, 25, 16]
        assert [segment.start for segment in middle.layout] == [0, 20]
        assert np.shares_memory(middle.grad, model.slabs[0].grad[16:41])
        assert not np.shares_memory(middle.grad, model.slabs[0].grad[41:])
    Cluster(2).run(body)


def test_a_bucket_has_parameters_of_the_same_stages_only():
    assert cut_into_buckets([4] * 7, "aabbbba", [8, 12]) == [[0, 1], [2, 3], [4, 5], [6]]
    assert cut_into_buckets([], [], [8]) == []


def test_launches_keep_their_order():
    """Group 1 is ready before group 0, and waits for it; what never comes is not waited for."""
    model, launched = MLP([3, 4, 2, 2]).initialize(0), []
    groups = [[model[0].weight, model[0].bias], [model[4].weight], [model[2].weight]]
    order = ReductionQueue(groups, launched.append)
    loss = model.loss(np.ones((2, 3), np.float32), np.array([0, 1]))
    seen = []
    model[4].weight.slot.ready_hooks.append(lambda slot: seen.append(list(launched)))
    with order.watch(loss):
        loss.backward()
    assert seen == [[]] and launched == [0, 1, 2]           # group 0 came last
    launched.clear()
    only_group_1 = (model[4].weight * 2.0).sum()
    with order.watch(only_group_1):
        only_group_1.backward()
        assert launched == [0, 1, 2]                        # no rank waits for 0 and 2
    launched.clear()
    of_none = (Tensor(np.ones(2), requires_grad=True) * 2.0).sum()
    with order.watch(of_none):
        of_none.backward()
        assert launched == []
    assert launched == [0, 1, 2]


@worlds(2, 3, mpi=(2,))
def test_reductions_begin_before_backward_ends(world):
    """All buckets but the last one's are under way when the first layer's gradient comes."""
    def body(comm):
        model = GPT(GPTConfig(11, context=6, num_layers=3, num_heads=2, width=8, tied=False))
        strategy = DistributedDataParallel(model.initialize(0), comm, 0.002, 0.001)
        begun = []
        strategy.reduce = lambda flat, start=strategy.reduce: (
            begun.append(strategy.flats.index(flat)) or start(flat))
        first, at_first = model.h[0].ln_1.weight, []
        first.slot.ready_hooks.append(lambda slot: at_first.append(len(begun)))
        ids = np.zeros((2, 4), int)
        strategy.backward(model.loss(ids, ids))
        assert begun == [*range(len(strategy.flats))] and len(begun) > 5
        assert at_first[0] >= len(begun) - 3
    world.run(body)


def test_messages_overlap_with_computation():
    """In virtual time: messages are on their way between the first and the last operation."""
    def main(comm):
        model = GPT(GPTConfig(11, context=6, num_layers=3, num_heads=2, width=8)).initialize(0)
        strategy = DistributedDataParallel(model, comm, 0.002, 0.001)
        ids = np.zeros((8, 6), int)
        comm.start_trace()
        strategy.backward(model.loss(ids, ids))
        return comm.stop_trace()
    trace = Cluster(2, flops_per_second=1e9).run(metered(main))[0][0]
    last = max(span.end for span in trace.named_spans())
    early = [m for m in trace.select(label="all_reduce") if m.end < last]
    assert len(early) >= len(trace.select(label="all_reduce")) // 2
