"""Exercises one_f_one_b, zb_h1, pipeline_needs, in_flight and bubble."""

import pytest

from minipar.parallel.pipeline.schedule.actions import Action
from minipar.parallel.pipeline.schedule.csv import from_csv
from minipar.parallel.pipeline.schedule.dependencies import needs
from minipar.parallel.pipeline.schedule.metrics import bubble, in_flight
from minipar.parallel.pipeline.schedule.schedules import one_f_one_b
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.parallel.pipeline.schedule.timeline import Interval, Timeline
from minipar.parallel.pipeline.schedule.zero_bubble import zb_h1

SIZES = [(1, 1), (1, 4), (2, 1), (2, 5), (3, 3), (4, 2), (4, 8)]      # ranks, microbatches


def text(schedule):
    return [" ".join(map(str, row)) for row in schedule]


# one_f_one_b

def test_1f1b_of_two_and_of_three_ranks():
    assert text(one_f_one_b(2, 3)) == ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]
    assert text(one_f_one_b(3, 4)) == ["0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
                                       "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
                                       "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"]


@pytest.mark.parametrize("p, m", SIZES)
def test_1f1b_of_any_size_is_complete_and_takes_m_plus_p_minus_1(p, m):
    assert simulate(one_f_one_b(p, m), Times(1, 1, 1)).makespan() == 3 * (m + p - 1)


@pytest.mark.parametrize("p, m", SIZES)
def test_1f1b_keeps_no_more_than_p_minus_s_microbatches(p, m):
    for stage, row in enumerate(one_f_one_b(p, m)):
        kept = [sum(a.kind == "F" for a in row[:k]) - sum(a.kind == "B" for a in row[:k])
                for k in range(len(row) + 1)]
        assert max(kept) == min(p - stage, m), f"on stage {stage} of {p}"


# zb_h1

@pytest.mark.parametrize("p, m", [(1, 1), (2, 4), (3, 3), (4, 8)])
@pytest.mark.parametrize("times", [Times(1, 1, 1), Times(3, 4, 2)], ids=["equal", "3:4:2"])
def test_zb_h1_has_the_bubble_of_its_paper(p, m, times):
    took = simulate(zb_h1(p, m), times).makespan()
    assert took == m * sum(times) + (p - 1) * (times.forward + times.input - times.weight)


@pytest.mark.parametrize("p, m", SIZES)
def test_zb_h1_keeps_no_more_than_p_microbatches(p, m):
    for stage, row in enumerate(zb_h1(p, m)):
        kept = [sum(a.kind == "F" for a in row[:k]) - sum(a.kind == "W" for a in row[:k])
                for k in range(len(row) + 1)]
        assert max(kept) == min(p, m), f"on stage {stage} of {p}"


def test_zb_h1_does_everything_once():
    for p, m in SIZES:
        for stage, row in enumerate(zb_h1(p, m)):
            assert sorted(row) == sorted(Action(kind, stage, i) for kind in "FIW"
                                         for i in range(m))


# needs

def test_what_each_kind_needs():
    assert needs(Action("F", 0, 3), 4) == []
    assert needs(Action("F", 2, 3), 4) == [("F", 1, 3)]
    assert needs(Action("W", 2, 3), 4) == [("I", 2, 3)]
    for kind in "BI":
        assert needs(Action(kind, 2, 3), 4) == [("F", 2, 3), ("I", 3, 3)]
        assert needs(Action(kind, 0, 3), 4) == [("F", 0, 3), ("I", 1, 3)]


def test_the_last_stage_begins_the_backward_itself():
    assert needs(Action("B", 3, 1), 4) == [("F", 3, 1)]
    assert needs(Action("I", 0, 1), 1) == [("F", 0, 1)]


# in_flight

def test_a_forward_begins_one_and_its_backward_ends_it():
    [row] = from_csv("0F0,0F1,0B0,0F2,0B1,0B2")
    assert in_flight(row) == [1, 2, 2, 2, 2, 1]


def test_activations_are_needed_until_the_weights_gradient():
    [row] = from_csv("0F0,0I0,0F1,0I1,0W0,0W1")
    assert in_flight(row) == [1, 1, 2, 2, 2, 1]


def test_every_stage_of_a_rank_counts():
    [row] = from_csv("0F0,1F0,1B0,0B0")
    assert in_flight(row) == [1, 2, 2, 1]


# bubble

def test_idle_time_of_all_ranks_by_total_and_by_work():
    timeline = Timeline(2, [Interval(0, "F", 0, 0, 0.0, 1.0), Interval(1, "F", 1, 0, 1.0, 3.0),
                            Interval(1, "B", 1, 0, 3.0, 4.0), Interval(0, "B", 0, 0, 4.0, 5.0)])
    assert bubble(timeline) == (pytest.approx(5 / 10), pytest.approx(5 / 5))


def test_a_clock_that_does_not_begin_at_0_changes_nothing():
    timeline = Timeline(2, [Interval(0, "F", 0, 0, 100.0, 101.0),
                            Interval(1, "F", 1, 0, 101.0, 104.0)])
    assert bubble(timeline) == (pytest.approx(4 / 8), pytest.approx(4 / 4))


def test_a_rank_that_does_nothing_is_idle_all_the_time():
    timeline = Timeline(3, [Interval(0, "F", 0, 0, 0.0, 2.0), Interval(1, "F", 1, 0, 0.0, 2.0)])
    assert bubble(timeline) == (pytest.approx(2 / 6), pytest.approx(2 / 4))
