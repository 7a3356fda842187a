"""Quantized collectives: the bound of the error, exact bytes, equal replicas, a ring that is worse.
"""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_gather, chunk_bounds, reduce_scatter
from minipar.parallel.compare_ranks import ranks_that_differ
from minipar.parallel.wire_formats.quantized.block_codec import BlockCodec
from minipar.parallel.wire_formats.quantized.quantized_collectives import QuantizedWire
from minipar.parallel.wire_formats.wire import UNCOMPRESSED
from minipar.testing import worlds
from tests.support.block_numbers import CODECS, EIGHT, draw, half_steps


@worlds(1, 2, 3, 4, 7, mpi=(4,))
@CODECS
@pytest.mark.parametrize("n", [1, 5, 600, 1601])
def test_all_reduce_is_the_sum_within_two_roundings_and_its_formula(world, n, codec):
    """Odd sizes, p that does not divide, ranks without a piece."""
    def body(comm):
        every, p = draw(comm.size, n), comm.size
        counts = [stop - start for start, stop in chunk_bounds(n, p)]
        flat = every[comm.rank].copy()
        out = flat if n > 5 else np.full_like(flat, np.nan)
        comm.start_trace()
        assert QuantizedWire(codec).all_reduce(comm, flat, out=out) is out
        trace, flat = comm.stop_trace(), out
        exact = every.astype(np.float64).sum(0)
        bound = sum(half_steps(one, codec, counts) for one in every)
        bound += half_steps(np.abs(exact) + bound, codec, counts)
        assert (np.abs(flat - exact) <= (bound if p > 1 else 1e-6)).all()
        assert not ranks_that_differ(comm, flat.tobytes())
        sizes = [codec.num_bytes(count) for count in counts]
        assert trace.bytes_sent(comm.rank, "all_to_all") == sum(sizes) - sizes[comm.rank]
        assert trace.bytes_sent(comm.rank, "all_gather") == sum(sizes) - sizes[(comm.rank + 1) % p]
        assert trace.bytes_sent(comm.rank) == (2 * sum(sizes) - sizes[comm.rank]
                                               - sizes[(comm.rank + 1) % p])
    world.run(body)


@worlds(1, 2, 3, 5, mpi=(3,))
@pytest.mark.parametrize("counts", ["even", "odd", "one has all"])
def test_reduce_scatter_and_all_gather(world, counts):
    def body(comm):
        p = comm.size
        lengths = {"even": [300] * p, "odd": [(7 * r) % 5 * 111 for r in range(p)],
                   "one has all": [500] + [0] * (p - 1)}[counts]
        every, sums = draw(p, sum(lengths)), QuantizedWire()
        flat = every[comm.rank].copy()
        start = sum(lengths[:comm.rank])
        mine = slice(start, start + lengths[comm.rank])
        piece = sums.reduce_scatter(comm, flat, counts=lengths)
        bound = sum(half_steps(every[r], EIGHT, lengths) for r in range(p) if r != comm.rank)
        error = np.abs(piece - every.astype(np.float64).sum(0)[mine])
        assert (error <= (bound[mine] if p > 1 else 0) + 1e-6).all()
        assert piece.base is flat and np.shares_memory(piece, flat[mine]) or not piece.size
        whole = np.empty(sum(lengths), np.float32)
        assert sums.all_gather(comm, every[0][mine].copy(), counts=lengths, out=whole) is whole
        assert (np.abs(whole - every[0]) <= half_steps(every[0], EIGHT, lengths)).all()
        assert not ranks_that_differ(comm, whole.tobytes())
        assert sums.feedback.residuals == {}                # no key was given
    world.run(body)


@worlds(4, mpi=(4,))
def test_fewer_bytes_than_float32_by_a_factor_of_almost_four(world):
    def body(comm):
        n, p, sent = 1 << 16, comm.size, {}
        for name, sums in (("float32", UNCOMPRESSED), ("int8", QuantizedWire()),
                           ("int4", QuantizedWire(BlockCodec(bits=4)))):
            comm.start_trace()
            flat = draw(p, n)[comm.rank]
            sums.all_reduce(comm, flat, out=flat)
            sums.reduce_scatter(comm, draw(p, n)[comm.rank], counts=[n // p] * p, in_place=True)
            sums.all_gather(comm, np.ones(n // p, np.float32), counts=[n // p] * p,
                            out=np.empty(n, np.float32))
            sent[name] = comm.stop_trace().bytes_sent(comm.rank)
        assert sent["float32"] == 4 * 4 * n * (p - 1) // p
        assert sent["int8"] == 4 * (n + 4 * n // 256) * (p - 1) // p
        assert sent["float32"] / sent["int8"] == pytest.approx(256 / 65) and 256 / 65 > 3.9
        assert sent["float32"] / sent["int4"] == pytest.approx(512 / 66)
    world.run(body)


def rounding_ring(comm, flat: np.ndarray, codec: BlockCodec) -> np.ndarray:
    """A ring all-reduce that passes on codes, and rounds every partial sum again."""
    p, length = comm.size, flat.size // comm.size

    def add(a, b, out):
        out[...] = codec.encode(codec.decode(a, length) + codec.decode(b, length))

    messages = np.concatenate([codec.encode(piece) for piece in flat.reshape(p, length)])
    sums = all_gather(comm, reduce_scatter(comm, messages, op=add, algorithm="ring"))
    return np.concatenate([codec.decode(message, length) for message in sums.reshape(p, -1)])


@worlds(4, 8, 16, mpi=(4,))
def test_a_ring_that_rounds_in_every_round_is_worse_the_more_ranks_there_are(world):
    """Gradients that agree: partial sums of k ranks have steps k times as coarse.

    With steps s for one rank, the ring's variance is about Σ (k s)² / 12 over k ≤ p, and that of
    two roundings (p s² + (p s)²) / 12: the quotient of the errors is near √(p / 3).
    """
    def body(comm):
        p, n = comm.size, 256 * comm.size
        random = np.random.default_rng(0)
        common = random.standard_normal(n)
        every = (common + 0.1 * random.standard_normal((p, n))).astype(np.float32)
        exact = every.astype(np.float64).sum(0)

        def error(result):
            return np.linalg.norm(result - exact) / np.linalg.norm(exact)

        mine = every[comm.rank].copy()
        ours = error(QuantizedWire().all_reduce(comm, mine, out=mine))
        ring = error(rounding_ring(comm, every[comm.rank].copy(), EIGHT))
        assert ours < 0.009                                  # whatever p is
        assert ring / ours == pytest.approx((p / 3)**0.5, rel=0.25)
    world.run(body)


def test_replicas_are_equal_on_many_ranks():
    """A piece may be shorter than a block, or empty."""
    def body(comm):
        flat = draw(1, 20, comm.rank)[0]
        QuantizedWire().of("gradient").all_reduce(comm, flat, out=flat)
        assert not ranks_that_differ(comm, flat.tobytes())
    Cluster(24).run(body)


@worlds(1, 3, mpi=(3,))
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("feedback", [True, False])
def test_what_is_not_finite_reaches_every_rank_and_is_forgotten(world, bad, feedback):
    def body(comm):
        sums, n = QuantizedWire(feedback=feedback), 1000
        for step, rank in enumerate((None, comm.size - 1, 0, None)):
            flat = draw(comm.size, n, step)[comm.rank]
            if comm.rank == rank:
                flat[7] = bad
            sums.of("gradient").all_reduce(comm, flat, out=flat)
            assert np.isfinite(flat).all() == (rank is None)
            assert not ranks_that_differ(comm, np.isnan(flat).tobytes())
    world.run(body)
