"""What is no array, no rank or no name of minipar's is refused in one line, in both worlds."""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster, collectives
from minipar.comm.collectives import all_reduce
from minipar.comm.errors import MPI4PY_NAMES
from minipar.comm.work import start_work
from minipar.testing import worlds

COLLECTIVES = ["all_gather", "all_reduce", "all_to_all", "broadcast", "exscan", "gather", "reduce",
               "reduce_scatter", "scan", "scatter"]
NO_ARRAYS = {
    "a list": [1.0, 2.0],
    "a number": 1.5,
    "a shape": (2,),
    "a tensor": Tensor(np.zeros(2)),
    "a dictionary": {"a": 1},
}


def refused(call, *arguments, kind=TypeError):
    """What is said when call(*arguments) raises."""
    with pytest.raises(kind) as caught:
        call(*arguments)
    said = str(caught.value)
    assert "\n" not in said
    return said


def assert_nothing_is_under_way(comm):
    """The next collective gives what it should: no message of an earlier call comes into it."""
    assert all_reduce(comm, np.array([comm.rank]), algorithm="ring") == sum(range(comm.size))


@worlds(1, 2)
@pytest.mark.parametrize("value", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_what_is_no_array_is_not_sent_or_received(world, value):
    def body(comm):
        ready, peer = np.zeros(2), (comm.rank + 1) % comm.size
        wrong = f"got a {type(value).__name__}"
        assert wrong in refused(comm.send, value, peer)
        assert wrong in refused(comm.recv, value, peer)
        assert wrong in refused(comm.sendrecv, value, peer, value, peer)
        for arguments in (value, peer, ready, peer), (ready, peer, value, peer):
            assert wrong in refused(comm.sendrecv, *arguments)
        assert_nothing_is_under_way(comm)
    world.run(body)


@worlds(1, 2)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_take_arrays_of_numbers(world, name):
    def body(comm):
        operation = getattr(collectives, name)
        for value in NO_ARRAYS.values():
            assert f"got a {type(value).__name__}" in refused(operation, comm, value)
        assert "Python objects" in refused(operation, comm, np.array([None, 1]))
        assert "comes first" in refused(operation, comm, comm)
    world.run(body)


@worlds(2)
def test_objects_are_not_sent_between_processes(world):
    def body(comm):
        if comm.is_simulated:
            return
        ready, peer = np.zeros(2), (comm.rank + 1) % comm.size
        for objects in np.array([None, 1]), np.zeros(2, [("a", object), ("b", int)]):
            said = refused(comm.send, objects, peer)
            assert "Python objects" in said
            assert said == refused(comm.recv, objects, peer)
            for arguments in (objects, peer, ready, peer), (ready, peer, objects, peer):
                with comm.labelled("mine"):
                    assert said == refused(comm.sendrecv, *arguments)
        assert_nothing_is_under_way(comm)
    world.run(body)


@worlds(2, mpi=(2,))
def test_a_refused_exchange_leaves_no_half_behind(world):
    """Not beside a Work either, nor while messages are traced, copied or buffered."""
    def body(comm):
        ready, strided, peer = np.zeros(2), np.zeros(4)[::2], (comm.rank + 1) % 2
        work = start_work(all_reduce, comm, np.full(999, comm.rank), algorithm="ring")
        for good in ready, strided:
            for arguments in ([1.0], peer, good, peer), (good, peer, [1.0], peer):
                refused(comm.sendrecv, *arguments)
            for arguments in (good, peer, good, 2), (good, 2, good, peer):
                refused(comm.sendrecv, *arguments, kind=ValueError)
            out = np.empty(2)
            comm.sendrecv(np.full(2, comm.rank), peer, np.empty(2, int), peer)
            comm.sendrecv(np.full(2, comm.rank + 5.0), peer, out, peer)
            assert (out == peer + 5).all()
        assert (work.wait() == 1).all()
    world.run(body)
    for options in {"eager": 100}, {"trace": True}:
        Cluster(2, **options).run(body)


@worlds(2)
def test_ranks_and_tags_are_in_range(world):
    def body(comm):
        array = np.zeros(2)
        assert f"dest={comm.size}" in refused(comm.send, array, comm.size, kind=ValueError)
        assert "source=-1" in refused(comm.recv, array, -1, kind=ValueError)
        assert "tag=-1" in refused(comm.send, array, 1, -1, kind=ValueError)
        assert "tag=32768" in refused(comm.recv, array, 1, 32768, kind=ValueError)
    world.run(body)


@worlds(2)
def test_names_of_mpi4py_lead_to_the_names_here(world):
    def body(comm):
        for name, here in (("Get_rank", "comm.rank"), ("bcast", "mp.broadcast(comm, array"),
                           ("Allreduce", "mp.all_reduce(comm, array"), ("Barrier", "mp.barrier"),
                           ("Send", "comm.send(array, dest)")):
            assert here in refused(getattr, comm, name, kind=AttributeError)
        assert "no attribute 'nonsense'" in refused(getattr, comm, "nonsense",
                                                    kind=AttributeError)
        assert not hasattr(comm, "Get_size")
        for here in MPI4PY_NAMES.values():
            what, _, name = here.partition("(")[0].partition(".")
            assert hasattr({"comm": comm, "mp": collectives}[what], name), here
    world.run(body)
