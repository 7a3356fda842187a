"""Sampling from logits that are cut over ranks: the tokens of one process, and few bytes."""

from dataclasses import fields

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.inference.sampling import DrawInputs, SamplingParams, next_token
from minipar.inference.sampling.vocabulary_parallel import (
    needs_sums,
    next_tokens_over_ranks,
    sampling_bytes,
)
from minipar.testing import worlds

WORDS, DRAWS = 203, 60
rng = np.random.default_rng(0)
LOGITS = rng.standard_normal((DRAWS, WORDS)) * 2
LOGITS[5], LOGITS[6] = np.round(LOGITS[5]), 0           # ties
DRAWN = [DrawInputs(SamplingParams(
    temperature=[0, 1, 0.7, 2][i % 4], top_k=[0, 0, 5, 100][i // 4 % 4], top_p=[1, 0.9, 0.3][i % 3],
    min_p=[0, 0, 0.05][i // 2 % 3], repetition_penalty=[1, 1.3][i % 2],
    presence_penalty=[0, 0.4][i // 3 % 2], frequency_penalty=[0, 0.3][i // 5 % 2], seed=i),
    rng.integers(0, WORDS, 9).tolist(), rng.integers(0, WORDS, i % 7).tolist(), i % 3)
    for i in range(DRAWS)]


def own(comm, logits: np.ndarray) -> np.ndarray:
    start, stop = chunk_bounds(WORDS, comm.size)[comm.rank]
    return logits[:, start:stop]


EXPECTED = [next_token(z, each.params, each.prompt, each.output, each.answer_index)
            for z, each in zip(LOGITS, DRAWN)]


def test_every_rule_is_among_the_draws():
    unused = [field.name for field in fields(SamplingParams)
              if all(getattr(each.params, field.name) == field.default for each in DRAWN)]
    assert not unused, "let DRAWN use it"


@worlds(1, 2, 3, 7, mpi=(4,))
def test_tokens_are_those_of_one_process(world):
    def body(comm):
        assert next_tokens_over_ranks(comm, own(comm, LOGITS), WORDS, DRAWN) == EXPECTED
        assert next_tokens_over_ranks(comm, own(comm, LOGITS)[:0], WORDS, []) == []
    world.run(body)


@worlds(2, 3, mpi=())
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused_on_all_ranks(world, wrong):
    broken = LOGITS[:12].copy()
    broken[:, 4] = wrong

    def body(comm):
        for logits, each in zip(broken, DRAWN[:12]):
            with pytest.raises(ValueError, match="logits hold NaN or infinite"):
                next_tokens_over_ranks(comm, own(comm, logits[None]), WORDS, [each])
    world.run(body)


@worlds(2, 7, mpi=())
def test_tokens_that_never_come_may_have_minus_infinity(world):
    logits = np.where(np.arange(WORDS) % 40 < 35, -np.inf, LOGITS)      # some ranks have no other
    expected = [next_token(z, each.params, each.prompt, each.output, each.answer_index)
                for z, each in zip(logits, DRAWN)]

    def body(comm):
        assert next_tokens_over_ranks(comm, own(comm, logits), WORDS, DRAWN) == expected
    world.run(body)


@worlds(3, mpi=())
def test_all_of_the_best_tokens_on_one_rank(world):
    logits = -np.arange(WORDS, dtype=float)[None] / 50
    inputs = [DrawInputs(params, [1], [], 0) for params in (
        SamplingParams(top_k=9), SamplingParams(top_p=0.5), SamplingParams(top_k=90, top_p=0.9))]
    for each in inputs:
        expected = next_token(logits[0], each.params, each.prompt, each.output)
        world.run(lambda comm, each=each, expected=expected: np.testing.assert_equal(
            next_tokens_over_ranks(comm, own(comm, logits), WORDS, [each]), [expected]))


def test_greedy_sends_two_numbers_a_draw():
    assert sampling_bytes(4, 0, 10, 0) == 10 * 2 * 8 * 4 * 3        # to three others from each


@pytest.mark.parametrize(("params", "candidates"), [
    (SamplingParams(), 0), (SamplingParams(temperature=0), 1), (SamplingParams(top_k=9), 9),
    (SamplingParams(top_p=0.3), 64), (SamplingParams(temperature=5, top_p=0.9), 64 + 102),
    (SamplingParams(top_k=9, top_p=0.5, min_p=0.1), 9)])
@pytest.mark.parametrize("size", [2, 3])
def test_bytes_are_as_predicted(size, params, candidates):
    if candidates > 64 and size == 3:           # 64 of each rank's 68 tokens are enough
        candidates = 64
    def body(comm):
        inputs = [DrawInputs(params, [1], [2])] * 4
        next_tokens_over_ranks(comm, own(comm, LOGITS)[:4], WORDS, inputs)
    cluster = Cluster(size, trace=True)
    cluster.run(body)
    assert cluster.trace.bytes_sent(label="sampling") == sampling_bytes(
        size, 4 * needs_sums(params), 4 * candidates, 0 if candidates else 4)
    if candidates < 64:
        assert sampling_bytes(size, 4, 4 * candidates, 4) < 4 * WORDS * 8 * (size - 1)
