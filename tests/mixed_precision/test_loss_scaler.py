"""The loss scaler: PyTorch's state machine, step by step."""

import math

import numpy as np
import pytest

from minipar.mixed_precision import LossScaler

# GradScaler(init_scale=8, growth_interval=2) of PyTorch 2.13: found_inf, then the scale after.
PYTORCH = [(False, 8.0), (False, 16.0), (False, 16.0), (True, 8.0), (False, 8.0), (False, 16.0),
           (True, 8.0), (True, 4.0), (False, 4.0), (False, 8.0)]


def test_scales_are_pytorchs():
    scaler = LossScaler(8.0, interval=2)
    for found_inf, scale in PYTORCH:
        scaler.update(found_inf)
        assert scaler.scale == scale
    assert scaler.num_skipped == 3


def test_defaults_are_pytorchs():
    scaler = LossScaler()
    assert (scaler.scale, scaler.growth, scaler.backoff, scaler.interval) == (65536, 2, 0.5, 2000)


def test_a_run_goes_on_from_its_state():
    """Also between two changes: the good steps so far count."""
    whole, first = LossScaler(4.0, interval=3), LossScaler(4.0, interval=3)
    outcomes = [False, False, True, False, False, False, False, True, False]
    for found_inf in outcomes[:5]:
        first.update(found_inf)
    then = LossScaler(interval=3)
    then.load_state_dict(first.state_dict())
    for found_inf in outcomes[5:]:
        then.update(found_inf)
    for found_inf in outcomes:
        whole.update(found_inf)
    assert then.state_dict() == whole.state_dict()


def test_overflows_count_as_stuck_where_no_smaller_scale_is_left_to_try():
    scaler, found = LossScaler(4.0), []
    for found_inf in (True, True, True, True, False, True):
        scaler.update(found_inf)
        found.append(scaler.num_stuck)
    assert found == [0, 0, 1, 2, 0, 1]          # with the scales 4, 2, 1, 1/2, 1/4, 1/4
    fixed = LossScaler(4.0, growth=1, backoff=1)
    fixed.update(True)
    assert fixed.num_stuck == 1


def test_a_loss_times_it_never_becomes_infinite_and_it_can_be_fixed():
    scaler = LossScaler(interval=1)
    for _ in range(200):
        scaler.update(False)
    assert scaler.scale > 2.0**90 and np.isfinite(np.float32(1e6) * np.float32(scaler.scale))
    fixed = LossScaler(8.0, growth=1.0, backoff=1.0, interval=1)
    for found_inf in (True, False, True):
        fixed.update(found_inf)
    assert fixed.scale == 8.0 and fixed.num_skipped == 2


@pytest.mark.parametrize("wrong", [{"scale": 0}, {"scale": math.inf}, {"growth": 0.5},
                                   {"backoff": 0}, {"backoff": 2}, {"interval": 0}])
def test_what_cannot_work_is_refused(wrong):
    with pytest.raises(ValueError):
        LossScaler(**wrong)
