"""A deadlock is a sentence: every stuck rank, what it waits for, from whom, at which line."""

from pathlib import Path

import numpy as np
import pytest

from minipar.comm import Cluster, Deadlock
from minipar.comm.collectives import all_reduce, broadcast

ONE = np.zeros(1, np.int8)


def at(marker: str) -> str:
    """file:line of the line of this file that ends with the comment `# <marker>`."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"  # {marker}")]
    return f"{__file__}:{number}"


def report(num_ranks: int, main, **options) -> list[str]:
    """The lines of the report, without the first and the advice at the end."""
    with pytest.raises(Deadlock) as error:
        Cluster(num_ranks, **options).run(main)
    first, *lines, advice = str(error.value).splitlines()
    assert first == "deadlock: no rank can go on" and advice.startswith((
        "Every send needs its receive, ", "All ranks of a communicator call "))
    return [line.strip() for line in lines]


def test_sends_that_wait_for_each_other():
    def main(comm):
        comm.send(ONE, 1 - comm.rank, tag=5)  # symmetric
        comm.recv(ONE, 1 - comm.rank, tag=5)
    assert report(2, main) == [
        f"rank 0 waits to send to rank 1 (tag 5, 1 bytes) at {at('symmetric')}",
        f"rank 1 waits to send to rank 0 (tag 5, 1 bytes) at {at('symmetric')}"]


def test_the_error_carries_the_lines_of_every_rank_that_waits():
    def wait(comm):
        comm.recv(ONE, 1 - comm.rank)  # inner

    def main(comm):
        if comm.rank < 2:
            wait(comm)  # outer
    with pytest.raises(Deadlock) as error:
        Cluster(3).run(main)
    assert list(error.value.stacks) == [0, 1]
    for lines in error.value.stacks.values():
        here = [f"{file}:{number}" for file, number in lines if file == __file__]
        assert here[:2] == [at("inner"), at("outer")]


def test_a_ring_of_receives():
    def main(comm):
        comm.recv(np.zeros(3), (comm.rank - 1) % comm.size)  # ring
    assert report(3, main) == [
        f"rank {r} waits to receive from rank {(r - 1) % 3} (tag 0, 24 bytes) at {at('ring')}"
        for r in range(3)]


def test_a_tag_that_nobody_sends_is_seen_where_the_wait_is():
    def main(comm):
        if comm.rank == 0:
            comm.send(ONE, dest=1, tag=1)  # tag 1
        else:
            request = comm.irecv(ONE, source=0, tag=2)
            request.wait()  # tag 2
    assert report(2, main) == [
        f"rank 0 waits to send to rank 1 (tag 1, 1 bytes) at {at('tag 1')}",
        f"rank 1 waits to receive from rank 0 (tag 2, 1 bytes) at {at('tag 2')}"]


def test_a_rank_that_has_returned():
    def main(comm):
        if comm.rank:
            comm.recv(ONE, source=0)  # returned
    assert report(2, main) == [
        "rank 1 waits to receive from rank 0 (tag 0, 1 bytes), which has returned, at "
        + at("returned")]


def test_the_second_in_line_is_found_too():
    def main(comm):
        if comm.rank == 0:
            for request in [comm.isend(np.zeros(i), dest=1) for i in (1, 2, 3)]:
                request.wait()  # in line
        else:
            comm.recv(np.zeros(1), source=0)
    assert report(2, main) == [
        "rank 0 waits to send to rank 1 (tag 0, 16 bytes), which has returned, at "
        + at("in line")]


def test_a_collective_that_one_rank_misses():
    def main(comm):
        if comm.rank != 2:
            all_reduce(comm, np.zeros(3), algorithm="ring")  # missed
    lines = report(3, main)
    assert len(lines) == 2
    assert lines[0] == ("rank 0 waits to receive from rank 2 (tag 0, 8 bytes, part of all_reduce), "
                        f"which has returned, at {at('missed')}")
    assert lines[1].startswith("rank 1 waits to ") and "part of all_reduce" in lines[1]


def test_advice_about_collectives_of_two_communicators_in_different_orders():
    def main(comm):
        calls = [(all_reduce, comm.split(0)), (broadcast, comm.split(0))]
        for run, part in calls[::-1 if comm.rank else 1]:
            run(part, np.zeros(6))
    with pytest.raises(Deadlock, match="\nSome ranks are in all_reduce, others in broadcast: all "):
        Cluster(3).run(main)
    with pytest.raises(Deadlock, match="\nEvery send needs its receive"):
        Cluster(2).run(lambda comm: comm.recv(ONE, 1 - comm.rank))


def test_subgroups_speak_of_world_numbers():
    def main(comm):
        odd = comm.split(comm.rank % 2)
        if comm.rank in (1, 3):
            odd.recv(ONE, source=1 - odd.rank, tag=9)  # subgroup
    assert report(4, main) == [
        f"rank 1 waits to receive from rank 3 (tag 9, 1 bytes) at {at('subgroup')}",
        f"rank 3 waits to receive from rank 1 (tag 9, 1 bytes) at {at('subgroup')}"]


def test_a_split_that_not_all_call():
    def main(comm):
        if comm.rank < 2:
            comm.split(0)  # split
        else:
            comm.recv(ONE, source=0)  # instead
    assert report(3, main) == [
        *[f"rank {r} waits for split(), which every rank of the communicator must call, at "
          + at("split") for r in (0, 1)],
        f"rank 2 waits to receive from rank 0 (tag 0, 1 bytes) at {at('instead')}"]


def test_many_stuck_ranks_are_counted():
    lines = report(100, lambda comm: comm.recv(ONE, (comm.rank + 1) % 100))
    assert len(lines) == 17 and lines[-1] == "and 84 more ranks"


def test_the_line_is_the_users_also_in_a_helper_of_theirs():
    def exchange(comm):
        comm.send(ONE, 1 - comm.rank)  # helper

    def main(comm):
        with comm.labelled("mine"):
            exchange(comm)
    assert report(2, main)[0] == (
        f"rank 0 waits to send to rank 1 (tag 0, 1 bytes, part of mine) at {at('helper')}")
