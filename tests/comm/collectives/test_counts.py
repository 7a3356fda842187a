"""Lengths of pieces as NumPy's own integers, which are small and wrap around."""

import numpy as np
import pytest

from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.collectives import all_gather, all_to_all, gather, reduce_scatter, scatter
from minipar.testing import worlds


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint64])
@worlds(1, 3, mpi=(2,))
def test_counts_may_be_small_numbers_of_numpy(world, dtype):
    """100 + 100 is more than an int8 holds."""
    def body(comm):
        p, counts, table = comm.size, np.full(comm.size, 100, dtype), np.full(2 * [comm.size], 100,
                                                                              dtype)
        mine, whole = np.arange(100) + comm.rank, np.arange(100 * p)
        right = np.concatenate([np.arange(100) + rank for rank in range(p)])
        assert np.array_equal(all_gather(comm, mine, counts=counts), right)
        found = gather(comm, mine, counts=counts)
        assert comm.rank or np.array_equal(found, right)
        piece = np.split(whole, p)[comm.rank]
        assert np.array_equal(reduce_scatter(comm, whole, counts=counts), p * piece)
        given = None if comm.rank else whole
        assert np.array_equal(scatter(comm, given, counts=counts, dtype=whole.dtype), piece)
        for algorithm in ALGORITHMS["all_to_all"]:
            found = all_to_all(comm, whole, algorithm=algorithm, counts=table)
            assert np.array_equal(found, np.tile(piece, p))
    world.run(body)
