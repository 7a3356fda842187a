"""Ranks that are slow, and ranks that are lost."""

import re

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce
from minipar.comm.simulated.faults import Faults, RankLost
from minipar.comm.simulated.topology import Link, Links
from minipar.comm.work import start_work


def steps(comm, num_steps: int = 10) -> int:
    """A tenth of a second of computation and an all-reduce, again and again."""
    for _ in range(num_steps):
        comm.report_compute("compute", 100, 0, 0.0)
        all_reduce(comm, np.ones(16))
    return comm.rank


def cluster_with(num_ranks: int = 4, **faults) -> Cluster:
    return Cluster(num_ranks, latency=1e-6, flops_per_second=1000, trace=True,
                   faults=Faults(**faults))


def test_a_straggler_holds_everyone_up():
    plain, slow = cluster_with().run(steps)[1], cluster_with(slow={2: 1.5}).run(steps)[1]
    assert plain == pytest.approx(1.0, rel=1e-3) and slow == pytest.approx(1.5, rel=1e-3)
    cluster = cluster_with(slow={2: 1.5})
    cluster.run(steps)
    computed = [sum(s.end - s.start for s in cluster.trace.named_spans() if s.rank == rank)
                for rank in range(4)]
    np.testing.assert_allclose(computed, [1, 1, 1.5, 1])


@pytest.mark.parametrize("when", [0.0, 0.05, 0.25, 0.55, 2.85])
@pytest.mark.parametrize("lost", [0, 3])
def test_all_others_end_with_a_sentence_that_names_the_lost_rank(lost, when):
    ends = {}

    def main(comm):
        try:
            return steps(comm)
        except RankLost as error:
            ends[comm.rank] = (str(error), error.rank)
            raise
        finally:
            ends.setdefault(comm.rank, "no sentence")

    cluster = cluster_with(slow={lost: 3.0}, lost={lost: when})     # a step takes it 0.3 s
    with pytest.raises(RankLost, match=f"rank {lost} of 4 was lost at {when:g} s") as caught:
        cluster.run(main)
    others = set(range(4)) - {lost}
    assert all(ends[rank] == (str(caught.value), lost) for rank in others & set(ends))
    if when > 0:
        assert set(ends) == {0, 1, 2, 3} and ends[lost] == "no sentence"
        doing = "computes at" if when < 0.1 else "waits "
        for rank in others:
            assert f"rank {rank} {doing}" in str(caught.value)
        assert when < 0.1 or re.search(
            rf"receive from rank {lost} .*all_reduce.* at .*test_faults\.py:\d+", str(caught.value))
    times = [event[-1] for event in (*cluster.trace.messages, *cluster.trace.spans)]
    assert max(times, default=0.0) <= when          # nothing happened later


def test_a_rank_that_finished_before_is_not_lost():
    results, seconds = cluster_with(lost={1: 5.0}).run(steps)
    assert results == [0, 1, 2, 3] and seconds < 5


def test_a_loss_while_a_rank_computes_without_a_message():
    def main(comm):
        comm.report_compute("long", 10_000, 0, 0.0)
    cluster = cluster_with(lost={2: 3.0})
    with pytest.raises(RankLost, match="rank 2 of 4 was lost at 3 s"):
        cluster.run(main)
    assert all(span.end <= 3.0 for span in cluster.trace.named_spans())


def test_the_first_of_several_losses_ends_the_run():
    with pytest.raises(RankLost, match="rank 3 of 4 was lost at 0.2 s"):
        cluster_with(lost={1: 0.4, 3: 0.2, 2: 0.4}).run(steps)


def test_a_lost_rank_ends_works_too_and_the_cluster_can_run_again():
    def main(comm):
        work = start_work(all_reduce, comm, np.ones(1000))
        comm.report_compute("compute", 100 * (1 + comm.rank), 0, 0.0)
        return work.wait()[0]
    cluster = cluster_with(lost={3: 0.15})
    for _ in range(2):
        with pytest.raises(RankLost, match="rank 3"):
            cluster.run(main)
    cluster.faults = None
    assert cluster.run(main)[0] == [4.0] * 4


def test_who_catches_the_loss_can_communicate_no_more():
    told = []

    def main(comm):
        try:
            steps(comm)
        except RankLost:
            with pytest.raises(RuntimeError, match="this run is over"):
                comm.send(np.ones(1), (comm.rank + 1) % comm.size)
            told.append(comm.rank)
    with pytest.raises(RankLost):
        cluster_with(lost={0: 0.3}).run(main)
    assert told == [1, 2, 3]


def test_a_fault_of_no_rank_is_refused():
    for faults in ({"slow": {4: 2.0}}, {"lost": {-1: 1.0}}):
        with pytest.raises(ValueError, match="the cluster has ranks 0 … 3"):
            cluster_with(**faults).run(steps)


def test_many_ranks_two_nodes_delays_a_straggler_and_a_loss_at_once():
    cluster = Cluster(nodes=16, devices_per_node=8, flops_per_second=1000,
                      links=Links(Link(1e-6, 1e10), Link(1e-5, 1e9), delay=1e-5, seed=4),
                      faults=Faults(slow={17: 3.0}, lost={77: 1.0}))
    with pytest.raises(RankLost, match="rank 77 of 128 was lost at 1 s") as caught:
        cluster.run(steps)
    assert str(caught.value).count("\n") == 17 and "and 111 more ranks" in str(caught.value)
