"""Exercises shard_overlap, gather_parameters, transient_gradient_take, fsdp_reshard_others and
fsdp_predict_next, on the simulated cluster."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from minipar.parallel.shards import _overlap
from minipar.parallel.zero.prefetch import Prefetcher
from minipar.parallel.zero.reducer import TransientGradient

from minipar.backend.views import storage
from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.launcher import simulate
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig, Parameter
from minipar.nn.parameter import ones
from minipar.nn.slab import Segment
from minipar.optim import SGD
from minipar.parallel.strategy import Microbatch
from minipar.parallel.zero import zero1 as zero

SHAPES = {"a": (2, 3), "b": (1,), "c": (4,), "d": (3, 3)}


def layout():
    """Four parameters in one run, and their values, each its place in the run."""
    segments, values, start = [], {}, 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        segments.append(Segment(name, start, start + size, tuple((0, n) for n in shape), shape))
        values[name] = np.arange(start, start + size, dtype=float).reshape(shape)
        start += size
    return segments, values, start


@pytest.mark.parametrize("p", [1, 2, 3, 7, 20, 25])
def test_pieces_of_segments_are_what_the_shard_holds(p):
    segments, values, size = layout()
    for start, stop in chunk_bounds(size, p):
        shard, seen = np.arange(start, stop, dtype=float), 0
        for segment in segments:
            piece = _overlap(segment, start, stop)
            if piece is None:
                assert segment.stop <= start or stop <= segment.start, \
                    f"{segment.name} is at {segment.start} … {segment.stop}: some of it is here"
                continue
            assert piece.stop > piece.start, f"an empty piece of {segment.name}: say None"
            held = shard[piece.start:piece.stop]
            assert np.array_equal(held, piece.local_part(values[segment.name])), \
                (f"shard {start} … {stop}: piece {piece.start} … {piece.stop} of {segment.name} is "
                 f"{held}, but its part {piece.flat_range} is "
                 f"{piece.local_part(values[segment.name])}")
            assert piece.shape == held.shape and piece.name == segment.name
            seen += held.size
        assert seen == stop - start, f"{seen} of {stop - start} elements belong to a piece"


def gathered(comm, sizes):
    """Each rank has stepped on its pieces, to 100 r + place; afterwards all have all."""
    buckets, shards = [], []
    for size in sizes:
        bounds = chunk_bounds(size, comm.size)
        data = np.full(size, -1.0)                          # what was there before the step
        start, stop = bounds[comm.rank]
        data[start:stop] = np.arange(start, stop) + 100 * comm.rank
        buckets.append(SimpleNamespace(data=data))
        shards.append(SimpleNamespace(data=data[start:stop], counts=[b - a for a, b in bounds]))
    zero.gather_parameters(comm, buckets, shards)
    return [bucket.data for bucket in buckets]


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("sizes", [[12], [7, 24, 3], [2]])
def test_every_rank_gets_all_pieces(p, sizes):
    for rank, datas in enumerate(Cluster(p).run(lambda comm: gathered(comm, sizes))[0]):
        for data, size in zip(datas, sizes):
            expected = np.concatenate([np.arange(a, b) + 100.0 * r
                                       for r, (a, b) in enumerate(chunk_bounds(size, p))])
            assert np.array_equal(data, expected), f"rank {rank} of {p} has {data}"


def test_every_element_is_sent_p_minus_1_times():
    cluster = Cluster(4, trace=True)
    cluster.run(lambda comm: gathered(comm, [400, 800]))
    assert cluster.trace.bytes_sent() <= 8 * 1200 * 3, "an all-gather sends n (p - 1) elements"


@pytest.fixture
def passing():
    """The gradient of a run of two parameters, of 6 and 2 elements."""
    parameters = [Parameter((2, 3), ones), Parameter((2,), ones)]
    segments = [Segment("a", 0, 6, ((0, 2), (0, 3)), (2, 3)), Segment("b", 6, 8, ((0, 2),), (2,))]
    gradient = TransientGradient(parameters, segments, np.zeros(0))

    def whole() -> np.ndarray:
        if gradient.flat is None:
            gradient.flat = np.full(8, np.nan)          # a new array has arbitrary values
        return gradient.flat
    gradient.whole = whole
    return gradient


def test_taken_gradient_is_zero_where_nothing_came(passing):
    passing.parameters[1].slot.accumulate(np.array([7.0, 8.0]))
    assert np.array_equal(passing.take(), [0, 0, 0, 0, 0, 0, 7, 8])
    taken = passing.take()
    assert taken is not None, "a run that nobody used is reduced all the same: zeros"
    assert np.array_equal(taken, np.zeros(8))


def test_taken_gradient_is_the_array_itself(passing):
    passing.parameters[0].slot.accumulate(np.ones((2, 3)))
    place = passing.parameters[0].grad
    assert np.shares_memory(place, passing.take()), "a copy takes the memory twice"


def test_taken_gradient_is_forgotten(passing):
    for parameter in passing.parameters:
        parameter.slot.accumulate(np.ones(parameter.shape))
    taken = passing.take()
    held = weakref.ref(storage(taken))
    gc.disable()
    del taken
    alive = held() is not None
    gc.enable()
    assert not alive, "somebody still holds the whole gradient: nothing is saved"
    passing.parameters[0].slot.accumulate(np.full((2, 3), 5.0))
    assert np.array_equal(passing.take(), [5] * 6 + [0, 0]), "the next step begins from nothing"


class Gathered:
    """A unit that is gathered, or not."""

    def __init__(self, unsharded=True, keep=False):
        self.unsharded, self.keep_unsharded = np.ones(3) if unsharded else None, keep

    def reshard(self):
        assert self.unsharded is not None, "it was not gathered: nothing to release"
        self.unsharded = None


def test_room_is_made_of_what_is_not_wanted():
    units = [Gathered() for _ in range(5)]
    Prefetcher._reshard_others(SimpleNamespace(units=units), units[3], units[1])
    assert [u.unsharded is not None for u in units] == [False, True, False, True, False]


def test_room_is_made_with_nothing_to_come():
    units = [Gathered(), Gathered(unsharded=False), Gathered()]
    Prefetcher._reshard_others(SimpleNamespace(units=units), units[2], None)
    assert [u.unsharded is not None for u in units] == [False, False, True]


def test_units_to_keep_stay():
    units = [Gathered(keep=True), Gathered(), Gathered(unsharded=False, keep=True), Gathered()]
    Prefetcher._reshard_others(SimpleNamespace(units=units), units[3])
    assert [u.unsharded is not None for u in units] == [True, False, False, True]


CONFIG = GPTConfig(8, context=8, num_layers=4, num_heads=2, width=16, tied=False)
BLOCK = 4 * (12 * 16 * 16 + 13 * 16)        # bytes of a block's parameters


def train(comm, **options):
    """Two steps; the most gathered bytes at a time in the second, bytes sent and time for it."""
    ids = np.random.default_rng(comm.rank).integers(0, 8, (8, 9))
    ledger = Ledger(now=comm.now)
    with ledger.recording():
        strategy = shard_by_block(GPT(CONFIG).initialize(), comm, **options)
        optimizer = SGD(strategy.slabs, 0.1)
        for step in range(2):
            begun, ledger.peak_of["communication"] = comm.now(), 0
            comm.start_trace()
            optimizer.zero_grad()
            batch = Microbatch(ids[:, :-1], ids[:, 1:], np.arange(8))
            strategy.forward_backward([batch], step=step)
            strategy.step(optimizer)
            sent = comm.stop_trace().bytes_sent()
    return ledger.peak_of["communication"], sent, comm.now() - begun


def run(**options):
    cluster = Cluster(2, flops_per_second=1e9, latency=1e-6, bandwidth=1e9)
    return simulate(lambda comm: train(comm, **options), cluster)[0][0]


def test_two_gathered_blocks_at_a_time():
    assert run()[0] == 2 * BLOCK


def test_what_stays_is_gathered_once():
    psi = GPT(CONFIG).num_parameters()
    assert run(reshard_after_forward=False)[1] == 4 * 2 * psi // 2, "2Ψ (p - 1)/p elements"


def test_the_next_unit_is_the_plan_s():
    a, b, c = Gathered(), Gathered(), Gathered()

    def expected(plan, uses):
        return Prefetcher._predict_next(SimpleNamespace(last_uses=plan, uses=uses))
    plan = [a, b, c, b, a]
    assert [expected(plan, plan[:n]) for n in range(1, 5)] == plan[1:]
    assert expected(plan, plan) is None, "nothing comes after the last use"
    assert expected(plan, [*plan, a]) is None, "this step has gone on longer than the one before"
    assert expected([], [a]) is None, "the first step has no plan"
    assert expected(plan, [a, c]) is None, "this step goes another way: the plan says nothing"
    assert expected(plan, [a, c, c]) is None, "this step goes another way: the plan says nothing"


def test_prefetching_hides_messages():
    with_it, without = run(), run(prefetch=False)
    assert with_it[:2] == without[:2], "the same units, the same bytes"
    assert with_it[2] < without[2], "on its way while the unit before computes"
