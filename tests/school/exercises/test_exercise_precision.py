"""Exercises loss_scale_update, found_inf and stochastic_rounding."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.mixed_precision import LossScaler, unscale
from minipar.mixed_precision.loss_scaler import LARGEST
from minipar.number_formats import BFLOAT16, FLOAT8_E4M3FN


def test_the_scale_is_halved_and_the_step_counted():
    scaler = LossScaler(1024.0, backoff=0.25)
    for num, scale in ((1, 256.0), (2, 64.0)):
        scaler.update(True)
        assert scaler.scale == scale, f"after {num} overflows and backoff=0.25: {scaler.scale}"
        assert scaler.num_skipped == num, f"{scaler.num_skipped} steps skipped, of {num}"


@pytest.mark.parametrize("steps, scales", [
    ("gggggg", [8, 8, 16, 16, 16, 32]),
    ("ggogggg", [8, 8, 4, 4, 4, 8, 8]),
    ("ooggg", [4, 2, 2, 2, 4]),
    ("gogogog", [8, 4, 4, 2, 2, 1, 1])])
def test_the_scale_grows_after_good_steps_in_a_row(steps, scales):
    """With interval=3: g is a good step, o an overflow."""
    scaler = LossScaler(8.0, interval=3)
    for i, (step, expected) in enumerate(zip(steps, scales)):
        scaler.update(step == "o")
        assert scaler.scale == expected, \
            f"interval 3, steps {steps[:i + 1]}: the scale is {scaler.scale:g}, not {expected}"


def test_the_scale_stays_finite():
    scaler = LossScaler(2.0**90, interval=1)
    for _ in range(40):
        scaler.update(False)
    assert 2.0**90 < scaler.scale <= LARGEST, "a loss times the scale may be infinite in float32"


def on_ranks(grads, scale=4.0):
    """Calls unscale with grads[rank], a list of lists, on each rank: what came, and what is left.
    """
    def main(comm):
        arrays = [np.array(grad, np.float32) for grad in grads[comm.rank]]
        slabs = [SimpleNamespace(complete_grad=lambda a=a: a, grad=a) for a in arrays]
        answer = unscale(SimpleNamespace(slabs=slabs, comm=comm), scale)
        return answer, [a.tolist() for a in arrays]
    return Cluster(len(grads)).run(main)[0]


def test_finite_gradients_are_divided():
    found = on_ranks([[[1.0, 2.0], [3.0]], [[4.0], []], [[0.0, -8.0]]])
    assert found == [(True, [[0.25, 0.5], [0.75]]), (True, [[1.0], []]), (True, [[0.0, -2.0]])], \
        f"divided by 4 these gradients are {found}"


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("rank, slab", [(0, 0), (1, 1), (2, 0), (2, 1)])
def test_one_bad_number_on_one_rank_stops_all(bad, rank, slab):
    grads = [[[1.0, 2.0], [3.0]], [[4.0], [5.0, 6.0]], [[7.0], [8.0]]]
    grads[rank][slab][-1] = bad
    found = on_ranks(grads)
    answers = [answer for answer, _ in found]
    assert answers == [False] * 3, f"{bad} on rank {rank} alone, and the ranks say {answers}"
    for r, (_, left) in enumerate(found):
        np.testing.assert_equal(left, grads[r], err_msg=f"rank {r}: gradients were changed")


def test_large_numbers_are_no_overflow():
    found = on_ranks([[[3e38, 3e38, 3e38]], [[-3e38, 3e38]]])
    assert [answer for answer, _ in found] == [True, True], "3e38 is a float32 like any other"


@pytest.mark.parametrize("fmt", [BFLOAT16, FLOAT8_E4M3FN], ids=lambda f: f.name)
@pytest.mark.parametrize("d", [0.1, 0.3, 0.5, 0.7, 0.95])
def test_by_chance_the_mean_is_the_number(fmt, d):
    low, step = 1.0, 2.0**-fmt.mantissa_bits
    n = 20_000
    x = np.full(n, low + d * step, np.float32)
    mean = (fmt.round(x, np.random.default_rng(0)).astype(float).mean() - low) / step
    assert abs(mean - d) < 5 / (2 * math.sqrt(n)), \
        f"{d:.0%} of the way from 1 to its neighbour, the mean is {mean:.1%} of the way"


def test_by_chance_only_the_two_neighbours_are_taken():
    x = np.random.default_rng(0).uniform(1, 2, 1000).astype(np.float32)
    x[:10] = BFLOAT16.round(x[:10])
    found, step = BFLOAT16.round(x, np.random.default_rng(1)), 2.0**-7
    below = np.floor(x / step) * step
    assert np.all((found == below) | (found == np.where(x == below, below, below + step))), \
        "a number became none of its two neighbours (one of the format must stay what it is)"
    up = np.mean(found[10:] != below[10:])
    assert 0.4 < up < 0.6, f"{up:.0%} of evenly spread numbers were rounded up, not about half"


def test_by_chance_many_small_steps_add_up():
    """1000 updates of an eighth of a step, of 200 weights: without chance none would move."""
    random, w = np.random.default_rng(0), np.ones(200, np.float32)
    for _ in range(1000):
        w = BFLOAT16.round(w + np.float32(2.0**-10), random)
    expected = 1 + 1000 * 2.0**-10
    assert abs(w.mean() - expected) < 0.05, f"the mean weight is {w.mean():.3f}, not {expected:.3f}"
    assert 0.04 < w.std() < 0.15, f"the weights spread by {w.std():.3f}: each has draws of its own"
