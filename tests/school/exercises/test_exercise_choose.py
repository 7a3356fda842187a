"""Exercise of the lanes of copies: after."""

import itertools

import pytest

from minipar.memory.offload.search import advance_lane, best_decisions
from minipar.memory.offload.timeline import OffloadMachine, possible_decisions, step_cost
from minipar.memory.remat.profile import ChainProfile, PartProfile

SIZES = ((10, 60, 9), (20, 100, 20), (5, 80, 7), (30, 40, 12), (8, 20, 3))
COSTS = ChainProfile(tuple([PartProfile(a, (b, b), (b, b), 1, 0, c, c - 1, 0, 2 * c)
                            for a, b, c in SIZES]))


def test_a_copy_begins_when_its_part_has_run():
    assert advance_lane((0, 0), 5, 10) == (5, 15), "computed until 5, the copy goes on until 15"
    assert advance_lane((5, 0), 2, 0) == (7, 0), "no copy, no end"
    assert advance_lane((5, 15), 30, 7) == (35, 42), "the copy before was through long ago"


def test_only_the_oldest_copy_is_waited_for():
    assert advance_lane((5, 15), 3, 0) == (15, 0), "computed until 8, then waited until 15"
    assert advance_lane((5, 15), 10, 4) == (15, 19), "nothing to wait for: both end at 15"
    assert advance_lane((5, 7, 15), 4, 0) == (9, 15, 0), "two ahead: 15 has time"


def test_copies_go_one_after_the_other():
    assert advance_lane((5, 0, 15), 3, 4) == (8, 15, 19), "the lane is busy until 15"
    assert advance_lane((5, 0, 6), 3, 4) == (8, 0, 12), "the lane is free"
    assert advance_lane((5, 9, 11, 20), 3, 4) == (9, 11, 20, 24)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_the_choice_is_the_best_of_all(ahead):
    for speed in (1.0, 4.0, 12.0):
        machine = OffloadMachine(1.0, speed, ahead)
        prices = [step_cost(decisions, COSTS, machine)
                  for decisions in itertools.product(*map(possible_decisions, COSTS.parts))]
        for limit in (140, 200, 260):
            best = min((seconds for seconds, peak in prices if peak <= limit), default=None)
            if best is not None:
                seconds = best_decisions(COSTS, limit, machine).seconds
                assert seconds == pytest.approx(best), \
                    f"{limit} bytes, speed {speed}: {seconds} s chosen, {best} s is possible"
