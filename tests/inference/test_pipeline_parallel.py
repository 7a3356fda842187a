"""Pipeline-parallel inference: the tokens of one process, the predicted bytes, no idle stage."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.inference.engine import Engine
from minipar.inference.model_runner import ModelRunner
from minipar.inference.parallel.pipeline_engine import PipelineEngine, step_bytes
from minipar.inference.sampling import SamplingParams
from minipar.inference.scheduling import SchedulerConfig
from minipar.launcher import metered
from minipar.nn import GPT, GPTConfig
from minipar.testing import worlds

WORDS, CONFIG = 31, SchedulerConfig(num_blocks=12, block_size=4, token_budget=9)
PROMPTS = [np.random.default_rng(i).integers(0, WORDS, 1 + 2 * i).tolist() for i in range(7)]
PARAMS = [SamplingParams(temperature=[0, 1, 0.7][i % 3], seed=i) for i in range(7)]


def gpt(tied: bool = True, width: int = 16) -> GPT:
    config = GPTConfig(WORDS, 48, num_layers=4, num_heads=4, num_kv_heads=2, width=width, tied=tied)
    return GPT(config).initialize(1, np.float64)


def tokens_by(engine) -> list[list[int]]:
    found = [engine.submit(prompt, 6, params) for prompt, params in zip(PROMPTS, PARAMS)]
    engine.run()
    return [each.answers[0].tokens for each in found]


@worlds(1, 2, 3, 4, mpi=(4,))
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.one_in(2)
def test_tokens_are_those_of_one_process(world, tied):
    expected = tokens_by(Engine(ModelRunner(gpt(tied), 12, 4), CONFIG))

    def body(comm):
        engine = PipelineEngine(gpt(tied), comm, CONFIG)
        assert tokens_by(engine) == expected
        assert not any(each.scheduler.pool.num_used for each in engine.engines)
    world.run(body)


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_as_predicted(size):
    def body(comm):
        engine = PipelineEngine(gpt(), comm, CONFIG, num_groups=1)
        for prompt in ([1, 2, 3], [4, 5]):
            engine.submit(prompt, 6, SamplingParams(temperature=0))
        engine.run()
    cluster = Cluster(size, trace=True)
    cluster.run(body)
    expected = step_bytes(size, 16, 5, 2, 8) + 5 * step_bytes(size, 16, 2, 2, 8)
    assert cluster.trace.bytes_sent(label="") == expected


def test_as_many_groups_as_stages_keep_all_stages_busy():
    def seconds(num_groups: int) -> float:
        def body(comm):
            engine = PipelineEngine(gpt(width=64), comm, SchedulerConfig(64, 4), num_groups,
                                    cuts=[2, 3, 4])
            for i in range(8):
                engine.submit([i], 24, SamplingParams(temperature=0))
            engine.run()
        cluster = Cluster(4, latency=0, flops_per_second=1e9, memory_bandwidth=1e30)
        return cluster.run(metered(body))[1]
    assert seconds(4) < 0.4 * seconds(1)
