"""Pipeline schedules: the orders of PyTorch, all numbers of ranks and microbatches, text."""

import itertools

import pytest

from minipar.parallel.pipeline.schedule.actions import Action
from minipar.parallel.pipeline.schedule.csv import from_csv, to_csv
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from minipar.parallel.pipeline.schedule.schedules import interleaved, placement_of
from minipar.parallel.pipeline.schedule.validate import find_fault
from tests.support.schedule_cases import stages_per_rank

# The order of PyTorch 2.13's runtime (GPipe, 1F1B) and of its tables (the others).
TORCH = {
    ("gpipe", 2, 4): """
        0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3
        1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3""",
    ("1f1b", 2, 4): """
        0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3
        1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3""",
    ("1f1b", 4, 8): """
        0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7
        1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7
        2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7
        3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7""",
    ("interleaved", 2, 4): """
        0F0,0F1,2F0,2F1,,,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,,2B2,,2B3,,0B2,,0B3
        ,1F0,1F1,,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,,1B2,,1B3""",
    ("interleaved", 4, 8): """
        0F0,0F1,0F2,0F3,4F0,4F1,4F2,4F3,0F4,0F5,,,,,0F6,4B0,0F7,4B1,4F4,4B2,4F5,4B3,4F6,0B0,4F7,0B1,,0B2,,0B3,,4B4,,4B5,,4B6,,4B7,,0B4,,0B5,,0B6,,0B7
        ,1F0,1F1,1F2,1F3,5F0,5F1,5F2,5F3,,,,1F4,5B0,1F5,5B1,1F6,5B2,1F7,5B3,5F4,1B0,5F5,1B1,5F6,1B2,5F7,1B3,,5B4,,5B5,,5B6,,5B7,,1B4,,1B5,,1B6,,1B7
        ,,2F0,2F1,2F2,2F3,6F0,6F1,,,6F2,6B0,6F3,6B1,2F4,6B2,2F5,6B3,2F6,2B0,2F7,2B1,6F4,2B2,6F5,2B3,6F6,6B4,6F7,6B5,,6B6,,6B7,,2B4,,2B5,,2B6,,2B7
        ,,,3F0,3F1,3F2,3F3,,7F0,7B0,7F1,7B1,7F2,7B2,7F3,7B3,3F4,3B0,3F5,3B1,3F6,3B2,3F7,3B3,7F4,7B4,7F5,7B5,7F6,7B6,7F7,7B7,,3B4,,3B5,,3B6,,3B7""",
    ("looped_breadth_first", 4, 8): """
        0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7,4F0,4F1,4F2,4F3,4F4,4F5,4F6,4F7,,,,,,,,4B7,4B6,4B5,4B4,4B3,4B2,4B1,4B0,0B7,0B6,0B5,0B4,0B3,0B2,0B1,0B0
        ,1F0,1F1,1F2,1F3,1F4,1F5,1F6,1F7,5F0,5F1,5F2,5F3,5F4,5F5,5F6,5F7,,,,,5B7,5B6,5B5,5B4,5B3,5B2,5B1,5B0,1B7,1B6,1B5,1B4,1B3,1B2,1B1,1B0
        ,,2F0,2F1,2F2,2F3,2F4,2F5,2F6,2F7,6F0,6F1,6F2,6F3,6F4,6F5,6F6,6F7,,,6B7,6B6,6B5,6B4,6B3,6B2,6B1,6B0,2B7,2B6,2B5,2B4,2B3,2B2,2B1,2B0
        ,,,3F0,3F1,3F2,3F3,3F4,3F5,3F6,3F7,7F0,7F1,7F2,7F3,7F4,7F5,7F6,7F7,7B7,7B6,7B5,7B4,7B3,7B2,7B1,7B0,3B7,3B6,3B5,3B4,3B3,3B2,3B1,3B0""",
}


@pytest.mark.parametrize("case", TORCH, ids=lambda case: "-".join(map(str, case)))
def test_orders_are_pytorch_s(case):
    schedule, _ = make_schedule(*case)
    lines = TORCH[case].split()
    assert [",".join(map(str, row)) for row in schedule] == [
        ",".join(cell for cell in line.split(",") if cell) for line in lines]
    assert from_csv("\n".join(lines)) == schedule


@pytest.mark.parametrize("name", SCHEDULES)
def test_any_number_of_ranks_and_microbatches_works(name):
    for p, m, v in itertools.product(range(1, 6), range(1, 13), stages_per_rank(name)):
        schedule, placement = make_schedule(name, p, m, v)
        assert len(schedule) == p and len(placement) == p * v
        assert placement_of(schedule) == placement
        assert find_fault(schedule, placement, m) is None, (p, m, v)
        assert from_csv(to_csv(schedule)) == schedule


