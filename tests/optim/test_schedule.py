"""The learning rate of every step."""

import math

import pytest

from minipar.optim import warmup_cosine


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
