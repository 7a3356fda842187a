"""Swapped requests that have more blocks together than the device: the host's pool grows."""

import numpy as np

from minipar.inference.engine import Engine
from minipar.inference.model_runner import ModelRunner
from minipar.inference.scheduling import BlockPool, SchedulerConfig
from minipar.nn import GPT, GPTConfig

PROMPTS, NUM_TOKENS = ([1], [2, 3, 4], [5, 6, 7, 8]), (6, 6, 5)


def answers(num_blocks: int) -> tuple[Engine, list[list[int]]]:
    model = GPT(GPTConfig(11, 16, num_layers=1, num_heads=2, width=8)).initialize(1, np.float64)
    config = SchedulerConfig(num_blocks, block_size=1, preempt_by="swap")
    engine = Engine(ModelRunner(model, num_blocks, 1), config)
    found = [engine.submit(prompt, count) for prompt, count in zip(PROMPTS, NUM_TOKENS)]
    engine.run()
    return engine, [generation.answers[0].tokens for generation in found]


def test_tokens_are_those_of_a_large_pool():
    engine, found = answers(num_blocks=8)
    assert found == answers(num_blocks=40)[1]
    # the last request left with 4 blocks, the one before with 5, while the first had up to 6
    assert engine.scheduler.host_pool.num_blocks == engine.runner.cache.pools[0].host.shape[2] == 9
    assert not engine.scheduler.host_pool.num_used and not engine.scheduler.pool.num_used


def test_new_blocks_are_the_last_of_the_free_queue():
    pool = BlockPool(2, 4)
    pool.release(pool.allocate())
    pool.grow_to(1)
    assert list(pool.free) == [1, 0]
    pool.grow_to(4)
    assert list(pool.free) == [1, 0, 2, 3] and pool.ref_counts == [0] * 4
