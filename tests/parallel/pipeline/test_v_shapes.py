"""ZB-H2, V-Half, V-Min and DualPipeV keep what their papers promise; pairs of actions."""

import pytest

from minipar.parallel.pipeline.schedule.actions import Action, Together
from minipar.parallel.pipeline.schedule.csv import from_csv, to_csv
from minipar.parallel.pipeline.schedule.dependencies import cells
from minipar.parallel.pipeline.schedule.metrics import bubble, in_flight
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.parallel.pipeline.schedule.validate import find_fault

EQUAL = Times(1, 1, 1)


def idle_between_ends(timeline, rank):
    row = timeline.row(rank)
    return row[-1].end - row[0].start - sum(i.end - i.start for i in row)


@pytest.mark.parametrize("p", range(1, 7))
@pytest.mark.parametrize("more", [0, 1, 7])
def test_under_zb_h2_no_rank_waits_between_its_first_action_and_its_last(p, more):
    m = 2 * p + more
    schedule, placement = make_schedule("zb_h2", p, m)
    timeline = simulate(schedule, EQUAL, placement)
    for rank in range(p):
        row = timeline.row(rank)
        assert (row[0].start, row[-1].end) == (rank, 3 * m + rank)
        assert idle_between_ends(timeline, rank) == 0
        assert max(in_flight(schedule[rank])) <= 2 * p - 1
        assert sum(a.kind == "F" for a in schedule[rank][:2 * (p - rank) - 1]) == 2 * (p - rank) - 1


@pytest.mark.parametrize("name, most", [("v_half", lambda p: 2 * ((p + 2) // 2)),
                                        ("v_min", lambda p: 2 * ((p + 4) // 3))])
@pytest.mark.parametrize("p", range(1, 9))
def test_a_v_holds_half_or_a_third_of_what_1f1b_holds(name, most, p):
    schedule, _ = make_schedule(name, p, 3 * p)
    assert max(max(in_flight(row)) for row in schedule) == min(most(p), 2 * 3 * p)


def test_idle_time_of_four_ranks_and_eight_microbatches():
    """In units of a stage of half the layers, of which 1F1B is idle 18: time for memory."""
    def longest(name):
        schedule, placement = make_schedule(name, 4, 8)
        return simulate(schedule, EQUAL, placement).makespan() - 6 * 8
    assert {name: longest(name) for name in ("zb_v", "v_half", "v_min")} == {
        "zb_v": 3, "v_half": 5, "v_min": 11}


@pytest.mark.parametrize("p", range(1, 6))
@pytest.mark.parametrize("more", [0, 1, 5])
def test_dualpipe_v_is_idle_as_long_as_its_paper_says_and_pairs_what_is_apart(p, more):
    m = 2 * p + more
    schedule, placement = make_schedule("dualpipe_v", p, m)
    timeline = simulate(schedule, EQUAL, placement)
    assert timeline.makespan() - 6 * m == (p - 1) * (3 + 2 - 3)
    for rank, row in enumerate(schedule):
        assert max(in_flight(row)) == 2 * p + 1
        pairs = [cell for cell in cells(row) if len(cell) > 1]
        assert len(pairs) == 2 * (m - 2 * p + rank + 1) + p - 1 - rank - (rank == p - 1)
        for forward, back in pairs:
            assert forward.kind + back.kind == "FB" and forward.stage + back.stage == 2 * p - 1


@pytest.mark.parametrize("name, shares", [("v_half", (0.278, 0.405)), ("v_min", (0.611, 0.643))])
def test_the_bubble_is_the_share_of_that_of_1f1b_that_the_page_says(name, shares):
    for p, share in zip((4, 8), shares):
        one, other = (bubble(simulate(schedule, EQUAL, placement)).of_ideal
                      for schedule, placement in (make_schedule(each, p, 2 * p)
                                                  for each in (name, "1f1b")))
        assert one / other == pytest.approx(share, abs=1e-3)


def test_few_microbatches_leave_out_those_that_are_missing():
    many, few = (make_schedule("dualpipe_v", 3, m)[0] for m in (6, 5))
    assert few == [[action for action in row if action.microbatch < 5] for row in many]
    assert any(type(action) is Together for row in few for action in row)


def test_a_pair_begins_with_the_inputs_of_both_and_ends_with_the_results_of_both():
    schedule = from_csv("0F0,0F1+0B0,0B1\n1F0,1B0,1F1,1B1\n")
    assert cells(schedule[0]) == [(Action("F", 0, 0),), (Action("F", 0, 1), Action("B", 0, 0)),
                                  (Action("B", 0, 1),)]
    assert to_csv(schedule).splitlines()[0] == "0F0,0F1+0B0,0B1"
    alone = from_csv(to_csv(schedule).replace("+", ","))
    starts = [{str(i.action): i.start for i in simulate(each, EQUAL).intervals}
              for each in (schedule, alone)]
    assert starts[1] == {"0F0": 0, "0F1": 1, "1F0": 1, "1B0": 2, "0B0": 4, "1F1": 4, "1B1": 5,
                         "0B1": 7}
    assert starts[0] == {"0F0": 0, "1F0": 1, "1B0": 2, "0F1": 4, "0B0": 5, "1F1": 7, "1B1": 8,
                         "0B1": 10}


@pytest.mark.parametrize("text, kind, says", [
    ("0F0+0B0\n", "out of order", "0F0 (rank 0, position 0) goes together with 0B0"),
    ("0F0,0F1+0B0,0B1\n1F0,1F1,1B0,1B1\n", "deadlock", "rank 0 at 0F1 (position 1) for 1B0")])
def test_a_pair_that_waits_for_itself_is_found(text, kind, says):
    fault = find_fault(from_csv(text))
    assert fault.kind == kind and says in fault.sentence
