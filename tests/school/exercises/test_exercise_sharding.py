"""Exercises shard_overlap, gather_parameters, transient_gradient_take, fsdp_reshard_others and
fsdp_predict_next, on the simulated cluster."""

import gc
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from minipar.backend.views import storage
from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.launcher import simulate
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig, Parameter, Slab
from minipar.nn.parameter import ones
from minipar.nn.slab import Segment
from minipar.optim import SGD
from minipar.parallel import flats
from minipar.parallel.strategy import Microbatch
from minipar.parallel.zero.fsdp import FullyShardedDataParallel
from minipar.parallel.zero.zero1 import ZeRO1
from minipar.parallel.zero.zero2 import ZeRO2

SHAPES = {"a": (2, 3), "b": (1,), "c": (4,), "d": (3, 3)}


def layout():
    """Four parameters in one flat, and their values, each its place in the flat."""
    segments, values, start = [], {}, 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        segments.append(Segment(name, start, start + size, tuple((0, n) for n in shape), shape))
        values[name] = np.arange(start, start + size, dtype=float).reshape(shape)
        start += size
    return segments, values, start


@pytest.mark.parametrize("p", [1, 2, 3, 7, 20, 25])
def test_parts_of_segments_are_what_the_piece_holds(p):
    segments, values, size = layout()
    for start, stop in chunk_bounds(size, p):
        piece, seen = np.arange(start, stop, dtype=float), 0
        for segment in segments:
            part = flats.overlap(segment, start, stop)
            if part is None:
                assert segment.stop <= start or stop <= segment.start, \
                    f"{segment.name} is at {segment.start} … {segment.stop}: some of it is here"
                continue
            assert part.stop > part.start, f"an empty part of {segment.name}: say None"
            held = piece[part.start:part.stop]
            assert np.array_equal(held, part.local_part(values[segment.name])), \
                (f"piece {start} … {stop}: part {part.start} … {part.stop} of {segment.name} is "
                 f"{held}, but its flat range {part.flat_range} is "
                 f"{part.local_part(values[segment.name])}")
            assert part.shape == held.shape and part.name == segment.name
            seen += held.size
        assert seen == stop - start, f"{seen} of {stop - start} elements belong to a part"


def slab_of(*shapes):
    """A slab of parameters with these shapes."""
    return Slab([(f"p{i}", Parameter(shape, ones)) for i, shape in enumerate(shapes)], np.empty(0))


def gathered(comm, sizes):
    """Each rank has stepped on its pieces, to 100 r + place; afterwards all have all."""
    slab = slab_of(*((size,) for size in sizes))
    strategy = SimpleNamespace(piece_of={}, flats=[flats.Flat(slab, [i], comm, comm)
                                                   for i in range(len(sizes))])
    for flat in strategy.flats:
        flat.data[...] = -1                                 # what was there before the step
        mine = flat.mine(slab.data)
        mine[...] = np.arange(*flat.bounds) + 100 * comm.rank
        strategy.piece_of[flat] = SimpleNamespace(data=mine)
    ZeRO1.parameters_changed(strategy)
    return [flat.data for flat in strategy.flats]


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
    """A flat of two parameters, of 6 and 2 elements, and the function that takes its gradient."""
    slab = slab_of((2, 3), (2,))
    (flat,) = Cluster(1).run(lambda comm: flats.Flat(slab, [0, 1], comm, comm))[0]
    strategy = SimpleNamespace(whole={})

    def buffer(segment):
        if flat not in strategy.whole:
            strategy.whole[flat] = np.full(8, np.nan)       # a new array has arbitrary values
        return strategy.whole[flat][segment.start:segment.stop].reshape(segment.shape)
    for parameter, segment in zip(flat.parameters, flat.layout):
        parameter.slot.get_grad_buffer = partial(buffer, segment)
    return flat, lambda: ZeRO2.take(strategy, flat)


def test_taken_gradient_is_zero_where_nothing_came(passing):
    flat, take = passing
    flat.parameters[1].slot.accumulate(np.array([7.0, 8.0]))
    assert np.array_equal(take(), [0, 0, 0, 0, 0, 0, 7, 8])
    taken = take()
    assert taken is not None, "a flat that nobody used is reduced all the same: zeros"
    assert np.array_equal(taken, np.zeros(8))


def test_taken_gradient_is_the_array_itself(passing):
    flat, take = passing
    flat.parameters[0].slot.accumulate(np.ones((2, 3)))
    place = flat.parameters[0].grad
    assert np.shares_memory(place, take()), "a copy takes the memory twice"


def test_taken_gradient_is_forgotten(passing):
    flat, take = passing
    for parameter in flat.parameters:
        parameter.slot.accumulate(np.ones(parameter.shape))
    taken = take()
    held = weakref.ref(storage(taken))
    gc.disable()
    del taken
    alive = held() is not None
    gc.enable()
    assert not alive, "somebody still holds the whole gradient: nothing is saved"
    flat.parameters[0].slot.accumulate(np.full((2, 3), 5.0))
    assert np.array_equal(take(), [5] * 6 + [0, 0]), "the next step begins from nothing"


class Gathered:
    """A unit that is gathered, or not."""

    def __init__(self, is_gathered=True, reshards=True):
        self.arrays, self.reshards = [np.ones(3)] if is_gathered else None, reshards

    def free(self):
        self.arrays = None


def left(units, *wanted):
    """True for each unit that is still gathered when the others are freed."""
    FullyShardedDataParallel._free_others(SimpleNamespace(units=units), *wanted)
    return [unit.arrays is not None for unit in units]


def test_room_is_made_of_what_is_not_wanted():
    units = [Gathered() for _ in range(5)]
    assert left(units, units[3], units[1]) == [False, True, False, True, False]


def test_room_is_made_with_nothing_to_come():
    units = [Gathered(), Gathered(is_gathered=False), Gathered()]
    assert left(units, units[2], None) == [False, False, True]


def test_units_to_keep_stay():
    units = [Gathered(reshards=False), Gathered(), Gathered(is_gathered=False, reshards=False),
             Gathered()]
    assert left(units, units[3]) == [True, False, False, True]


CONFIG = GPTConfig(8, context=8, num_layers=4, num_heads=2, width=16, tied=False)
BLOCK = 4 * (12 * 16 * 16 + 13 * 16)        # bytes of a block's parameters


def train(comm, **options):
    """Two steps; the most gathered bytes at a time in the second, bytes sent and time for it."""
    ids = np.random.default_rng(comm.rank).integers(0, 8, (8, 9))
    ledger = Ledger(now=comm.now)
    with ledger.recording():
        strategy = FullyShardedDataParallel(GPT(CONFIG).initialize(), comm, **options)
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


def test_the_next_unit_is_that_of_the_last_step():
    a, b, c = Gathered(), Gathered(), Gathered()

    def expected(last, uses):
        return FullyShardedDataParallel._predict_next(SimpleNamespace(last_uses=last, uses=uses))
    last = [a, b, c, b, a]
    assert [expected(last, last[:n]) for n in range(1, 5)] == last[1:]
    assert expected(last, last) is None, "nothing comes after the last use"
    assert expected(last, [*last, a]) is None, "this step has gone on longer than the one before"
    assert expected([], [a]) is None, "no step was before the first"
    assert expected(last, [a, c]) is None, "this step goes another way: the last says nothing"
    assert expected(last, [a, c, c]) is None, "this step goes another way: the last says nothing"


def test_prefetching_hides_messages():
    with_it, without = run(), run(prefetch=False)
    assert with_it[:2] == without[:2], "the same units, the same bytes"
    assert with_it[2] < without[2], "on its way while the unit before computes"
