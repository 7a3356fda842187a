"""One number of each rank, which has no axis; and axes that an array does not have."""

import numpy as np
import pytest

from minipar.comm import collectives
from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.collectives import all_gather, gather
from minipar.comm.work import start_work
from minipar.testing import worlds
from tests.comm.test_wrong_arguments import assert_nothing_is_under_way, refused


@worlds(1, 2, 3)
def test_numbers_without_an_axis_are_gathered_and_not_cut(world):
    def body(comm):
        p, r = comm.size, comm.rank
        for one in np.array(0.5 + r), np.float64(0.5 + r):
            right = [0.5 + rank for rank in range(p)]
            for algorithm in [*ALGORITHMS["all_gather"], "auto"]:
                assert all_gather(comm, one, algorithm=algorithm).tolist() == right
            out = np.zeros(p)
            assert all_gather(comm, one, -1, counts=[1] * p, out=out) is out
            assert out.tolist() == right == start_work(all_gather, comm, one).wait().tolist()
            found = gather(comm, one, root=p - 1)
            assert found is None if r < p - 1 else found.tolist() == right
            for name in ("reduce_scatter", "all_to_all", "scatter"):
                said = refused(getattr(collectives, name), comm, one, kind=ValueError)
                assert said == ("dim=0, but an array of shape () has no axis to cut: give one, "
                                "for example by array.reshape(1)")
            for name in ("all_reduce", "broadcast", "reduce", "scan", "exscan"):
                found = getattr(collectives, name)(comm, one)
                assert found is None or found.shape == ()
        assert_nothing_is_under_way(comm)
    world.run(body)


@worlds(1, 2)
def test_an_axis_that_is_not_there_is_named(world):
    def body(comm):
        for dim in (2, -3):
            for name in ("all_gather", "gather", "reduce_scatter", "scatter", "all_to_all"):
                where = {"split_dim" if name == "all_to_all" else "dim": dim}
                with pytest.raises(ValueError) as error:
                    getattr(collectives, name)(comm, np.ones((2, 4)), **where)
                assert type(error.value) is ValueError
                assert str(error.value) == f"dim={dim}, but an array of shape (2, 4) has axes 0 … 1"
            said = refused(collectives.all_to_all, comm, np.ones((2, 4)), 0, dim, kind=ValueError)
            assert said == f"concat_dim={dim}, but an array of shape (2, 4) has axes 0 … 1"
        said = refused(all_gather, comm, np.ones(2), 1, kind=ValueError)
        assert said == "dim=1, but an array of shape (2,) has only axis 0"
        assert_nothing_is_under_way(comm)
    world.run(body)
