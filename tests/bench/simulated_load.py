"""A simulated load: requests arrive at random times, and an engine serves them in virtual time.

    steps       ▇▇▇▇▇ ▇▇▇▇▇▇     a step takes max(FLOPs / flops_per_second, bytes / bandwidth) of
                                 the simulated cluster's device

No model runs: a step reports the FLOPs and bytes of a GPT of given sizes, and draws token 0.  So it
takes seconds to compare schedulers and caches for a model of any size.

    FLOPs   2 for each weight and token, 4 L d for each pair of a token and a token before it
    bytes   all weights once a step, and the keys and values of every sequence

Decoding one sequence reads all weights for one token: it waits for memory.  A batch reads the
weights once for all its tokens, so batching pays until the FLOPs take longer than the reads.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.inference import Engine, SchedulerConfig
from minipar.inference.arrivals import Arrival
from minipar.inference.model_runner import NewToken, StepWork
from minipar.inference.scheduling import Policy
from minipar.nn import GPTConfig


@dataclass(frozen=True)
class CostModel:
    """The cost of a step of a GPT, by its sizes."""

    num_weights: int
    num_layers: int
    width: int
    bytes_per_token: int            # of keys and values
    itemsize: int

    @classmethod
    def of(cls, config: GPTConfig, itemsize: int = 2) -> "CostModel":
        """The sizes of a dense GPT whose numbers take `itemsize` bytes."""
        if config.experts is not None:
            raise ValueError("the costs on paper are for a dense model: leave experts out")
        d, wide = config.width, config.mlp_width or 4 * config.width
        head = config.head_width or d // config.num_heads
        kv = (config.num_kv_heads or config.num_heads) * head
        q = config.num_heads * head
        in_block = d * (2 * q + 2 * kv) + {"gelu": 2, "swiglu": 3}[config.mlp] * d * wide
        return cls(config.num_layers * in_block + config.vocab_size * d, config.num_layers, q,
                   2 * config.num_layers * kv * itemsize, itemsize)

    def flops(self, work: StepWork) -> int:
        """FLOPs of a step."""
        pairs = sum(len(each.tokens) * (each.start + len(each.tokens)) for each in work.inputs)
        tokens = sum(len(each.tokens) for each in work.inputs)
        return 2 * self.num_weights * tokens + 4 * self.num_layers * self.width * pairs

    def bytes(self, work: StepWork) -> int:
        """Bytes that a step reads."""
        cached = sum(each.start + len(each.tokens) for each in work.inputs)
        return self.num_weights * self.itemsize + cached * self.bytes_per_token


class CostOnlyRunner:
    """A runner that only reports what a step costs; every token is 0."""

    def __init__(self, comm: Communicator, sizes: CostModel, config: GPTConfig,
                 block_size: int):
        self.comm, self.sizes = comm, sizes
        self.context, self.vocab_size = config.context, config.vocab_size
        self.bytes_per_block = block_size * sizes.bytes_per_token

    def run(self, work: StepWork) -> list[NewToken]:
        """Let the step's virtual time pass."""
        self.comm.report_compute("step", self.sizes.flops(work), self.sizes.bytes(work), 0.0)
        return [NewToken(0)] * len(work.draws)


class LoadResult(NamedTuple):
    """The waits that users saw under a load, and its costs: seconds of virtual time."""

    rate: float                     # requests a second
    seconds_per_token: float        # mean over requests of (end - arrival) / tokens of the answer
    first_token_median: float
    gap_p95: float
    tokens_per_second: float
    waste: float
    num_preemptions: int
    most_running: int


def run_load(arrivals: list[Arrival], model: GPTConfig, config: SchedulerConfig,
             flops_per_second: float = 1e14, memory_bandwidth: float = 1e12,
             itemsize: int = 2) -> LoadResult:
    """Serve the arrivals on one simulated device; return what was measured."""
    def body(comm: Communicator) -> LoadResult:
        runner = CostOnlyRunner(comm, CostModel.of(model, itemsize), model, config.block_size)
        engine = Engine(runner, config, clock=comm.now)
        generations, most_running = [], 0
        for arrival in arrivals:
            while engine.has_requests and comm.now() < arrival.time:
                engine.step()
                most_running = max(most_running, len(engine.scheduler.running))
            if comm.now() < arrival.time:                   # idle until it comes
                comm.report_compute("idle", round((arrival.time - comm.now())
                                                  * flops_per_second), 0, 0.0)
            generation = engine.submit([0] * arrival.prompt, arrival.answer)
            generation.submitted = arrival.time             # during the step before
            generations.append(generation)
        while engine.has_requests:
            engine.step()
            most_running = max(most_running, len(engine.scheduler.running))
        figures = engine.metrics.summary(engine.scheduler)
        latency = np.mean([(each.token_times[-1] - each.submitted) / len(each.token_times)
                           for each in generations])
        rate = len(arrivals) / arrivals[-1].time
        return LoadResult(rate, float(latency), figures.first_token_median, figures.gap_p95,
                          figures.tokens_per_second, figures.waste, figures.num_preemptions,
                          most_running)
    cluster = Cluster(1, flops_per_second=flops_per_second, memory_bandwidth=memory_bandwidth)
    return cluster.run(body)[0][0]


def ways_of_serving(context: int, num_slots: int,
                    block_size: int = 16) -> dict[str, SchedulerConfig]:
    """The ways that are compared, in a cache of `num_slots` tokens: batches and caches.

    A contiguous cache is a paged one whose block is the whole context.
    """
    contiguous = SchedulerConfig(num_slots // context, context)
    return {
        "static batches, contiguous": replace(contiguous, policy=Policy.STATIC,
                                              max_requests=num_slots // context),
        "continuous, contiguous": contiguous,
        "continuous, paged": SchedulerConfig(num_slots // block_size, block_size)}
