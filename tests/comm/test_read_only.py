"""Arrays to write into: memory maps are, what is read-only or no array is refused."""

from functools import partial

import numpy as np
import pytest

from minipar.comm import Cluster, collectives
from minipar.comm.collectives import all_reduce, reduce_scatter
from minipar.testing import worlds
from tests.comm.test_wrong_arguments import (
    COLLECTIVES,
    assert_nothing_is_under_way,
    refused,
)


@worlds(1, 3, mpi=(2,))
def test_memory_maps_are_read_and_written(world, tmp_path):
    def body(comm):
        place = tmp_path / f"{comm.size}-{comm.rank}-{comm.is_simulated}"
        np.full(4, comm.rank + 1.0).tofile(place)
        read_only = np.memmap(place, np.float64, "r")
        total = comm.size * (comm.size + 1) / 2
        assert (all_reduce(comm, read_only) == total).all()
        assert "read-only" in refused(all_reduce, comm, np.ones(4), "sum", "auto", read_only,
                                      kind=ValueError)
        out = np.memmap(place, np.float64, "r+")
        assert all_reduce(comm, out, out=out) is out
        out.flush()
        assert (np.fromfile(place) == total).all()
    world.run(body)


@worlds(1, 2)
def test_an_out_that_cannot_be_written_is_refused(world):
    def body(comm):
        read_only = np.zeros(2 * comm.size)
        read_only.flags.writeable = False
        for name in COLLECTIVES:
            if name == "gather" and comm.rank:
                continue
            array = np.zeros(2 * comm.size)
            operation = getattr(collectives, name)
            said = refused(partial(operation, out=read_only), comm, array, kind=ValueError)
            assert "is read-only: give one that is not" in said
            for out in [0.0], np.float64(0):
                refused(partial(operation, out=out), comm, array)
        said = refused(lambda: all_reduce(comm, read_only, out=read_only), kind=ValueError)
        assert "is read-only" in said
        said = refused(lambda: reduce_scatter(comm, read_only, in_place=True), kind=ValueError)
        assert "is read-only" in said
        assert_nothing_is_under_way(comm)
    world.run(body)


@worlds(mpi=(2,))
def test_a_message_is_not_received_into_a_read_only_array(world):
    def body(comm):
        read_only, peer = np.zeros(3), (comm.rank + 1) % 2
        read_only.flags.writeable = False
        for out in read_only, np.broadcast_to(0.0, 3):
            assert "is read-only" in refused(comm.irecv, out, peer, kind=ValueError)
            assert "is read-only" in refused(comm.sendrecv, np.ones(3), peer, out, peer,
                                             kind=ValueError)
        assert "one number" in refused(comm.irecv, np.float64(3), peer)
        assert_nothing_is_under_way(comm)
    world.run(body)


@pytest.mark.parametrize("late", [0, 1])
def test_a_simulated_message_into_a_read_only_array_names_its_rank(late):
    def body(comm):
        comm.report_compute("a while", 0, 10**9 * (comm.rank == late), 0.0)
        if comm.rank == 0:
            comm.send(np.ones(3), 1)
        else:
            comm.recv(np.broadcast_to(0.0, 3), 0)
    with pytest.raises(ValueError, match="the array that rank 1 receives into, .* is read-only"):
        Cluster(2).run(body)
