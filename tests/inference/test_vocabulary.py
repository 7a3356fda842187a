"""Sampling from logits that are cut over ranks: the tokens of one process, and few bytes."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.inference.sampling import SamplingParams, next_token
from minipar.inference.sampling.vocabulary import RowToDraw, next_tokens, sampling_bytes
from minipar.testing import worlds

WORDS, ROWS = 203, 60
rng = np.random.default_rng(0)
LOGITS = rng.standard_normal((ROWS, WORDS)) * 2
LOGITS[5], LOGITS[6] = np.round(LOGITS[5]), 0           # ties
DRAWN = [RowToDraw(SamplingParams(
    temperature=[0, 1, 0.7, 2][i % 4], top_k=[0, 0, 5, 100][i // 4 % 4], top_p=[1, 0.9, 0.3][i % 3],
    min_p=[0, 0, 0.05][i // 2 % 3], repetition_penalty=[1, 1.3][i % 2],
    presence_penalty=[0, 0.4][i // 3 % 2], seed=i),
    rng.integers(0, WORDS, 9).tolist(), rng.integers(0, WORDS, i % 7).tolist(), i % 3)
    for i in range(ROWS)]


def own(comm, logits: np.ndarray) -> np.ndarray:
    start, stop = chunk_bounds(WORDS, comm.size)[comm.rank]
    return logits[:, start:stop]


EXPECTED = [next_token(z, row.params, row.prompt, row.output, row.sample)
            for z, row in zip(LOGITS, DRAWN)]


@worlds(1, 2, 3, 7, mpi=(4,))
def test_tokens_are_those_of_one_process(world):
    def body(comm):
        assert next_tokens(comm, own(comm, LOGITS), WORDS, DRAWN) == EXPECTED
        assert next_tokens(comm, own(comm, LOGITS)[:0], WORDS, []) == []
    world.run(body)


@worlds(2, 3, mpi=())
def test_logits_that_are_not_finite_are_refused_on_all_ranks(world):
    broken = LOGITS[:2].copy()
    broken[1, 4] = np.nan

    def body(comm):
        with pytest.raises(ValueError, match="logits hold NaN or infinite"):
            next_tokens(comm, own(comm, broken), WORDS, DRAWN[:2])
    world.run(body)


@pytest.mark.parametrize(("params", "candidates"), [
    (SamplingParams(), 0), (SamplingParams(temperature=0), 1), (SamplingParams(top_k=9), 9),
    (SamplingParams(top_p=0.3), 64), (SamplingParams(temperature=5, top_p=0.9), 64 + 102),
    (SamplingParams(top_k=9, top_p=0.5, min_p=0.1), 9)])
@pytest.mark.parametrize("size", [2, 3])
def test_bytes_are_as_predicted(size, params, candidates):
    if candidates > 64 and size == 3:           # 64 of each rank's 68 words are enough
        candidates = 64
    def body(comm):
        next_tokens(comm, own(comm, LOGITS)[:4], WORDS, [RowToDraw(params, [1], [2])] * 4)
    cluster = Cluster(size, trace=True)
    cluster.run(body)
    assert cluster.trace.bytes_sent(label="sampling") == sampling_bytes(
        size, 4, 4 * candidates, 0 if candidates else 4)
    if candidates < 64:
        assert sampling_bytes(size, 4, 4 * candidates, 4) < 4 * WORDS * 8 * (size - 1)
