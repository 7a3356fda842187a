"""The engine: whatever runs beside a request, and however it is scheduled, its tokens are the same.
"""

import itertools

import numpy as np
import pytest

from minipar.autograd import no_grad
from minipar.inference.engine import Engine
from minipar.inference.model_runner import ModelRunner
from minipar.inference.sampling import SamplingParams, next_token, top_logprobs
from minipar.inference.scheduling import Policy, RequestTooLarge, SchedulerConfig
from minipar.nn import GPT, GPTConfig

CONTEXT, VOCABULARY, TOKENS = 48, 31, 10
MODEL = GPT(GPTConfig(VOCABULARY, CONTEXT, num_layers=2, num_heads=4, num_kv_heads=2,
                      width=32)).initialize(seed=1, dtype=np.float64)
COMMON = [3, 1, 4, 1, 5, 9, 2, 6]
PROMPTS = [np.random.default_rng(i).integers(0, VOCABULARY, 1 + 3 * i).tolist()
           for i in range(5)] + [COMMON, [*COMMON, 7], [*COMMON, 7, 8, 9, 10]]
PARAMS = [SamplingParams(temperature=0.0 if i % 3 == 0 else 0.5 * i, seed=i, top_k=6 * (i % 2),
                         repetition_penalty=1 + 0.2 * (i % 3)) for i in range(len(PROMPTS))]
SETTINGS = {
    "all at once": {}, "chunks": {"token_budget": 5}, "few blocks": {"num_blocks": 9},
    "few blocks, swapped": {"num_blocks": 9, "preempt_by": "swap"},
    "prefix cache": {"prefix_caching": True, "max_requests": 2},
    "prefix cache, few blocks, chunks": {"prefix_caching": True, "num_blocks": 9,
                                         "token_budget": 7},
    **{policy: {"policy": policy, "max_requests": 3, "token_budget": 20} for policy in Policy}}


def make_engine(**settings) -> Engine:
    config = SchedulerConfig(**{"num_blocks": 64, "block_size": 4, **settings})
    ticks = itertools.count()
    return Engine(ModelRunner(MODEL, config.num_blocks, config.block_size), config,
                  clock=lambda: float(next(ticks)))


def logits_after(tokens: list[int]) -> np.ndarray:
    with no_grad():
        return MODEL(np.array([tokens])).data[0, -1]


def without_cache(prompt, params, count=TOKENS, answer=0) -> list[int]:
    """The tokens by a whole forward for each."""
    output: list[int] = []
    for _ in range(count):
        output.append(next_token(logits_after(prompt + output), params, prompt, output, answer))
    return output


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return [without_cache(prompt, params) for prompt, params in zip(PROMPTS, PARAMS)]


def is_empty(engine: Engine) -> bool:
    pools = engine.scheduler.pool, engine.scheduler.host_pool
    return not engine.has_requests and not any(pool.num_used for pool in pools)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.one_in(2)
def test_tokens_are_those_of_whole_forwards(expected, name):
    engine = make_engine(**SETTINGS[name])
    found = [engine.submit(prompt, TOKENS, params) for prompt, params in zip(PROMPTS, PARAMS)]
    engine.run()
    assert [generation.answers[0].tokens for generation in found] == expected
    assert {generation.answers[0].finish_reason for generation in found} == {"length"}
    assert is_empty(engine)
    summary = engine.metrics.summary(engine.scheduler)
    assert (summary.num_preemptions > 0) == ("few blocks" in name)
    assert (summary.prefix_hit_rate > 0) == ("prefix" in name)
    once = sum(len(prompt) + TOKENS - 1 for prompt in PROMPTS)
    if "prefix" not in name:
        assert summary.tokens_computed - summary.tokens_computed_again == once


def test_answers_share_a_prompt_and_differ():
    params = SamplingParams(seed=5)
    engine = make_engine(num_blocks=12)
    found = engine.submit(COMMON, TOKENS, params, num_answers=3)
    other = engine.submit([1, 2], TOKENS, params)
    engine.run()
    answers = [answer.tokens for answer in found.answers]
    assert answers == [without_cache(COMMON, params, answer=i) for i in range(3)]
    assert len({tuple(tokens) for tokens in answers}) == 3
    assert other.answers[0].tokens == without_cache([1, 2], params)
    assert is_empty(engine)


