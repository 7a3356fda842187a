"""Exercises budgeted_step, top_p, residual_distribution and speculative_check."""

import numpy as np
import pytest

from minipar.inference.sampling.sampler import keep_top_p
from minipar.inference.sampling.speculative import residual, verify
from minipar.inference.scheduling import Request, ScheduledStep, Scheduler, SchedulerConfig


def scheduler_with(requests: list[tuple[str, int, int, int]], **settings) -> Scheduler:
    """Waiting requests: name, tokens of the prompt, tokens of each answer, answers."""
    scheduler = Scheduler(SchedulerConfig(**{"num_blocks": 32, "block_size": 4, **settings}))
    for name, prompt, answer, num_answers in requests:
        scheduler.add(Request(name, [1] * prompt, answer, num_answers))
    return scheduler


def run_step(scheduler: Scheduler) -> ScheduledStep:
    """One step, in which every request that samples draws token 0."""
    step = scheduler.schedule()
    tokens = {sequence: 0 for _, sequence in scheduler.advance(step)}
    scheduler.finish(step, tokens)
    return step


def computed(step: ScheduledStep) -> list[tuple[str, int, int]]:
    """The requests that compute: their first position and number of tokens."""
    return [(each.request.name, each.start, each.num_tokens) for each in step.scheduled]


def names(requests: list[Request]) -> list[str]:
    return [request.name for request in requests]


def test_running_requests_come_first_each_with_one_token():
    scheduler = scheduler_with([("A", 3, 5, 1), ("B", 5, 5, 1)])
    assert computed(run_step(scheduler)) == [("A", 0, 3), ("B", 0, 5)]      # admitted
    scheduler.add(Request("C", [1, 1], 2))
    assert computed(run_step(scheduler)) == [("A", 3, 1), ("B", 5, 1), ("C", 0, 2)]


def test_a_long_prompt_takes_what_the_budget_leaves():
    scheduler = scheduler_with([("A", 2, 9, 1), ("B", 11, 3, 1)], token_budget=5)
    steps = [computed(run_step(scheduler)) for _ in range(5)]
    assert steps == [[("A", 0, 2), ("B", 0, 3)], [("A", 2, 1), ("B", 3, 4)],
                     [("A", 3, 1), ("B", 7, 4)], [("A", 4, 1), ("B", 11, 1)],
                     [("A", 5, 1), ("B", 12, 1)]]


def test_every_answer_counts_towards_the_budget():
    scheduler = scheduler_with([("A", 4, 6, 3), ("B", 9, 2, 1)], token_budget=5)
    steps = [computed(run_step(scheduler)) for _ in range(4)]
    assert steps == [[("A", 0, 4), ("B", 0, 1)], [("A", 4, 1), ("B", 1, 2)],
                     [("A", 5, 1), ("B", 3, 2)], [("A", 6, 1), ("B", 5, 2)]]


def test_the_step_never_exceeds_the_budget():
    scheduler = scheduler_with([(f"R{i}", 3 + 5 * i, 4, 1 + i % 2) for i in range(5)],
                               token_budget=6)
    for _ in range(200):
        if not scheduler.has_requests:
            break
        step = run_step(scheduler)
        assert sum(each.num_tokens * each.num_sequences for each in step.scheduled) <= 6
    assert not scheduler.has_requests, "some request never ends"
    assert scheduler.pool.num_used == 0


def test_the_latest_request_is_preempted():
    scheduler = scheduler_with([("A", 4, 6, 1), ("B", 4, 6, 1), ("C", 4, 6, 1)], num_blocks=5)
    run_step(scheduler)
    step = run_step(scheduler)                  # each needs a second block, and two are free
    assert computed(step) == [("A", 4, 1), ("B", 4, 1)]
    assert names(step.preempted) == ["C"] and names(scheduler.waiting) == ["C"]
    assert names(scheduler.running) == ["A", "B"], "the oldest requests go on"


def test_a_request_may_preempt_itself_and_then_waits():
    scheduler = scheduler_with([("A", 3, 6, 1), ("B", 4, 3, 1)], num_blocks=2)
    run_step(scheduler)
    step = run_step(scheduler)                  # A has room, B needs a block, and none is free
    assert computed(step) == [("A", 3, 1)] and names(step.preempted) == ["B"]
    assert not step.admitted, "no request begins in a step that preempted one"
    assert names(scheduler.running) == ["A"]


def test_as_few_as_needed_are_preempted():
    scheduler = scheduler_with([("A", 4, 4, 1), ("B", 2, 4, 1), ("C", 2, 4, 1), ("D", 2, 4, 1)],
                               num_blocks=4)
    run_step(scheduler)
    step = run_step(scheduler)
    assert names(step.preempted) == ["D"]
    assert computed(step) == [("A", 4, 1), ("B", 2, 1), ("C", 2, 1)]


def test_everyone_ends_though_blocks_are_short():
    scheduler = scheduler_with([(f"R{i}", 1 + 3 * i, 7, 1) for i in range(5)], num_blocks=6,
                               token_budget=7)
    num_steps = 0
    while scheduler.has_requests and num_steps < 300:
        run_step(scheduler)
        num_steps += 1
    assert not scheduler.has_requests and scheduler.pool.num_used == 0


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities)) + 3          # any constant: softmax takes it away


def kept(logits, p, **total) -> list[int]:
    found = keep_top_p(logits, p, **total)
    chosen = np.flatnonzero(found > -np.inf)
    assert np.array_equal(found[chosen], logits[chosen]), "logits that are kept stay the same"
    assert found.shape == logits.shape
    return chosen.tolist()


