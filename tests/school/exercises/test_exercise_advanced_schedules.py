"""Exercises v_pattern, zb_h2_rounds, dualpipe_v, chimera and dualpipe: tables, slots, promises."""

import pytest

from minipar.parallel.pipeline.schedule.advanced.two_ways import chimera, dualpipe
from minipar.parallel.pipeline.schedule.advanced.v_shapes import pattern
from minipar.parallel.pipeline.schedule.csv import to_csv
from minipar.parallel.pipeline.schedule.metrics import in_flight
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.simulate import Times, simulate

EQUAL = Times(1, 1, 1)


def check_rows(schedule, right, name):
    """Each row, as text, is that of the table."""
    for rank, (found, row) in enumerate(zip(to_csv(schedule).split(), right.split(), strict=True)):
        assert found == row, f"{name}, rank {rank}: expected {row}, got {found}"


def check_promise(name, p, m, makespan, most):
    """The schedule is possible, takes `makespan` with F = I = W = 1, and holds at most `most`."""
    schedule, placement = make_schedule(name, p, m)
    found = simulate(schedule, EQUAL, placement).makespan()
    assert found == makespan, f"{name} of {p} ranks, {m} microbatches: expected to take " \
                              f"{makespan}, got {found:g}"
    for rank, row in enumerate(schedule):
        held = max(in_flight(row))
        assert held <= most, f"{name} of {p} ranks, {m} microbatches, rank {rank}: expected to " \
                             f"hold at most {most}, got {held}"


@pytest.mark.parametrize("p, options, right", [
    (1, (1, 0, 0), [[0, 1, 2, 3]]), (1, (2, 3, 1), [[0, 1, 5, 7]]),
    (2, (1, 0, 0), [[0, 3, 4, 7], [1, 2, 5, 6]]),
    (4, (1, 0, 0), [[0, 7, 8, 15], [1, 6, 9, 14], [2, 5, 10, 13], [3, 4, 11, 12]]),
    (3, (1, 2, 0), [[0, 5, 8, 13], [1, 4, 9, 12], [2, 3, 10, 11]]),
    (4, (2, 3, 1), [[0, 10, 14, 25], [2, 9, 16, 24], [4, 8, 18, 23], [6, 7, 20, 22]])])
def test_the_pattern_of_a_v(p, options, right):
    found = [[*row] for row in pattern(p, *options)]
    assert found == right, f"pattern({p}, slots_down, pause, turn = {options}): expected " \
                           f"{right}, got {found}"


@pytest.mark.parametrize("name, makespan, most", [("v_half", 48 + 5, 6), ("v_min", 48 + 11, 4)])
def test_a_v_holds_a_half_or_a_third(name, makespan, most):
    check_promise(name, 4, 8, makespan, most)


ZB_H2 = """\
0F0,0F1,0F2,0F3,0F4,0I0,0W0,0I1,0W1,0I2,0W2,0I3,0W3,0I4,0W4
1F0,1F1,1F2,1I0,1F3,1I1,1F4,1I2,1W0,1I3,1W1,1I4,1W2,1W3,1W4
2F0,2I0,2F1,2I1,2F2,2I2,2F3,2I3,2F4,2I4,2W0,2W1,2W2,2W3,2W4
"""


OF_TWO = """\
0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3
1F0,1I0,1F1,1I1,1F2,1I2,1W0,1F3,1I3,1W1,1W2,1W3
"""


@pytest.mark.parametrize("p, m, rows", [(2, 4, OF_TWO), (3, 5, ZB_H2)], ids=["two", "three"])
def test_the_rows_of_zb_h2(p, m, rows):
    check_rows(make_schedule("zb_h2", p, m)[0], rows, f"ZB-H2, {m} microbatches")


@pytest.mark.parametrize("p, m", [(1, 3), (2, 4), (3, 7), (4, 7), (4, 12), (5, 16)])
def test_under_zb_h2_no_stage_waits_between_its_ends(p, m):
    check_promise("zb_h2", p, m, 3 * m + p - 1, 2 * p - 1)


