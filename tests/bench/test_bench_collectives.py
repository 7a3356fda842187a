"""The benchmark compares the same collective on both sides."""

import numpy as np
import pytest

from minipar.testing import worlds
from tests.bench.on_ranks.collectives import OTHERS, calls, check, size, times


@worlds(mpi=(2, 4))
@pytest.mark.parametrize("operation", OTHERS)
def test_ours_and_the_library_s_give_the_same(world, operation):
    def body(comm):
        p, n = comm.size, 4 * comm.size
        results = []
        for which in (0, 1):
            x = np.arange(n, dtype=np.float32) + 100 * comm.rank
            y = np.zeros_like(x)
            calls(comm, operation, x, y)[which]()
            if operation == "reduce_scatter":       # ours is in place, the library's beside
                results.append((x if which == 0 else y)[(comm.rank if which == 0 else 0) * n // p:]
                               [:n // p])
            else:
                results.append(y if operation == "all_to_all" else x)
        assert np.array_equal(*results)
    world.run(body)


@worlds(mpi=(2,))
def test_what_is_timed_is_checked(world):
    def body(comm):
        found = times(comm, 1 << 30, 3, comm.mpi_comm.Barrier, comm.mpi_comm.Barrier)
        assert len(found) == 2 and min(found) > 0
        check(comm, np.empty(1000, np.float32), "blocked_ring")
    world.run(body)


def test_size():
    assert [size(n) for n in (4096, 1 << 20, 64 << 20)] == ["4 KiB", "1 MiB", "64 MiB"]
