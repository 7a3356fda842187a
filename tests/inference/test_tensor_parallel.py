"""Tensor-parallel inference: the tokens of one process, 1/p of the cache, the predicted bytes."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.inference.engine import Engine
from minipar.inference.model_runner import ModelRunner
from minipar.inference.parallel.tensor_runner import TensorParallelRunner, step_bytes
from minipar.inference.sampling import SamplingParams
from minipar.inference.sampling.vocabulary_parallel import sampling_bytes
from minipar.inference.scheduling import SchedulerConfig
from minipar.nn import GPT, GPTConfig
from minipar.parallel.tensor.parallelize import parallelize
from minipar.testing import worlds

WORDS, CONFIG = 31, SchedulerConfig(num_blocks=12, block_size=4, token_budget=9)
PROMPTS = [np.random.default_rng(i).integers(0, WORDS, 1 + 4 * i).tolist() for i in range(5)]
PARAMS = [SamplingParams(temperature=[0, 1, 0.7][i % 3], seed=i, top_p=[1, 0.8][i % 2],
                         repetition_penalty=1 + 0.2 * (i % 3)) for i in range(5)]


def gpt(tied: bool = True) -> GPT:
    return GPT(GPTConfig(WORDS, 48, num_layers=2, num_heads=4, num_kv_heads=4, width=16,
                         tied=tied))


def tokens_by(runner) -> list[list[int]]:
    engine = Engine(runner, CONFIG)
    found = [engine.submit(prompt, 8, params, num_logprobs=2)
             for prompt, params in zip(PROMPTS, PARAMS)]
    engine.run()
    assert not engine.scheduler.pool.num_used
    return [(each.answers[0].tokens, each.answers[0].logprobs, each.answers[0].likeliest)
            for each in found]


@worlds(1, 2, 4, mpi=(4,))
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.one_in(2)
def test_tokens_are_those_of_one_process(world, tied):
    expected = tokens_by(ModelRunner(gpt(tied).initialize(1, np.float64), 12, 4))

    def body(comm):
        model = parallelize(gpt(tied), comm).initialize(1, np.float64)
        runner = TensorParallelRunner(model, comm, 12, 4)
        assert runner.cache.num_bytes * comm.size == 12 * 4 * 2 * 2 * 16 * 8
        for found, alone in zip(tokens_by(runner), expected):
            assert found[0] == alone[0]
            np.testing.assert_allclose(found[1], alone[1], atol=1e-12)
            assert [list(each) for each in found[2]] == [list(each) for each in alone[2]]
    world.run(body)


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_as_predicted(size):
    def body(comm):
        model = parallelize(gpt(), comm).initialize(1, np.float64)
        engine = Engine(TensorParallelRunner(model, comm, 12, 4), CONFIG)
        for prompt in ([1, 2, 3], [4, 5]):
            engine.submit(prompt, 6, SamplingParams(temperature=0))
        engine.run()
    cluster = Cluster(size, trace=True)
    cluster.run(body)
    tokens = 5 + 5 * 2              # both prompts, then five steps of two tokens
    assert cluster.trace.bytes_sent(label="all_reduce") == size * step_bytes(size, 2, 16, tokens, 8)
    assert cluster.trace.bytes_sent(label="sampling") == 6 * sampling_bytes(size, 0, 2, 0)
