"""Ranks that call different collectives: the report, and where ranks are compared."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minipar.comm import Cluster, CollectiveMismatch, Deadlock
from minipar.comm.collectives import all_gather, all_reduce, barrier, broadcast, gather_object
from minipar.comm.simulated.mismatch import add_call, describe_mismatch
from minipar.comm.work import progress, start_work


def at(marker: str) -> str:
    """file:line of the line of this file that ends with the comment `# <marker>`."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"  # {marker}")]
    return f"{__file__}:{number}"


def report(main, num_ranks: int = 2, **options) -> str:
    """The sentence that refuses a run."""
    with pytest.raises(CollectiveMismatch) as error:
        Cluster(num_ranks, **options).run(main)
    return str(error.value)


def test_the_report_is_one_and_names_all_ranks_and_lines():
    def main(comm):
        mine = np.zeros(4)
        if comm.rank == 2:
            all_reduce(comm, mine, "max")  # max
        elif comm.rank == 4:
            all_reduce(comm, mine[:2])  # half
        else:
            all_reduce(comm, mine)  # sum
    called = "called all_reduce(dtype=float64, shape={}, op={}, algorithm=auto) at {}"
    assert report(main, 6) == "\n".join([
        "collective mismatch: ranks differ in op, shape",
        "  ranks 0, 1, 3, 5 " + called.format("(4,)", "sum", at("sum")),
        "  rank 2 " + called.format("(4,)", "max", at("max")),
        "  rank 4 " + called.format("(2,)", "sum", at("half")),
        "All ranks of a communicator call the same collectives in the same order, with equal "
        "arguments."])


def test_the_first_rank_may_be_the_odd_one():
    """Those that come later wait for the others, so that the report is about all of them."""
    said = report(lambda comm: broadcast(comm, np.zeros(4 - (comm.rank == 0))), 20)
    assert "  rank 0 called broadcast(dtype=float64, shape=(3,)" in said
    assert "  ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 3 more called" in said


def test_all_ranks_may_differ():
    said = report(lambda comm: all_reduce(comm, np.zeros(comm.rank + 1)), 100)
    assert "and 84 others" in said and len(said.split("\n")) == 19


def test_the_comparison_is_a_function_of_values_alone():
    calls, same = [], {"operation": "barrier", "algorithm": "auto"}
    assert add_call(calls, 0, "a.py:1", same) and add_call(calls, 2, "a.py:1", dict(same))
    assert add_call(calls, 3, "c.py:3", same)
    assert describe_mismatch(calls) is None and [call.ranks for call in calls] == [[0, 2], [3]]
    assert not add_call(calls, 1, "b.py:2", {"operation": "broadcast", "root": 0})
    assert describe_mismatch(calls).split("\n")[:4] == [
        "collective mismatch: ranks differ in operation",
        "  ranks 0, 2 called barrier(algorithm=auto) at a.py:1",
        "  rank 3 called barrier(algorithm=auto) at c.py:3",
        "  rank 1 called broadcast(root=0) at b.py:2"]


