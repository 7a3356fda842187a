"""The choice is the best of all there are, on made-up chains and for a GPT."""

import itertools

import numpy as np
import pytest

from minipar.memory.offload.search import advance_lane, best_decisions
from minipar.memory.offload.timeline import (
    KEEP,
    OFFLOAD,
    OFFLOAD_INPUT,
    RECOMPUTE,
    OffloadMachine,
    possible_decisions,
    simulate_step,
    step_cost,
)
from minipar.memory.remat.profile import ChainProfile, PartProfile
from tests.support.planned import random_costs

BLOCK = PartProfile(10, (100, 90), (100, 90), 9, 0, 1000, 800, 0, 2000)


def chain_of(rng, length):
    """Made-up parts; some save nothing, none has a loss."""
    parts = []
    for part in random_costs(rng, length).parts:
        part = part._replace(backward_flops=int(rng.integers(0, 30)))
        if rng.random() < 0.1:
            part = part._replace(saved_bytes=(0, 0), peak_bytes=(0, 0), num_saved=0, saves_output=0,
                                 recompute_flops=0)
        parts.append(part)
    return ChainProfile(tuple(parts))


def check_best(rng, length):
    """Within every limit that makes a difference, no decisions are better."""
    costs = chain_of(rng, length)
    machine = OffloadMachine(*map(float, rng.integers(1, 6, 2)), ahead=int(rng.integers(1, 4)))
    prices = [step_cost(decisions, costs, machine)
              for decisions in itertools.product(*map(possible_decisions, costs.parts))]
    limits = sorted({peak for _, peak in prices})
    for limit in limits:
        choice = best_decisions(costs, limit, machine)
        assert choice.peak <= limit
        assert choice.seconds == pytest.approx(min(t for t, peak in prices if peak <= limit))
    with pytest.raises(ValueError, match=f"{limits[0] - 1:,} bytes, .*at least {limits[0]:,}, or"):
        best_decisions(costs, limits[0] - 1, machine)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_nothing_is_better(length):
    rng = np.random.default_rng(length)
    for _ in range(10):
        check_best(rng, length)


@pytest.mark.slow
def test_nothing_is_better_in_longer_chains():
    rng = np.random.default_rng(9)
    for length in (*[5] * 20, 6, 6):
        check_best(rng, length)


def test_the_link_decides():
    """A fast link moves what a slow one has computed again; what fits is left alone."""
    costs = ChainProfile((BLOCK,) * 8)

    def choose_at(speed, limit):
        return best_decisions(costs, limit, OffloadMachine(1000.0, speed))

    for speed in (1e-3, 1.0, 1e6):
        assert choose_at(speed, 800) == ((KEEP,) * 8, 24.0, 800)
    fast = choose_at(200.0, 400)
    assert fast.seconds == pytest.approx(24.0)
    assert set(fast.decisions) == {KEEP, OFFLOAD}
    slow = choose_at(0.1, 400)
    assert set(slow.decisions) == {KEEP, RECOMPUTE}
    assert slow.seconds == pytest.approx(24.0 + 0.8 * slow.decisions.count(RECOMPUTE))
    assert OFFLOAD_INPUT in choose_at(20.0, 130).decisions


def test_more_room_or_a_faster_link_is_never_worse():
    costs = chain_of(np.random.default_rng(3), 14)
    most = step_cost((KEEP,) * 14, costs, OffloadMachine(1.0, 1.0))[1]
    for first, second in ([(most, 1.0), (most // 2, 1.0)], [(most // 2, 4.0), (most // 2, 1.0)]):
        better, worse = (best_decisions(costs, room, OffloadMachine(1.0, speed)).seconds
                         for room, speed in (first, second))
        assert better <= worse


def test_a_lane_computes_waits_and_copies():
    lane = advance_lane((0, 0), 5, 10)
    assert lane == (5, 15), "the copy begins when the part has run"
    assert advance_lane(lane, 3, 0) == (15, 0), "one part later its memory is wanted"
    assert advance_lane(lane, 30, 7) == (35, 42)
    assert advance_lane((5, 0, 15), 3, 4) == (8, 15, 19), "two ahead: no wait, the lane is busy"


def test_what_cannot_be_is_refused():
    costs = ChainProfile((BLOCK,) * 2)
    for numbers in ((0.0, 1.0), (1.0, -1.0), (1.0, 1.0, 0)):
        with pytest.raises(ValueError, match="a machine computes and copies with positive speeds"):
            best_decisions(costs, 100, OffloadMachine(*numbers))
    with pytest.raises(ValueError, match="profile it as the last part"):
        best_decisions(costs._replace(loss_bytes=3), 100, OffloadMachine(1.0, 1.0))
    with pytest.raises(ValueError, match="2 parts need as many decisions, not 1"):
        simulate_step((KEEP,), costs, OffloadMachine(1.0, 1.0))
    with pytest.raises(ValueError, match="part 1 cannot 'drop': keep, recompute, offload, offload"):
        simulate_step((KEEP, "drop"), costs, OffloadMachine(1.0, 1.0))
