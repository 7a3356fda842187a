"""Error feedback: what is residual stays small, follows the scale, and is told to the ledger."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.memory.ledger import Ledger
from minipar.parallel.wire_formats.quantized.quantized_collectives import QuantizedWire
from minipar.testing import worlds
from tests.support.block_numbers import CODECS, FOUR, draw


def reduced(kind, comm, sums, flat, counts):
    """One reduction by name: the piece, and where it is."""
    if kind == "all_reduce":
        return sums.of("gradient").all_reduce(comm, flat, out=flat), slice(None)
    start = sum(counts[:comm.rank])
    return (sums.of("gradient").reduce_scatter(comm, flat, counts=counts),
            slice(start, start + counts[comm.rank]))


@worlds(2, mpi=(3,))
@CODECS
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
@pytest.mark.one_in(2)
def test_with_feedback_the_error_of_a_sum_over_steps_does_not_grow(world, kind, codec):
    """One large number in each block hides small ones that always have the same sign."""
    def body(comm):
        p, n, steps = comm.size, 200, 40
        gradient = np.full(n, 1e-3, np.float32)
        gradient[::32] = 1
        counts = [stop - start for start, stop in chunk_bounds(n, p)]
        errors = {}
        for feedback in (True, False):
            sums, total, worst = QuantizedWire(codec, feedback), 0.0, []
            for step in range(1, steps + 1):
                piece, where = reduced(kind, comm, sums, gradient.copy(), counts)
                total = total + piece.astype(np.float64)
                worst.append(np.abs(total - step * p * gradient.astype(np.float64)[where]).max())
            errors[feedback] = worst
        step = 2 * p / (2**codec.bits - 2)              # of the sum; those of the ranks add to it
        assert max(errors[True]) <= 2.2 * step          # however many steps
        lost = p if kind == "all_reduce" else p - 1     # one's own piece is not rounded
        assert errors[False][-1] == pytest.approx(steps * lost * 1e-3, rel=1e-3)
        assert errors[False][-1] > max(errors[True]) or codec is FOUR
    world.run(body)


@worlds(3, mpi=(3,))
def test_what_is_owed_follows_the_scale_of_the_loss(world):
    """Powers of two: to the last bit what a run without scales gives."""
    def body(comm):
        found = []
        for scales in ((1.0,) * 5, (1024.0, 1024.0, 2.0, 2.0, 64.0)):
            sums, totals = QuantizedWire(), []
            for step, scale in enumerate(scales):
                sums.start_batch(scale)
                flat = draw(comm.size, 700, step)[comm.rank] * np.float32(scale)
                sums.of("gradient").all_reduce(comm, flat, out=flat)
                totals.append(flat / np.float32(scale))
            found.append(totals)
        np.testing.assert_array_equal(*found)
        without = QuantizedWire(feedback=False)
        without.start_batch(8.0)
        assert without.feedback is None
    world.run(body)


@pytest.mark.parametrize("kind, share", [("all_reduce", lambda p: 1),
                                         ("reduce_scatter", lambda p: (p - 1) / p)])
def test_the_ledger_is_told_what_is_owed(kind, share):
    def body(comm):
        ledger, n = Ledger(), 1200
        with ledger.recording():
            sums = QuantizedWire()
            for _ in range(3):
                reduced(kind, comm, sums, draw(comm.size, n)[comm.rank],
                        [n // comm.size] * comm.size)
        assert ledger.live_of["communication"] == 4 * n * share(comm.size)
    for p in (2, 3, 4):
        Cluster(p).run(body)