def test_the_token_that_reaches_p_is_kept():
    logits = logits_of(0.1, 0.5, 0.15, 0.25)
    assert kept(logits, 0.7) == [1, 3]
    assert kept(logits, 0.8) == [1, 2, 3]
    assert kept(logits, 0.2) == [1], "the likeliest token always stays"
    assert kept(logits, 0.95) == [0, 1, 2, 3]


def test_equal_tokens_are_kept_by_their_number():
    assert kept(np.zeros(8), 0.3) == [0, 1, 2]


def test_removed_tokens_stay_removed():
    logits = logits_of(0.4, 0.3, 0.2, 0.1)
    logits[1] = -np.inf
    assert kept(logits, 0.5) == [0]
    assert kept(logits, 0.6) == [0, 2]
    assert kept(np.array([-np.inf, 2.0, -np.inf]), 0.9) == [1]


def test_total_counts_tokens_that_are_elsewhere():
    logits = logits_of(0.3, 0.2)
    assert kept(logits, 0.5) == [0]
    assert kept(logits, 0.35, total=1 / 0.3) == [0, 1], "these two have only 0.5 of the whole"
    assert kept(logits, 0.25, total=1 / 0.3) == [0]


def test_large_logits():
    assert kept(logits_of(0.1, 0.9) + 5000, 0.8) == [1]


P, Q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.4, 0.1, 0.3])


def test_the_residual_is_what_the_drafts_lack():
    assert np.allclose(residual(P, Q), [0.75, 0, 0.25, 0])
    assert np.allclose(residual(Q, P), [0, 0.25, 0, 0.75])


def test_accepted_and_residual_make_up_the_target():
    draw = np.random.default_rng(0)
    for _ in range(20):
        p, q = draw.dirichlet(np.ones(6), 2)
        found = residual(p, q)
        accepted = np.minimum(p, q)
        assert np.isclose(found.sum(), 1)
        assert np.allclose(accepted + (1 - accepted.sum()) * found, p)


def test_the_residual_of_equal_distributions_is_a_distribution():
    found = residual(P, P.copy())
    assert np.isclose(found.sum(), 1) and np.all(found >= 0), "rounding may still ask for it"


def test_drafts_up_to_the_first_rejected_one_are_kept():
    p, q = np.tile(P, (4, 1)), np.tile(Q, (3, 1))
    # accepted with probability 1, 0.75 and 1 for tokens 0, 1 and 2, never for 3
    assert verify(p, q, [0, 1, 2], [0.99, 0.74, 0.99], [0.6] * 4) == [0, 1, 2, 1]
    assert verify(p, q, [0, 1, 2], [0.99, 0.76, 0.0], [0.6, 0.6, 0.6, 0.6]) == [0, 0]
    assert verify(p, q, [0, 1, 2], [0.99, 0.76, 0.0], [0.6, 0.8, 0.6, 0.6]) == [0, 2]
    assert verify(p, q, [3, 0, 0], [0.0, 0.0, 0.0], [0.1] * 4) == [0]


def test_each_position_has_its_own_distributions():
    p = np.array([P, [0, 0, 0, 1.0], [0, 1.0, 0, 0]])
    q = np.array([P, [0.5, 0, 0, 0.5]])
    assert verify(p, q, [2, 3], [0.9, 0.9], [0.5] * 3) == [2, 3, 1]
    assert verify(p, q, [2, 0], [0.9, 0.0], [0.5] * 3) == [2, 3]


def test_without_drafts_the_target_decides():
    assert verify(P[None], np.zeros((0, 4)), [], [0.5], [0.6]) == [1]


def test_temperature_0_is_the_greedy_answer():
    p, q = np.eye(4)[[2, 1, 3]], np.eye(4)[[2, 0]]
    assert verify(p, q, [2, 0], [0.5, 0.5, 0.5], [0.5] * 3) == [2, 1]


def test_the_answer_is_distributed_as_the_target_alone():
    draw, num_trials = np.random.default_rng(1), 6000
    first, second = np.zeros(4), np.zeros(4)
    for _ in range(num_trials):
        drafts = draw.choice(4, 2, p=Q).tolist()
        tokens = verify(np.tile(P, (3, 1)), np.tile(Q, (2, 1)), drafts, draw.random(2),
                        draw.random(3))
        first[tokens[0]] += 1
        if len(tokens) > 1:
            second[tokens[1]] += 1
    assert np.allclose(first / num_trials, P, atol=0.025), f"{first / num_trials}, not {P}"
    assert np.allclose(second / second.sum(), P, atol=0.03)


def test_accepted_drafts_bring_one_more_token():
    tokens = verify(np.tile(P, (3, 1)), np.tile(P, (2, 1)), [0, 0], [0.5, 0.5], [0.1] * 3)
    assert tokens == [0, 0, 0] and all(isinstance(token, int) for token in tokens)


def test_p_equal_to_q_accepts_every_draft():
    with np.errstate(all="raise"):
        for u in (0.0, 0.5, 0.999):
            assert len(verify(np.tile(P, (3, 1)), np.tile(P, (2, 1)), [0, 1], [u, u],
                              [0.4] * 3)) == 3


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_at_least_one_token_and_at_most_one_more_than_drafts(num_drafts):
    draw = np.random.default_rng(2)
    lengths = {len(verify(np.tile(P, (num_drafts + 1, 1)), np.tile(Q, (num_drafts, 1)),
                          draw.choice(4, num_drafts, p=Q).tolist(), draw.random(num_drafts),
                          draw.random(num_drafts + 1))) for _ in range(300)}
    assert lengths == set(range(1, num_drafts + 2))
