"""Simulated times of schedules: closed forms, a lower bound, brute force, the simulated cluster."""

import itertools

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.simulated.links import Link
from minipar.parallel.cost import pipelines as predict
from minipar.parallel.pipeline.schedule.actions import Action
from minipar.parallel.pipeline.schedule.csv import from_csv
from minipar.parallel.pipeline.schedule.dependencies import cells, rank_of
from minipar.parallel.pipeline.schedule.metrics import (
    bubble,
    in_flight,
    memory,
    num_messages,
    peak_memory,
)
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from minipar.parallel.pipeline.schedule.schedules import placement_of
from minipar.parallel.pipeline.schedule.simulate import Times, simulate, simulate_until
from minipar.parallel.pipeline.schedule.validate import find_fault
from tests.support.schedule_cases import stages_per_rank

TIMES = [Times(1, 1, 1), Times(2, 3, 1), Times(3, 2, 1), Times(1, 4, 3), Times(5, 1, 2)]


def cases(name, most_ranks=4, most_microbatches=9):
    return itertools.product(range(1, most_ranks + 1), range(1, most_microbatches + 1),
                             stages_per_rank(name))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.one_in(2)
def test_the_makespan_is_the_closed_form_s_and_never_below_the_bound(name):
    proven = 0
    for (p, m, v), times in itertools.product(cases(name), TIMES):
        schedule, placement = make_schedule(name, p, m, v)
        took = simulate(schedule, times, placement).makespan()
        expected = predict.makespan(name, p, m, times, v)
        assert expected in (None, took), (p, m, v, times)
        proven += expected is not None
        split = any(action.kind == "W" for row in schedule for action in row)
        assert took >= predict.lower_bound(placement, m, times, split), (p, m, v, times)
    assert proven >= 20 or SCHEDULES[name].makespan is None, proven


def test_the_textbook_bubbles():
    for p, m in itertools.product(range(1, 6), (4, 8, 20)):
        for name in ("gpipe", "1f1b"):
            found = bubble(simulate(make_schedule(name, p, m)[0]))
            assert predict.bubble(name, p, m, Times()) == pytest.approx(found)
            assert found.of_total == pytest.approx((p - 1) / (m + p - 1))
            assert found.of_ideal == pytest.approx((p - 1) / m)
    for v in (1, 2, 3):
        timeline = simulate(make_schedule("interleaved", 4, 8, v)[0])
        assert bubble(timeline).of_ideal == pytest.approx(3 / (v * 8))
    schedule, _ = make_schedule("zb_h1", 4, 8)
    assert bubble(simulate(schedule, Times(3, 4, 2))).of_ideal == pytest.approx(3 * 5 / (8 * 9))


