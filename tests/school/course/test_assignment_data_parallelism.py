"""The numbers in the handout and the rubric of "Autograd and data parallelism" are true."""

import math

import numpy as np
import pytest

from minipar.school.course.grading.tasks import ASSIGNMENTS, variants

FOLDER = ASSIGNMENTS / "data_parallelism"
RUBRIC = " ".join((FOLDER / "rubric.md").read_text(encoding="utf-8").split())
ALPHA, BETA, NUM_PARAMETERS = 20e-6, 1e-10, 124e6       # s, s/byte


def solution(name, **parameters):
    """The solution of a task with these parameters."""
    task = next(task for task in variants(FOLDER / "tasks.toml")
                if task.name == name and task.parameters.items() >= parameters.items())
    space = {}
    exec(task.module(task.solution), space)
    return space[name]


def largest_error(loss, x, gradient, h):
    """Of the central differences of a loss with step h."""
    errors = []
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = h
        errors.append(abs((loss(x + step) - loss(x - step)) / (2 * h) - gradient[place]))
    return max(errors)


@pytest.mark.parametrize("seed", range(2))
def test_errors_of_difference_quotients(seed):
    rng = np.random.default_rng(seed)
    function = solution("cross_entropy_backward", SMOOTHING=0.1)
    logits, targets = rng.standard_normal((8, 5)), rng.integers(0, 5, 8)
    error = {h: largest_error(lambda x: function(x, targets, 8)[0], logits,
                              function(logits, targets, 8)[1], h)
             for h in (1e-1, 1e-3, 1e-4, 1e-5, 1e-10)}
    assert math.isclose(error[1e-1], 2e-5, rel_tol=0.3)
    assert math.isclose(error[1e-3], 2e-9, rel_tol=0.3)
    assert 5e-12 < error[1e-4] < 6e-11 and 5e-12 < error[1e-5] < 1e-10
    assert 5e-7 < error[1e-10] < 1e-5
    a, b, grad = (rng.standard_normal(shape) for shape in ((3, 4), (5, 4), (3, 5)))
    function = solution("matmul_backward", FORM="a @ bᵀ")
    small, large = (largest_error(lambda x: (x @ b.T * grad).sum(), a, function(a, b, grad)[0], h)
                    for h in (1e-10, 1e-1))
    assert large < 2e-14 and 1e-7 < small < 1e-4


def test_a_mean_of_means():
    rows, means = np.array([3, 3, 2, 2]), np.array([1, 1, 1, 5])
    assert (rows @ means) / rows.sum() == 1.8 and means.mean() == 2.0 and round(2 / 1.8, 2) == 1.11


def test_bytes_of_a_step():
    n = 4 * NUM_PARAMETERS
    for p in (2, 8, 64):
        ring, doubling = 2 * n * (p - 1) / p, n * math.log2(p)
        row = " | ".join(f"{sent / 1e6:.1f} MB | {sent * BETA * 1e3:.1f} ms"
                         for sent in (ring, doubling))
        assert f"| {p} | {row} |" in RUBRIC


def test_times_with_buckets():
    backward, latency, wire = 0.12, 14 * ALPHA, 1.75 * 4 * NUM_PARAMETERS * BETA
    exposed = {k: backward + latency + wire / k for k in (1, 10)}
    queued = backward / 1000 + 1000 * latency + wire
    for seconds in (*exposed.values(), queued):
        assert f"= {seconds * 1e3:.1f} ms" in RUBRIC
    border = (backward - wire) / latency
    assert f"> (120 - 86.8)/0.28 = {border:.1f}" in RUBRIC
    assert round(4 * NUM_PARAMETERS / 119 / 1e6, 1) == 4.2
    times = {k: simulated(k, backward, latency, wire) for k in (1, 10, 118, 1000)}
    assert all(math.isclose(times[k], exposed[k]) for k in exposed)
    assert math.isclose(times[1000], queued) and min(times, key=times.get) == 118


def simulated(k, backward, latency, wire):
    """The time of a step with k equal buckets, one message after another."""
    free = 0.0
    for bucket in range(1, k + 1):
        free = max(free, bucket * backward / k) + latency + wire / k
    return free


@pytest.mark.parametrize("over, q, entropy, ratio, gap", [
    ("all", 0.91, 0.500, 91, 4.51), ("others", 0.9, 0.545, 81, 4.39)])
def test_the_least_smoothed_loss(over, q, entropy, ratio, gap):
    others = (1 - q) / 9
    assert math.isclose(q / others, ratio) and round(math.log(ratio), 2) == gap
    logits = np.zeros((1, 10))
    logits[0, 3] = math.log(ratio)
    loss, gradient = solution("cross_entropy_backward", SMOOTHING=0.1, OVER=over)(
        logits, np.array([3]), 1)
    assert round(loss, 3) == entropy and np.abs(gradient).max() < 1e-12
