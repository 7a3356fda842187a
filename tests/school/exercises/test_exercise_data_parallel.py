"""Exercises data_parallel_after_backward, nearest_by_bits and global_grad_norm."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.nn import MLP, Parameter, Slab
from minipar.nn.parameter import ones
from minipar.number_formats import BFLOAT16
from minipar.number_formats.rounding import nearest_by_bits
from minipar.optim import clip
from minipar.parallel.data.classic_data_parallel import DataParallel
from minipar.parallel.flats import Flat, Piece

SIZES = [1, 2, 3, 4]


def draw(rank, *shape):
    """Whole numbers, so that sums are exact in any order."""
    return np.random.default_rng([rank, *shape]).integers(-9, 10, shape).astype(np.float64)


def finished(comm, skipped=lambda rank: ()):
    """A driver after the exchange; the gradients came in, but for parameters `skipped(rank)`."""
    model = MLP([3, 4, 2]).initialize(0, dtype=np.float64)
    driver = DataParallel(model, comm)
    for slab in model.slabs:
        slab.grad[...] = np.nan             # of an earlier step
    for i, parameter in enumerate(model.parameters()):
        if i not in skipped(comm.rank):
            parameter.slot.accumulate(draw(comm.rank + 10 * i, *parameter.shape))
    driver.finish()
    return [parameter.grad for parameter in model.parameters()]


SHAPES = [(3, 4), (4,), (4, 2), (2,)]


@pytest.mark.parametrize("p", SIZES)
def test_finish_leaves_the_sum_on_the_root(p):
    root = Cluster(p).run(finished)[0][0]
    for i, (grad, shape) in enumerate(zip(root, SHAPES)):
        expected = sum(draw(rank + 10 * i, *shape) for rank in range(p))
        assert np.array_equal(grad, expected), f"{p} ranks: parameter {i} is not the sum of all"


def test_finish_where_some_gradients_are_missing():
    root = Cluster(3).run(lambda comm: finished(comm, lambda rank: (rank, 3)))[0][0]
    for i, (grad, shape) in enumerate(zip(root, SHAPES)):
        parts = [draw(rank + 10 * i, *shape) for rank in range(3) if i not in (rank, 3)]
        assert np.array_equal(grad, sum(parts, np.zeros(shape))), \
            f"parameter {i}, which not all ranks used, is not the sum of what there is"


def test_finish_leaves_nothing_elsewhere():
    for rank, grads in enumerate(Cluster(3).run(finished)[0][1:], start=1):
        assert all(grad is None for grad in grads), \
            f"rank {rank} kept gradients, which its next backward would add to"


def test_finish_sends_each_gradient_once():
    cluster = Cluster(4, trace=True)
    cluster.run(finished)
    messages = cluster.trace.select(label="reduce gradients")
    n = 8 * sum(np.prod(shape, dtype=int) for shape in SHAPES)
    assert sorted((m.source, m.dest, m.num_bytes) for m in messages) == [
        (1, 0, n), (2, 0, n), (3, 0, n)]


def test_bfloat16_is_the_nearest():
    rng = np.random.default_rng(0)
    numbers = (rng.standard_normal(4000) * 10.0 ** rng.integers(-30, 30, 4000)).astype(np.float32)
    before, codes = numbers.copy(), BFLOAT16.encode(numbers)
    near = [np.abs(BFLOAT16.decode((codes.astype(int) + step).astype(np.uint16))
                   .astype(np.float64) - numbers) for step in (-1, 0, 1)]
    assert np.all(near[1] <= near[0]) and np.all(near[1] <= near[2])
    assert np.array_equal(numbers, before)


def test_bfloat16_ties_go_to_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F817FFF, 0x3FFF8000, 0x7F7FFFFF],
                    np.uint32)
    rounded = nearest_by_bits(bits, 16)
    assert rounded.dtype == np.uint32
    assert [hex(r) for r in rounded.tolist()] == [
        "0x3f800000", "0x3f820000", "0x3f810000", "0x3f810000", "0x40000000", "0x7f800000"]


@pytest.mark.parametrize("drop", [1, 2, 13, 22])
def test_any_number_of_bits_is_dropped(drop):
    for dtype in (np.uint32, np.uint64):
        bits = np.arange(100, dtype=dtype) << max(drop - 3, 0)
        expected = [round(b / 2**drop) << drop for b in bits.tolist()]      # Python's ties to even
        assert nearest_by_bits(bits, drop).tolist() == expected


def piece(comm, whole):
    """This rank's piece of a parameter, its gradients those of `whole`."""
    flat = Flat(Slab([("p", Parameter(whole.shape, ones))], whole), [0], comm, comm)
    mine = flat.mine(whole).copy()
    found = Piece(flat, comm, mine, mine)
    found.has_grad = True
    return found


def replicated(value):
    """A slab of 12 parameters that every rank has, all their gradients `value`."""
    (slab,) = MLP([3, 3]).initialize(0, dtype=np.float64).slabs
    for parameter in slab.parameters:
        parameter.slot.accumulate(np.full(parameter.shape, float(value)))
    return slab


@pytest.mark.parametrize("p", SIZES)
def test_norm_of_replicated_and_sharded(p):
    """All gradients 1: the norm is √ of the number of parameters, however they lie."""
    for num_slabs, num_flats in ((1, 0), (0, 1), (1, 2), (2, 3)):
        results, _ = Cluster(p).run(lambda comm, s=num_slabs, n=num_flats: clip.grad_norm(
            [replicated(1)] * s + [piece(comm, np.ones(2 * p - 1)) for _ in range(n)]))
        expected = (12 * num_slabs + (2 * p - 1) * num_flats)**0.5
        assert results == pytest.approx([expected] * p, rel=1e-12), \
            f"{p} ranks, {num_slabs} slabs, {num_flats} sharded flats"


def test_norm_over_several_groups():
    """One flat is shared by all four ranks, another by each pair (and the pairs hold the same)."""
    def main(comm):
        pair = comm.split(comm.rank // 2)
        return clip.grad_norm([piece(comm, np.arange(7.0)), piece(pair, np.array([3.0, 4.0, 5.0])),
                               replicated(2)])
    expected = (np.sum(np.arange(7.0)**2) + 50 + 4 * 12)**0.5
    assert Cluster(4).run(main)[0] == pytest.approx([expected] * 4, rel=1e-12)


def test_norm_takes_one_message_round_a_group():
    def count(num_flats):
        cluster = Cluster(4, trace=True)
        cluster.run(lambda comm: clip.grad_norm([piece(comm, np.ones(7))
                                                 for _ in range(num_flats)]))
        return cluster.trace.num_sent(label="control")
    assert count(8) == count(1) > 0, "one sum for each communicator, not for each shard"