AT_MOST = {         # microbatches in flight, those of all stages of a rank
    "zb_v": lambda p: 2 * p, "zb_h2": lambda p: 2 * p - 1, "dualpipe_v": lambda p: 2 * p + 1,
    "v_half": lambda p: 2 * ((p + 2) // 2), "v_min": lambda p: 2 * ((p + 4) // 3)}


@pytest.mark.parametrize("name", SCHEDULES)
def test_in_flight_is_the_closed_form_s_in_the_list_and_over_time(name):
    for p, m, v in cases(name, 5):
        schedule, placement = make_schedule(name, p, m, v)
        timeline = simulate(schedule, Times(1, 1, 1), placement)
        assert len(timeline.messages) == num_messages(placement, m)
        for rank, row in enumerate(schedule):
            peak = max(in_flight(row))
            assert peak == peak_memory(timeline, rank)
            assert predict.in_flight(name, rank, p, m, v) in (None, peak), (p, m, v, rank)
            assert name not in AT_MOST or peak <= AT_MOST[name](p)


def test_memory_over_time_by_hand():
    timeline = simulate(from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), Times(1, 1, 1))
    assert memory(timeline, 0) == [(0, 0), (0, 1), (1, 2), (6, 1), (9, 0)]
    assert memory(timeline, 1, [10, 7]) == [(0, 0), (1, 7), (4, 0), (4, 7), (7, 0)]
    split = simulate(from_csv("0F0,0I0,0F1,0W0,0I1,0W1\n"), Times(1, 1, 1))
    assert [count for _, count in memory(split, 0)] == [0, 1, 2, 1, 0]
    assert in_flight(from_csv("0F0,0I0,0F1,0W0,0I1,0W1\n")[0]) == [1, 1, 2, 2, 1, 1]


def relaxed(schedule, times, latency):
    """End of every action, by going over all pairs until nothing changes any more."""
    last = max(a.stage for row in schedule for a in row)
    end = {a: 0.0 for row in schedule for a in row}
    sent = dict(end)                    # those of actions that go together: at the end of both
    rank_of = {a: r for r, row in enumerate(schedule) for a in row}
    changed = True
    while changed:
        changed = False
        for row in schedule:
            for before, cell in zip([None, *cells(row)], cells(row)):
                start = sent[before[0]] if before else 0.0
                for a, b in itertools.product(cell, end):
                    near = b.microbatch == a.microbatch and (
                        (a.kind == "F" and b.kind == "F" and b.stage == a.stage - 1)
                        or (a.kind in "BI" and b.kind in "BI" and b.stage == a.stage + 1 <= last)
                        or (a.kind in "BI" and b.kind == "F" and b.stage == a.stage)
                        or (a.kind == "W" and b.kind == "I" and b.stage == a.stage))
                    if near:
                        start = max(start, sent[b] + latency * (rank_of[a] != rank_of[b]))
                for a in cell:
                    start += times[a.stage].of(a.kind)
                    if start > end[a]:
                        end[a], changed = start, True
                sent |= dict.fromkeys(cell, start)
    return end


@pytest.mark.parametrize("name", SCHEDULES)
def test_starts_and_ends_are_those_of_brute_force(name):
    for p, m in itertools.product((1, 2, 3), (1, 2, 5)):
        schedule, placement = make_schedule(name, p, m)
        each = [Times(1 + s % 3, 2, 1 + s % 2) for s in range(len(placement))]
        timeline = simulate(schedule, each, placement, Link(0.5, np.inf), 8)
        ends = relaxed(schedule, each, 0.5)
        assert {i.action: i.end for i in timeline.intervals} == ends
        for i in timeline.intervals:
            assert i.end - i.start == each[i.stage].of(i.kind)


def test_no_order_at_all_beats_the_bound_and_1f1b_reaches_it():
    """Every order of two ranks' actions, for two microbatches; and GPipe's and 1F1B's is best."""
    times, shortest = Times(2, 1, 1), np.inf
    rows = [[Action(kind, stage, i) for kind in "FB" for i in (0, 1)] for stage in (0, 1)]
    for schedule in itertools.product(*map(itertools.permutations, rows)):
        schedule = [list(row) for row in schedule]
        if find_fault(schedule, [0, 1], 2) is None:
            shortest = min(shortest, simulate(schedule, times).makespan())
    assert shortest == predict.lower_bound([0, 1], 2, times)
    assert shortest == simulate(make_schedule("1f1b", 2, 2)[0], times).makespan()


def run_on_cluster(schedule, placement, times, cluster, num_bytes):
    """The schedule on simulated ranks: receives posted first, sends never waited for."""
    last = len(placement) - 1

    def partner(action, step):
        """The rank of the next stage in this direction; None if that is no other rank."""
        other = action.stage + step
        if action.kind == "W" or not 0 <= other <= last:
            return None
        owner, own = (rank_of(placement, stage, action.microbatch)
                      for stage in (other, action.stage))
        return owner if owner != own else None

    def main(comm):
        arrays, sends = {}, []
        row = schedule[comm.rank]
        for action in row:
            step = -1 if action.kind == "F" else 1
            source = partner(action, step)
            if source is not None:
                out = np.empty(num_bytes, np.uint8)
                arrays[action] = comm.irecv(out, source, tag=number(action, action.stage + step))
        for cell in cells(row):
            for action in cell:
                if action in arrays:
                    arrays[action].wait()
            for action in cell:
                comm.report_compute(str(action), int(times.of(action.kind) * 1e6), 0, 0.0)
            for action in cell:
                dest = partner(action, 1 if action.kind == "F" else -1)
                if dest is not None:
                    sends.append(comm.isend(np.zeros(num_bytes, np.uint8), dest,
                                            tag=number(action, action.stage)))
        for send in sends:
            send.wait()

    def number(action, sender):
        return (action.microbatch * len(placement) + sender) * 2 + (action.kind == "F")

    cluster.run(main)
    return cluster.trace


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("num_bytes", [0, 3000])
def test_the_simulated_cluster_takes_as_long(name, num_bytes):
    schedule, placement = make_schedule(name, 3, 6)
    times, link = Times(1, 2, 1), Link(0.25, 1e4)
    cluster = Cluster(3, latency=link.latency, bandwidth=link.bandwidth, flops_per_second=1e6,
                      trace=True)
    trace = run_on_cluster(schedule, placement, times, cluster, num_bytes)
    timeline = simulate(schedule, times, placement, link, num_bytes)
    assert sorted((s.name, s.start, s.end) for s in trace.named_spans()) == [
        (name, pytest.approx(start), pytest.approx(end)) for name, start, end in sorted(
            (str(i.action), i.start, i.end) for i in timeline.intervals)]
    assert sorted(m[:3] for m in trace.messages) == sorted(m[:3] for m in timeline.messages)


def test_a_bad_schedule_is_refused_and_can_be_played_up_to_its_fault():
    bad = from_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    with pytest.raises(ValueError, match="deadlock, a circle of ranks"):
        simulate(bad)
    fault = find_fault(bad)
    played = simulate_until(fault, bad)
    assert [str(i.action) for i in played.intervals] == ["0F0", "1F0"]
    with pytest.raises(ValueError, match="2 stages take as many times, not 3"):
        simulate(make_schedule("1f1b", 2, 2)[0], [Times()] * 3)


@pytest.mark.slow
def test_a_large_one_is_made_validated_and_simulated():
    schedule, placement = make_schedule("1f1b", 64, 1024)
    assert find_fault(schedule, placement, 1024) is None
    assert simulate(schedule, Times(1, 1, 1), placement).makespan() == 3 * (1024 + 63)
    assert placement_of(schedule) == placement


def test_a_schedule_with_several_faults_is_played_without_any_of_them():
    """The actions that each rank completes before one of its own is wrong."""
    schedule, placement = make_schedule("1f1b", 3, 2)
    schedule[0][1] = Action("F", 9, 1)                      # no such stage, the first fault
    schedule[1].insert(1, Action("X", 1, 0))                # no such kind
    schedule[2][0] = Action("B", 2, 0)                      # before its forward
    fault = find_fault(schedule, placement, 2)
    assert (fault.rank, fault.position, fault.reached) == (2, 0, (1, 1, 0))
    played = simulate_until(fault, schedule, Times(), placement)
    assert [str(i.action) for i in played.intervals] == ["0F0", "1F0"]


@pytest.mark.parametrize("p", [1, 3])
def test_the_lower_bound_of_many_ranks_takes_no_longer_than_theirs(p):
    """Stages in any order; and as many ranks as the command line takes, at once."""
    schedule, placement = make_schedule("gpipe", p, 2)
    assert predict.lower_bound(placement, 2, Times()) == simulate(schedule).makespan()
    assert predict.lower_bound(list(range(50_000)), 1, Times()) == 150_000
