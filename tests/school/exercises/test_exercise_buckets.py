"""Exercises assign_buckets, in_order_ready, unused_parameters and accumulate_microbatches."""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.nn import MLP
from minipar.parallel import strategy
from minipar.parallel.data import ddp
from minipar.parallel.data.ddp import DistributedDataParallel, ReductionQueue
from minipar.parallel.zero.zero2 import ZeRO2

# Sizes, limits and the buckets of PyTorch 2.13 (compute_bucket_assignment_by_size), in bytes.
PYTORCH = [
    ([400, 800, 1200, 1600, 2000], [1024], [[0, 1], [2], [3], [4]]),
    ([400, 800, 1200, 1600, 2000], [400, 2048], [[0], [1, 2, 3], [4]]),
    ([4000, 40, 40, 40, 20000, 40, 40], [1024, 4096], [[0], [1, 2, 3, 4], [5, 6]]),
]


@pytest.mark.parametrize("sizes, limits, expected", PYTORCH)
def test_buckets_are_pytorchs(sizes, limits, expected):
    assert ddp.assign_buckets(sizes, limits) == expected


def test_buckets_are_closed_at_their_limit():
    assert ddp.assign_buckets([4, 4, 4, 4, 4], [8]) == [[0, 1], [2, 3], [4]]
    assert ddp.assign_buckets([4, 4, 4, 4], [7]) == [[0, 1], [2, 3]]
    assert ddp.assign_buckets([4, 4, 4, 4], [9]) == [[0, 1, 2], [3]]


def test_buckets_have_limits_of_their_own():
    assert ddp.assign_buckets([5] * 6, [4, 10]) == [[0], [1, 2], [3, 4], [5]]
    assert ddp.assign_buckets([1] * 9, [1, 2, 3]) == [[0], [1, 2], [3, 4, 5], [6, 7, 8]]


def test_no_bucket_is_empty():
    assert ddp.assign_buckets([], [8]) == []
    assert ddp.assign_buckets([8, 8], [8]) == [[0], [1]]


def in_order(num_groups):
    """A ReductionQueue of an MLP, a group for each layer; what it started; the model."""
    model, started = MLP([2] * (num_groups + 1)).initialize(0), []
    parameters = model.parameters()
    groups = [parameters[2 * i:2 * i + 2] for i in range(num_groups)]
    order = ReductionQueue(groups, started.append)
    return order, started, model


def test_groups_are_started_in_order():
    order, started, _ = in_order(4)
    order.awaited = [set(slots) for slots in order.groups]
    history = []
    for i, member in ((1, 0), (3, 1), (1, 1), (0, 1), (0, 0), (3, 0), (2, 0), (2, 1)):
        order._on_ready(i, order.groups[i][member])
        history.append(list(started))
    assert history == [[], [], [], [], [0, 1], [0, 1], [0, 1], [0, 1, 2, 3]]


def test_each_group_is_started_once_and_early():
    order, started, _ = in_order(3)
    with order._watching([set(slots) for slots in order.groups]):
        for i in range(3):
            for slot in order.groups[i]:
                assert started == list(range(i))
                order._on_ready(i, slot)
    assert started == [0, 1, 2]


def reached(model, num_layers):
    """A loss that uses only the last `num_layers` layers of the model."""
    x = Tensor(np.ones((1, 2), np.float32))
    for layer in list(model)[-num_layers:]:
        x = layer(x)
    return x.sum()


@pytest.mark.parametrize("num_used", [1, 2])
def test_unused_parameters_are_not_waited_for(num_used):
    order, started, model = in_order(3)
    loss = reached(model, 2 * num_used - 1)         # layers and the activations between them
    assert len(order.gradients_of(loss)) == 3, \
        "a group that is not used here is used elsewhere: it must stay"
    with order.watch(loss):
        loss.backward()
    assert started == [0, 1, 2]


def test_used_ones_are_waited_for():
    order, started, model = in_order(2)
    order.groups[1].append(order.groups[0].pop())       # now each group has one that is not used
    loss = reached(model, 1)
    assert [len(slots) for slots in order.gradients_of(loss)] == [0, 2]
    with order.watch(loss):
        loss.backward()
    assert started == [0, 1]


def test_every_backward_begins_anew():
    order, started, model = in_order(3)
    for _ in range(2):
        loss = reached(model, 5)
        with order.watch(loss):
            assert [len(slots) for slots in order.awaited] == [2, 2, 2]
            loss.backward()
    assert started == [0, 1, 2] * 2


DRAW = np.random.default_rng(0)
IMAGES, LABELS = DRAW.standard_normal((12, 4)), DRAW.integers(0, 3, 12)
LABELS[[1, 4, 5, 8]] = -100                 # these do not count
CUTS = {"one": [12], "even": [4, 4, 4], "uneven": [7, 4, 1], "one without a target": [4, 2, 6],
        "one without a row": [5, 0, 7]}


def accumulated(comm, make, cuts):
    """(loss, gradient as far as it is here) of the rows of this rank in microbatches."""
    model = MLP([4, 5, 3]).initialize(0, dtype=np.float64)
    trained, batches, first = make(model, comm), [], 0
    for length in cuts:
        rows = np.arange(first, first + length)[comm.rank::comm.size]
        batches.append(strategy.Microbatch(IMAGES[rows], LABELS[rows], rows))
        first += length
    before = comm.trace.bytes_sent() if comm.trace else 0
    loss = trained.forward_backward(batches)
    sent = comm.trace.bytes_sent() - before if comm.trace else 0
    return loss, [slab.complete_grad().copy() for slab in trained.slabs], sent


ALONE = MLP([4, 5, 3]).initialize(0, dtype=np.float64)
ALONE.loss(IMAGES, LABELS, 8).backward()


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_accumulated_is_one_big_batch(p, cuts):
    expected = ALONE.loss(IMAGES, LABELS, 8).item()
    results, _ = Cluster(p).run(
        lambda comm: accumulated(comm, DistributedDataParallel, CUTS[cuts]))
    for rank, (loss, (grad,), _) in enumerate(results):
        assert loss == pytest.approx(expected, rel=1e-12), f"rank {rank} of {p}: the loss"
        error = np.max(np.abs(grad - ALONE.slabs[0].grad))
        assert error < 1e-12, f"rank {rank} of {p}: the gradient is off by {error:.2g}"


def test_gradients_travel_once():
    once, thrice = (Cluster(2, trace=True).run(
        lambda comm, cuts=cuts: accumulated(comm, DistributedDataParallel, CUTS[cuts]))[0][0][2]
        for cuts in ("one", "even"))
    assert once == thrice > 0, f"{once} bytes for one microbatch, {thrice} for three"


def test_the_loss_is_summed_once():
    def rounds(cuts):
        cluster = Cluster(2, trace=True)
        cluster.run(lambda comm: accumulated(comm, DistributedDataParallel, CUTS[cuts]))
        return cluster.trace.num_sent(label="control")
    assert rounds("even") == rounds("one") > 0, "one sum for the batch, not for each microbatch"


def test_strategies_without_room_reduce_each():
    results, _ = Cluster(2).run(lambda comm: accumulated(comm, ZeRO2, CUTS["uneven"]))
    pieces = [grad for _, (grad,), _ in results]
    assert np.max(np.abs(np.concatenate(pieces) - ALONE.slabs[0].grad)) < 1e-12


def test_no_microbatches_are_refused():
    with pytest.raises(ValueError):
        Cluster(1).run(lambda comm: accumulated(comm, DistributedDataParallel, []))