def test_streams_run_side_by_side(expected):
    engine = make_engine(token_budget=6)
    streams = [engine.stream(engine.submit(prompt, TOKENS, params))
               for prompt, params in zip(PROMPTS, PARAMS)]
    tokens = [list(each) for each in zip(*streams)]
    assert [list(each) for each in zip(*tokens)] == expected


def test_stop_tokens_and_conditions_end_an_answer(expected):
    engine = make_engine()
    third = expected[4][2]
    by_token = engine.submit(PROMPTS[4], TOKENS, PARAMS[4], stop_tokens=[third])
    by_rule = engine.submit(PROMPTS[4], TOKENS, PARAMS[4], is_stop=lambda tokens: len(tokens) == 4)
    engine.run()
    first = expected[4].index(third)
    assert by_token.answers[0].tokens == expected[4][:first + 1]
    assert by_rule.answers[0].tokens == expected[4][:4]
    assert {each.answers[0].finish_reason for each in (by_token, by_rule)} == {"stop"}
    assert is_empty(engine)


def test_logprobs_are_the_models():
    engine = make_engine()
    found = engine.submit(COMMON, 3, SamplingParams(temperature=2, seed=1), num_logprobs=2)
    engine.run()
    (answer,) = found.answers
    for i, token in enumerate(answer.tokens):
        logprob, likeliest = top_logprobs(logits_after(COMMON + answer.tokens[:i]), token, 2)
        assert answer.logprobs[i] == pytest.approx(logprob, abs=1e-12)
        assert answer.likeliest[i] == pytest.approx(likeliest, abs=1e-12)


def test_cancelling_frees_blocks_and_changes_no_other_request(expected):
    engine = make_engine(num_blocks=9, preempt_by="swap")
    found = [engine.submit(prompt, TOKENS, params) for prompt, params in zip(PROMPTS, PARAMS)]
    for _ in range(6):
        engine.step()
    for victim in (0, 3, 6):
        engine.cancel(found[victim])
        engine.cancel(found[victim])            # again: no effect
    engine.run()
    assert [found[i].answers[0].tokens for i in (1, 2, 4, 5, 7)] == \
        [expected[i] for i in (1, 2, 4, 5, 7)]
    assert is_empty(engine) and not engine.generations


def test_a_failure_of_the_model_frees_everything(expected):
    engine = make_engine(prefix_caching=True)
    run, engine.runner.run = engine.runner.run, lambda work: 1 / 0
    failed = engine.submit(PROMPTS[7], TOKENS, PARAMS[7])
    with pytest.raises(ZeroDivisionError):
        engine.step()
    assert is_empty(engine) and failed.is_done and not engine.scheduler.pool.key_of
    engine.runner.run = run
    again = engine.submit(PROMPTS[7], TOKENS, PARAMS[7])
    engine.run()
    assert again.answers[0].tokens == expected[7]


@pytest.mark.parametrize(("prompt", "max_tokens", "message"), [
    ([31], 5, "the prompt has token 31, but the model knows 0 … 30"),
    ([-1], 5, "the prompt has token -1"),
    ([1] * 40, 9, "max_tokens=9 are more than the model's context of 48: lower max_tokens to 8"),
    ([1] * 48, 1, "leaves no room in the model's context of 48: shorten it"),
    ([1] * 20, 20, "needs 10 blocks of 4 tokens, and the pool has 9"),
    ([], 5, "0 prompt tokens"),
    ([1], 0, "max_tokens=0"),
])
def test_requests_that_cannot_run_are_refused_when_they_come(prompt, max_tokens, message):
    engine = make_engine(num_blocks=9)
    with pytest.raises(ValueError, match=message):
        engine.submit(prompt, max_tokens)
    assert is_empty(engine) and not engine.generations
    assert issubclass(RequestTooLarge, ValueError)


def test_metrics_count_time_and_the_cache():
    engine = make_engine()                      # each look at the clock is one second later
    engine.submit(COMMON, 4)
    engine.run()
    summary = engine.metrics.summary(engine.scheduler)
    assert (summary.num_requests, summary.first_token_median, summary.gap_p95) == (1, 1, 1)
    assert summary.tokens_per_second == 1
    assert summary.peak_cache_bytes == 3 * 4 * 2 * 2 * 2 * 8 * 8     # blocks … float64
    slots, filled = 8 + 3 * 12, 8 + 9 + 10 + 11
    assert summary.waste == 1 - filled / slots