def test_groups_of_every_allowed_size_work():
    for p, m, v in itertools.product(range(1, 6), range(1, 13), (1, 2, 3)):
        for size in range(min(p, m), m + 1):
            schedule = interleaved(p, m, v, group_size=size)
            assert find_fault(schedule, None, m) is None, (p, m, v, size)


def test_a_group_goes_through_all_stages_of_a_rank_before_the_next():
    forwards = [[str(a) for a in row if a.kind == "F"] for row in interleaved(2, 5, 2)]
    assert forwards[0] == ["0F0", "0F1", "0F2", "2F0", "2F1", "2F2", "0F3", "0F4", "2F3", "2F4"]
    forwards = [[str(a) for a in row if a.kind == "F"] for row in interleaved(2, 4, 2, 4)]
    assert forwards[1] == ["1F0", "1F1", "1F2", "1F3", "3F0", "3F1", "3F2", "3F3"]


def test_groups_smaller_than_the_ranks_could_hang():
    """The rule forbids this order:, 1F1B with groups of 1, the ranks wait in a circle."""
    with pytest.raises(ValueError, match="takes groups of 4 to 8 microbatches, not of 1"):
        interleaved(4, 8, 2, group_size=1)
    with pytest.raises(ValueError, match="takes groups of 4 to 8 microbatches, not of 9"):
        interleaved(4, 8, 2, group_size=9)
    with pytest.raises(ValueError, match="only interleaved takes their size"):
        make_schedule("1f1b", 4, 8, group_size=4)


@pytest.mark.parametrize("name", SCHEDULES)
def test_nothing_of_no_size(name):
    for p, m in ((0, 4), (4, 0), (-1, 1)):
        with pytest.raises(ValueError, match="a pipeline needs at least 1 of its"):
            make_schedule(name, p, m)


def test_names_and_virtual_stages_are_checked():
    with pytest.raises(ValueError, match="unknown schedule '2f2b': choose from gpipe, 1f1b, "):
        make_schedule("2f2b", 4, 8)
    with pytest.raises(ValueError, match="1f1b has 1 stage on each rank, not 2: interleaved and"):
        make_schedule("1f1b", 4, 8, virtual_stages=2)
    with pytest.raises(ValueError, match="zb_v has 2 stages on each rank, not 3"):
        make_schedule("zb_v", 4, 8, virtual_stages=3)


def test_zb_h1_puts_weights_off_by_as_many_microbatches_as_the_stage_s_number():
    schedule, _ = make_schedule("zb_h1", 4, 8)
    assert " ".join(map(str, schedule[2])).startswith(
        "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5")
    for stage, row in enumerate(schedule):
        for i in range(stage, 8):
            assert row.index(Action("W", stage, i - stage)) == row.index(Action("I", stage, i)) + 1


def test_placements():
    assert make_schedule("interleaved", 3, 3)[1] == [0, 1, 2, 0, 1, 2]
    assert make_schedule("zb_v", 3, 3)[1] == [0, 1, 2, 2, 1, 0]
    with pytest.raises(ValueError, match="no rank does anything for stage 1"):
        placement_of([[Action("F", 0, 0)], [Action("F", 2, 0)]])
    with pytest.raises(ValueError, match="the schedule has no actions"):
        placement_of([[], []])


@pytest.mark.parametrize("cell, said", [
    ("2X0", "line 2, column 2: '2X0' is no action"), ("F0", "'F0' is no action"),
    ("0F1 1F0", "is no action"), ("-1F0", "'-1F0' is no action"), ("0f0", "'0f0' is no action")])
def test_a_cell_that_is_no_action_is_named(cell, said):
    with pytest.raises(ValueError, match=said):
        from_csv(f"0F0,0B0\n1F0,{cell}\n")


def test_spaces_and_empty_cells_are_idle_time():
    assert from_csv("0F0 , ,0B0\n\n,,1F0, \n\n") == [
        [Action("F", 0, 0), Action("B", 0, 0)], [], [Action("F", 1, 0)]]
    for text in ("", "\n", ",,\n,"):
        with pytest.raises(ValueError, match="the table has no actions"):
            from_csv(text)


def test_a_table_from_a_spreadsheet():
    table = "\ufeff\"0F0\",0F1,0B0,0B1\r\n,\"1F0\",1B0,1F1,1B1,\r\n"
    assert from_csv(table) == make_schedule("1f1b", 2, 2)[0]
    for number in ("9" * 5000, "\u0663"):         # too long for int(), and digits of another script
        with pytest.raises(ValueError, match="line 1, column 2: .* is no action") as error:
            from_csv(f"0F0,0F{number}\n")
        assert len(str(error.value)) < 200
