"""The learning rate of every step."""

import math

import pytest

from minipar.optim import warmup_cosine
from minipar.optim.lr_schedule import LR_SCHEDULES, warmup_stable_decay


def test_every_value_of_a_short_run():
    rates = [warmup_cosine(step, 1.0, num_warmup=4, num_steps=8) for step in range(8)]
    quarter = [0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(1, 5)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, *quarter])
    assert rates[7] == pytest.approx(0, abs=1e-16)


def test_a_floor():
    rates = [warmup_cosine(step, 3e-4, 10, 110, floor=3e-5) for step in range(110)]
    assert max(rates) == rates[9] == 3e-4
    assert rates[-1] == pytest.approx(3e-5)
    assert rates[59] == pytest.approx((3e-4 + 3e-5) / 2)        # half way down
    assert rates[:10] == sorted(rates[:10]) and rates[9:] == sorted(rates[9:], reverse=True)


def test_no_warm_up_and_steps_beyond_the_end():
    assert warmup_cosine(0, 1.0, 0, 2) == pytest.approx(0.5)
    assert warmup_cosine(1, 1.0, 0, 2) == pytest.approx(0)
    assert warmup_cosine(50, 1.0, 0, 2, floor=0.1) == pytest.approx(0.1)


def test_nothing_but_warm_up():
    assert [warmup_cosine(step, 2.0, 4, 4) for step in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert warmup_cosine(9, 2.0, 10, 5) == 2.0


def test_a_straight_line_down():
    rates = [LR_SCHEDULES["linear"](step, 1.0, 2, 7, floor=0.5) for step in range(9)]
    assert rates == pytest.approx([0.5, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5])


def test_a_peak_that_holds_until_the_last_fifth():
    rates = [warmup_stable_decay(step, 1.0, 2, 20, floor=0.2) for step in range(22)]
    assert rates == pytest.approx([0.5, *[1] * 15, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])


@pytest.mark.parametrize("name", LR_SCHEDULES)
@pytest.mark.parametrize("num_warmup, num_steps", [
    (0, 1), (0, 3), (1, 1), (4, 4), (10, 5), (3, 40)])
def test_every_schedule_rises_to_the_peak_and_falls_to_the_floor(name, num_warmup, num_steps):
    rates = [LR_SCHEDULES[name](step, 2.0, num_warmup, num_steps, floor=0.5)
             for step in range(max(num_warmup, num_steps))]
    assert rates[:num_warmup] == pytest.approx([2.0 * (i + 1) / num_warmup
                                                for i in range(num_warmup)])
    assert rates[num_warmup:] == sorted(rates[num_warmup:], reverse=True)
    if num_steps > max(5, num_warmup) or num_steps > num_warmup and name != "wsd":
        assert rates[-1] == pytest.approx(0.5)