def test_on_split_communicators_others_are_not_concerned():
    def main(comm):
        pair = comm.split(comm.rank // 2)
        for _ in range(1 + comm.rank // 2):     # each pair has its own number of collectives
            all_reduce(pair, np.zeros(2 + comm.rank // 2))
        all_reduce(pair, np.zeros(3), op="max" if comm.rank == 3 else "sum")
    said = report(main, 6)
    assert "rank 2 called all_reduce(dtype=float64, shape=(3,), op=sum" in said
    assert "rank 3 called all_reduce(dtype=float64, shape=(3,), op=max" in said
    assert "rank 0" not in said and "rank 4" not in said


def test_a_split_in_place_of_a_collective():
    def main(comm):
        if comm.rank:
            comm.split(0)
        barrier(comm)
    said = report(main)
    assert "rank 0 called barrier(" in said and "rank 1 called split()" in said


def test_non_blocking_collectives():
    def main(comm, mine, wait=True):
        works = [start_work(call, comm, np.zeros(4), **options)  # started
                 for call, options in mine[comm.rank]]
        progress(comm)
        for work in works if wait else ():
            work.wait()

    right = [(all_reduce, {}), (broadcast, {})]
    Cluster(3).run(lambda comm: main(comm, [right] * 3))
    for wait in (True, False):
        said = report(lambda comm, wait=wait: main(comm, [right, right, right[::-1]], wait), 3)
        assert "differ in operation" in said and "rank 2 called broadcast(" in said
        assert said.count(at("started")) == 2
    said = report(lambda comm: main(comm, [right, right, [right[0], (broadcast, {"root": 1})]]), 3)
    assert "differ in root" in said and "rank 2 called broadcast(" in said and "root=1" in said


def test_a_work_and_the_program_are_apart():
    """Works are compared with Works: the program may call others before, between and after."""
    def main(comm):
        if comm.rank:
            barrier(comm)
        work = start_work(all_reduce, comm, np.ones(3))
        if not comm.rank:
            barrier(comm)
        return work.wait()[0]
    assert Cluster(3).run(main)[0] == [3] * 3


def test_control_collectives_and_objects():
    def objects(comm, root=0):
        return gather_object(comm, "long" * comm.rank, root)
    assert Cluster(3).run(objects)[0][0] == ["", "long", "longlong"]
    said = report(lambda comm: objects(comm, root=comm.rank // 2), 3)
    assert "differ in root" in said and "rank 2 called gather_object(root=1)" in said

    def control(comm):
        with comm.labelled("control"):
            all_reduce(comm, np.ones(1), op="max" if comm.rank else "sum")
    assert "differ in op" in report(control)


def test_what_only_looks_different_is_equal():
    def main(comm):
        whole, last = np.ones((4, 4)), comm.rank == 2
        all_reduce(comm, whole.T if last else whole)                        # strides
        all_reduce(comm, whole, op=lambda a, b, out: np.add(a, b, out=out))     # one on each rank
        all_reduce(comm, whole, op=partial(np.add, casting="safe"))
        broadcast(comm, whole, root=np.int64(1) if last else 1)
        all_gather(comm, whole, dim=-1 if last else 1)
        all_gather(comm, whole, counts=np.array([4, 4, 4]) if last else (4, 4, 4))
        all_reduce(comm, whole, out=whole if last else None)
        barrier(comm)
    Cluster(3).run(main)


def test_counts_may_be_changed_after_the_call():
    def main(comm):
        counts = [1, 1]
        all_gather(comm, np.ones(1), counts=counts)
        counts[:] = [0, 0]
    Cluster(2, eager=1 << 10).run(main)


def test_ranks_that_agree_and_then_wait_for_one_that_never_comes_are_in_a_deadlock():
    with pytest.raises(Deadlock, match="part of all_reduce"):
        Cluster(3).run(lambda comm: all_reduce(comm, np.ones(3)) if comm.rank else None)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_finally_block_calls_no_collective(waiting):
    ends = []

    def main(comm):
        try:
            if waiting and comm.rank:       # for ever, as others called something else
                broadcast(comm, np.ones(3))
            all_reduce(comm, np.ones(3 + comm.rank))
        finally:
            with pytest.raises(RuntimeError, match="this run is over"):
                all_reduce(comm, np.ones(1), op="max" if comm.rank else "sum")
            ends.append(comm.rank)
    report(main, 3)
    assert sorted(ends) == [0, 1, 2]


def test_a_run_after_a_mismatch_begins_anew():
    cluster = Cluster(3)
    with pytest.raises(CollectiveMismatch):
        cluster.run(lambda comm: all_reduce(comm, np.ones(3 + comm.rank)))
    assert cluster.run(lambda comm: all_reduce(comm, np.ones(1))[0])[0] == [3] * 3


def test_without_the_comparison_messages_that_fit_each_other_pass():
    def main(comm):
        return all_reduce(comm, np.ones(2), ("sum", "max")[comm.rank], algorithm="ring").tolist()
    results, _ = Cluster(2, compare_calls=False).run(main)
    assert results == [[2, 1], [2, 1]]
    assert "ranks differ in op" in report(main)
