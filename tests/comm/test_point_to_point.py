"""Messages between two ranks, in both worlds: order, tags, every kind of array, and mistakes."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.environment import is_checking
from minipar.testing import worlds

WIDE = np.arange(24).reshape(4, 6)
ARRAYS = {
    "float64": np.linspace(-1, 1, 7),
    "float32": np.linspace(-1, 1, 7, dtype=np.float32),
    "float16": np.linspace(-1, 1, 7, dtype=np.float16),
    "int8": np.arange(-3, 3, dtype=np.int8),
    "uint64": np.array([0, 2**64 - 1], np.uint64),
    "bool": np.array([True, False, True]),
    "complex128": np.array([1 + 2j, -3j]),
    "zero-d": np.array(2.5),
    "zero-size": np.empty((3, 0, 2)),
    "strided": WIDE[:, ::2],
    "backwards": WIDE[::-1, ::-1],
    "one column": WIDE[:, 1],
    "transposed": WIDE.T,
    "fortran": np.asfortranarray(WIDE.astype(float)),
}


def neighbours(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


@worlds(2, 3)
def test_messages_of_one_tag_arrive_in_order_and_tags_do_not_mix(world):
    def body(comm):
        if comm.rank == 0:
            requests = [comm.isend(np.array([i]), dest=1, tag=i % 3) for i in range(12)]
            for request in requests:
                request.wait()
        elif comm.rank == 1:
            got = np.empty(1, np.int64)
            for tag in (2, 0, 1):
                for i in range(tag, 12, 3):
                    comm.recv(got, source=0, tag=tag)
                    assert got[0] == i
    world.run(body)


@worlds(3)
def test_messages_of_two_sources_do_not_mix(world):
    def body(comm):
        if comm.rank in (0, 1):
            for i in range(4):
                comm.send(np.array([10 * comm.rank + i]), dest=2)
        elif comm.rank == 2:
            got = np.empty(1, np.int64)
            for i in range(4):
                for source in (1, 0):
                    comm.recv(got, source)
                    assert got[0] == 10 * source + i
    world.run(body)


@worlds(2)
def test_receives_posted_early_are_filled_in_order(world):
    def body(comm):
        if comm.rank == 0:
            outs = np.zeros((5, 2))
            requests = [comm.irecv(out, source=1) for out in outs]
            for request in reversed(requests):
                request.wait()
            assert np.array_equal(outs, np.arange(10.0).reshape(5, 2))
        elif comm.rank == 1:
            for row in np.arange(10.0).reshape(5, 2):
                comm.send(row, dest=0)
    world.run(body)


@pytest.mark.parametrize("kind", ARRAYS)
@worlds(1, 2)
def test_every_kind_of_array_travels(world, kind):
    array = ARRAYS[kind]
    kept = array.copy()

    def body(comm):
        after, before = neighbours(comm)
        for out in (np.empty(array.shape, array.dtype), np.empty_like(array),
                    np.empty(array.shape, array.dtype, order="F"),
                    np.empty((*array.shape, 3), array.dtype)[..., 1]):
            comm.sendrecv(array, after, out, before)
            assert np.array_equal(out, array)
        assert np.array_equal(array, kept)
    world.run(body)


@worlds(2)
def test_only_the_receive_buffer_is_written(world):
    def body(comm):
        whole = np.full((4, 5), -1.0)
        after, before = neighbours(comm)
        comm.sendrecv(np.arange(6.0).reshape(2, 3), after, whole[1:3, ::2], before)
        expected = np.full((4, 5), -1.0)
        expected[1:3, ::2] = np.arange(6.0).reshape(2, 3)
        assert np.array_equal(whole, expected)
    world.run(body)


@worlds(2)
def test_as_many_elements_in_another_shape_are_accepted(world):
    def body(comm):
        after, before = neighbours(comm)
        out = np.empty((2, 3))
        comm.sendrecv(np.arange(6.0), after, out, before)
        assert np.array_equal(out, [[0, 1, 2], [3, 4, 5]])
    world.run(body)


@worlds(1, 2, 3, 5)
def test_a_ring_of_sendrecv(world):
    def body(comm):
        after, before = neighbours(comm)
        mine = np.array([comm.rank])
        for step in range(1, comm.size + 1):
            coming = np.empty_like(mine)
            comm.sendrecv(mine, after, coming, before, tag=7)
            mine = coming
            assert mine[0] == (comm.rank - step) % comm.size
    world.run(body)


@worlds(2)
def test_sendrecv_takes_the_first_of_several_that_wait(world):
    def body(comm):
        got = np.empty(1, np.int64)
        if comm.rank == 0:
            requests = [comm.isend(np.array([i]), dest=1) for i in range(3)]
            for i in range(3):
                comm.recv(got, source=1)
                assert got[0] == 10 * i
            for request in requests:
                request.wait()
        elif comm.rank == 1:
            for i in range(3):
                comm.sendrecv(np.array([10 * i]), 0, got, 0)
                assert got[0] == i
    world.run(body)


@worlds(1, 2)
def test_a_rank_sends_to_itself(world):
    def body(comm):
        out = np.empty(3)
        request = comm.irecv(out, source=comm.rank)
        comm.send(np.arange(3.0), dest=comm.rank)
        request.wait()
        assert np.array_equal(out, [0, 1, 2])
    world.run(body)


@worlds(2)
def test_a_request_says_when_it_is_done(world):
    def body(comm):
        token, out = np.zeros(1), np.zeros(2)
        if comm.rank == 0:
            request = comm.irecv(out, source=1)
            assert not request.test()           # rank 1 waits for the token
            comm.send(token, dest=1)
            request.wait()
            assert request.test()
            request.wait()                      # once more does no harm
            assert np.array_equal(out, [3, 4])
        elif comm.rank == 1:
            comm.recv(token, source=0)
            request = comm.isend(np.array([3.0, 4.0]), dest=0)
            request.wait()
            assert request.test()
    world.run(body)


@worlds(2)
def test_eight_megabytes(world):
    def body(comm):
        after, before = neighbours(comm)
        out = np.empty(1 << 20)
        comm.sendrecv(np.arange(1 << 20) + comm.rank, after, out, before)
        assert np.array_equal(out, np.arange(1 << 20) + before)
    # np.arange + int gives int64: 8 bytes each, as the float64 that wait for them on rank 0
    with pytest.raises(ValueError, match="dtypes"):
        Cluster(2).run(body)

    def right(comm):
        after, before = neighbours(comm)
        out = np.empty(1 << 20)
        comm.sendrecv(np.arange(1 << 20) + float(comm.rank), after, out, before)
        assert np.array_equal(out, np.arange(1 << 20) + before)
    world.run(right)


@worlds(1, 2)
def test_a_peer_or_tag_that_does_not_exist_is_refused_by_every_call(world):
    def body(comm):
        a, b, size = np.zeros(1), np.zeros(1), comm.size
        for wrong in (-1, size, size + 5):
            for call, role in ((lambda w=wrong: comm.send(a, w), "dest"),
                               (lambda w=wrong: comm.isend(a, w), "dest"),
                               (lambda w=wrong: comm.recv(a, w), "source"),
                               (lambda w=wrong: comm.irecv(a, w), "source"),
                               (lambda w=wrong: comm.sendrecv(a, w, b, 0), "dest")):
                with pytest.raises(ValueError) as error:
                    call()
                assert str(error.value) == (f"{role}={wrong} is no rank of this communicator: it "
                                            f"has 0 … {size - 1}")
        for tag in (-1, 1 << 15):       # of these not every MPI library has both
            for call in (comm.send, comm.irecv, lambda a, w, t: comm.sendrecv(a, w, b, w, t)):
                pytest.raises(ValueError, call, a, 0, tag).match(f"tag={tag}: a tag is a number")
    world.run(body)


@pytest.mark.parametrize("sent, wanted", [
    (np.zeros(3), np.zeros(2)), (np.zeros(2), np.zeros(3)), (np.zeros(2), np.zeros(2, np.int64)),
    (np.zeros((1, 2)), np.zeros((3, 2))), (np.zeros(1), np.zeros(4, np.float16))])
@pytest.mark.parametrize("first", [0, 1])
def test_simulated_sizes_and_dtypes_must_agree_and_the_error_names_both(sent, wanted, first):
    def body(comm):
        if comm.rank == first:                  # the other one comes second, and finds it out
            comm.report_compute("a while", 0, 10**9, 0)
        if comm.rank == 0:
            comm.send(sent, dest=1)
        else:
            comm.recv(wanted, source=0)
    with pytest.raises(ValueError) as error:
        Cluster(2).run(body)
    assert str(error.value) == (
        f"rank 1 receives into {wanted.dtype} {wanted.shape}, but rank 0 sends {sent.dtype} "
        f"{sent.shape}: sizes and dtypes must be equal")


@pytest.mark.parametrize("num_sent, said", [
    (3, "the message is larger than the receive buffer of 16 bytes"),
    (1, "8 bytes came, but the receive buffer holds 16")])
@worlds(mpi=(2,))
def test_real_sizes_must_agree_and_the_error_names_the_receive(world, num_sent, said):
    def body(comm):
        if comm.rank == 0:
            comm.send(np.zeros(num_sent), dest=1, tag=4)
        else:
            with comm.labelled("a test"), pytest.raises(ValueError) as error:
                comm.recv(np.zeros(2), source=0, tag=4)
            assert "\n" not in str(error.value)
            if is_checking():               # the sender is known, too
                assert f"but rank 0 sends float64 ({num_sent},)" in str(error.value)
            else:
                assert said in str(error.value)
                assert "receive from rank 0 (tag 4, part of a test)" in str(error.value)
    world.run(body)
