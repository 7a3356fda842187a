"""Sampling: recorded distributions, seeds per request and position, mistakes named."""

import json
from pathlib import Path

import numpy as np
import pytest

from minipar.inference.sampling import (
    DrawInputs,
    SamplingParams,
    next_token,
    next_tokens,
    pick,
    probabilities,
    top_logprobs,
    uniform,
)
from tests.support.strict_array import StrictArray, as_cupy

RECORDED = json.loads((Path(__file__).parent / "arrays/sampling.json").read_text())
LOGITS = np.array(RECORDED["logits"])
NAMES = {"repetition": "repetition_penalty", "presence": "presence_penalty",
         "frequency": "frequency_penalty"}


def params_of(options: dict) -> tuple[SamplingParams, list[int], list[int]]:
    """The parameters of a recorded case, its prompt and its output."""
    values = {NAMES.get(key, key): value for key, value in options.items()
              if key not in ("seen", "counts")}
    output = [int(token) for token, count in options.get("counts", {}).items()
              for _ in range(count)]
    return SamplingParams(**values), options.get("seen", []), output


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: json.dumps(case["options"]))
@pytest.mark.one_in(3)
def test_recorded_distributions(case):
    params, prompt, output = params_of(case["options"])
    found = probabilities(LOGITS, params, prompt, output)
    np.testing.assert_allclose(found, case["p"], atol=1e-15, rtol=0)
    assert np.flatnonzero(found).tolist() == case["kept"]
    likeliest = int(np.argmax(found))
    if len(case["kept"]) > 1:
        draws = [pick(found, uniform(3, position)) for position in range(4000)]
        expected = case["expected_of_100000_draws_of_likeliest"] / 1e5
        spread = 5 * np.sqrt(expected * (1 - expected) / 4000)
        assert abs(np.mean(np.array(draws) == likeliest) - expected) < spread
        assert set(draws) <= set(case["kept"])
    else:
        assert next_token(LOGITS, params, prompt, output) == likeliest


def test_a_draw_depends_on_seed_answer_and_position_alone():
    first = uniform(1, 5)
    assert uniform(1, 5) == first
    assert len({first, uniform(2, 5), uniform(1, 6), uniform(1, 5, answer_index=1)}) == 4


def test_a_token_of_no_probability_is_never_drawn():
    distribution = np.array([0, 0.5, 0, 0.5, 0])
    assert {pick(distribution, u) for u in (0.0, 0.2, 0.5, 0.9, 1 - 2**-53)} == {1, 3}


def test_logprobs_are_the_models():
    logprob, likeliest = top_logprobs(LOGITS, 2, 3)
    expected = LOGITS - np.log(np.exp(LOGITS).sum())
    assert logprob == pytest.approx(expected[2], abs=1e-12)
    assert list(likeliest) == np.argsort(-LOGITS)[:3].tolist()
    assert likeliest[9] == pytest.approx(expected[9], abs=1e-12)


@pytest.mark.parametrize(("values", "message"), [
    ({"temperature": -1}, "temperature must be at least 0, not -1"),
    ({"top_p": 0}, r"top_p must be in \(0, 1\], not 0"),
    ({"top_k": 2.5}, "top_k must be an integer, not 2.5"),
    ({"seed": None}, "seed must be an integer, not None"),
    ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
    ({"top_p": True}, "top_p must be a number, not True"),
    ({"top_k": -2}, "top_k must be at least 1, or 0 for all tokens, not -2"),
    ({"min_p": 1.5}, r"min_p must be in \[0, 1\], not 1.5"),
    ({"repetition_penalty": 0}, "repetition_penalty must be above 0, not 0"),
    ({"presence_penalty": float("nan")}, "presence_penalty must be 0, or .* in size, not nan"),
    ({"temperature": float("inf")}, "temperature must be 0, or .* in size, not inf"),
    ({"temperature": 10**400}, "temperature must be 0, or .* in size, not 10000000"),
    ({"seed": 2**64}, "seed must be 0, or .* in size, not 18446744073709551616"),
])
def test_values_that_make_no_sense_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**values)


@pytest.mark.parametrize("name", ["temperature", "repetition_penalty", "presence_penalty",
                                  "frequency_penalty", "min_p", "top_p"])
@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e-100, 1e19, 1e308, -1e19, -1e308])
def test_no_value_that_is_accepted_makes_logits_overflow(name, value):
    values = dict.fromkeys(["temperature", "repetition_penalty", name], 1e-100)
    try:
        params = SamplingParams(**{**values, name: value})
    except ValueError:
        return
    found = probabilities(1e4 * LOGITS, params, [0, 1], [2, 2] + list(range(len(LOGITS))))
    assert np.isfinite(found).all() and found.sum() == pytest.approx(1)


@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_finite_are_refused(temperature):
    with pytest.raises(ValueError, match="logits hold NaN or infinite"):
        next_token(np.array([0, np.nan]), SamplingParams(temperature=temperature), [1], [])


def test_a_batch_is_drawn_as_each_alone():
    logits = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    inputs = [DrawInputs(SamplingParams(temperature=i % 3 / 2, top_k=7 * (i % 2), seed=i,
                                        repetition_penalty=1 + i % 2), [1, 2], [3] * i, i)
              for i in range(6)]
    assert next_tokens(logits, inputs) == [
        next_token(z, each.params, each.prompt, each.output, each.answer_index)
        for z, each in zip(logits, inputs)]
    assert next_tokens(logits[:0], []) == []
    assert next_tokens(logits, [DrawInputs(SamplingParams(temperature=0), [], [])] * 6) \
        == logits.argmax(-1).tolist()


def test_on_a_device_greedy_draws_stay_there(monkeypatch):
    logits = np.random.default_rng(0).standard_normal((3, 40))
    inputs = [DrawInputs(SamplingParams(temperature=t), [1], []) for t in (0, 1, 0)]
    with as_cupy(monkeypatch):
        assert next_tokens(StrictArray(logits), inputs) == next_tokens(logits, inputs)


@pytest.mark.parametrize("u", [0.0, 0.3, 1 - 2**-53])
def test_rounding_never_picks_a_token_of_no_probability(u):
    weights = np.array([0, 2**-60, 1 + 2**-52, 2**-54, 0, 0])
    assert weights[pick(weights, u)] > 0
