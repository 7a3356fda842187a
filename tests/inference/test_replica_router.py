"""Replicas behind a router: the tokens of one engine, on the least loaded replica."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.inference.engine import Engine
from minipar.inference.model_runner import ModelRunner
from minipar.inference.parallel.replica_router import ReplicaRouter, step_bytes
from minipar.inference.sampling import SamplingParams
from minipar.inference.scheduling import SchedulerConfig
from minipar.nn import GPT, GPTConfig
from minipar.testing import worlds

CONFIG = SchedulerConfig(num_blocks=30, block_size=4)
PROMPTS = [np.random.default_rng(i).integers(0, 31, 1 + 2 * i).tolist() for i in range(7)]
PARAMS = [SamplingParams(temperature=[0, 1][i % 2], seed=i) for i in range(7)]


def engine() -> Engine:
    model = GPT(GPTConfig(31, 48, num_layers=2, num_heads=2, width=8)).initialize(1, np.float64)
    return Engine(ModelRunner(model, CONFIG.num_blocks, CONFIG.block_size), CONFIG)


@worlds(1, 2, 3, mpi=(4,))
def test_tokens_are_those_of_one_engine(world):
    alone = engine()
    expected = [alone.submit(prompt, 5, params, num_answers=1 + i % 2)
                for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS))]
    alone.run()

    def body(comm):
        router = ReplicaRouter(engine(), comm)
        found = [router.submit(prompt, 5, params, 1 + i % 2)    # by position, as for an engine
                 for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS))]
        assert {routed.replica for routed in found} == set(range(comm.size))
        router.run()
        assert [routed.answers for routed in found] == [each.answers for each in expected]
        assert not router.engine.scheduler.pool.num_used
    world.run(body)


def test_requests_go_where_the_least_is_left_to_do():
    def body(comm):
        router = ReplicaRouter(engine(), comm)
        first = [router.submit([1] * length, 4).replica for length in (20, 3, 3, 9, 1)]
        router.run()
        return first, router.submit([1], 1).replica
    assert Cluster(2).run(body)[0] == [([0, 1, 1, 1, 0], 0)] * 2


@pytest.mark.parametrize("size", [2, 3])
def test_bytes_are_as_predicted(size):
    def body(comm):
        router = ReplicaRouter(engine(), comm)
        for _ in range(size):
            router.submit([1, 2, 3], 4)
        router.run()
    cluster = Cluster(size, trace=True)
    cluster.run(body)
    assert cluster.trace.bytes_sent(label="tokens") == 4 * step_bytes(size, size)


def test_a_request_that_cannot_run_is_refused_on_all_ranks():
    def body(comm):
        router = ReplicaRouter(engine(), comm)
        with pytest.raises(ValueError, match="lower max_tokens to 28"):
            router.submit([1] * 20, 40)
        return router.has_requests
    assert Cluster(3).run(body)[0] == [False] * 3