DUALPIPE_V = """\
0F0,0F1,0F2,3F0,3I0,3W0,3F1,0F3+3B1,3F2+0B0,3B2,3F3+0B1,3B3,0I2,0W2,0I3,0W3
1F0,2F0,1F1,2F1,1F2,2B0,2F2+1B0,1F3+2B1,2F3+1B1,2B2,1B2,2I3,1I3,2W3,1W3
"""


def test_dualpipe_v_of_two_ranks():
    check_rows(make_schedule("dualpipe_v", 2, 4)[0], DUALPIPE_V, "DualPipeV, 4 microbatches")


@pytest.mark.parametrize("p, m", [(1, 3), (2, 6), (3, 6), (4, 11)])
def test_dualpipe_v_is_idle_as_its_paper_says(p, m):
    check_promise("dualpipe_v", p, m, 6 * m + 2 * (p - 1), 2 * p + 1)


def test_dualpipe_v_of_few_microbatches_leaves_out_the_others():
    many, few = (make_schedule("dualpipe_v", 3, m)[0] for m in (6, 4))
    for rank, row in enumerate(many):
        right = [action for action in row if action.microbatch < 4]
        assert few[rank] == right, f"rank {rank}: expected {right}, got {few[rank]}"


CHIMERA = """\
0F0,0F1,3F2,3B2,3F3,3B3,0B0,0B1
1F0,2F2,1F1,2F3,2B2,1B0,2B3,1B1
1F2,2F0,1F3,2F1,2B0,1B2,2B1,1B3
0F2,0F3,3F0,3B0,3F1,3B1,0B2,0B3
"""


def test_chimera_of_four_ranks():
    check_rows(chimera(4, 4), CHIMERA, "Chimera, 4 microbatches")


@pytest.mark.parametrize("p, units", [(2, 1), (2, 3), (4, 2), (6, 1), (6, 2)])
def test_chimera_is_idle_as_its_paper_says(p, units):
    check_promise("chimera", p, p * units, 3 * p * units + (units + 1) * (p - 2), p)


@pytest.mark.parametrize("p, m", [(1, 2), (3, 5), (4, 6)])
def test_chimera_of_odd_numbers_is_possible(p, m):
    schedule, placement = make_schedule("chimera", p, m)
    simulate(schedule, EQUAL, placement)


DUALPIPE = """\
0F0,0F1,0F2,3F4,3I4,3W4,3F5,0F3+3B5,3F6+0B0,3B6,3F7+0B1,3B7,0I2,0W2,0I3,0W3
1F0,2F4,1F1,2F5,1F2,2B4,2F6+1B0,1F3+2B5,2F7+1B1,2B6,1B2,2I7,1I3,2W7,1W3
1F4,2F0,1F5,2F1,1F6,2B0,2F2+1B4,1F7+2B1,2F3+1B5,2B2,1B6,2I3,1I7,2W3,1W7
0F4,0F5,0F6,3F0,3I0,3W0,3F1,0F7+3B1,3F2+0B4,3B2,3F3+0B5,3B3,0I6,0W6,0I7,0W7
"""


def test_dualpipe_of_four_ranks():
    check_rows(dualpipe(4, 8), DUALPIPE, "DualPipe, 8 microbatches")


@pytest.mark.parametrize("p, m", [(2, 4), (4, 10), (6, 12)])
def test_dualpipe_is_idle_as_its_paper_says(p, m):
    check_promise("dualpipe", p, m, 3 * m + p - 2, p + 1)


@pytest.mark.parametrize("p, m", [(3, 4), (4, 5), (4, 1)])
def test_dualpipe_of_odd_numbers_is_possible(p, m):
    schedule, placement = make_schedule("dualpipe", p, m)
    simulate(schedule, EQUAL, placement)
    assert sorted({action.microbatch for row in schedule for action in row}) == [*range(m)]
