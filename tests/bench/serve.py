"""Serving: tokens a second of many requests together, against one after the other.

    together      32 requests in one engine, a step for all of them
    one by one    the same requests, each alone in the engine

The model is that of `make demo`.  With a folder, also a load curve in virtual time: the same
requests by static and continuous batching, with contiguous and paged caches.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from minipar.backend.malloc import keep_freed_memory
from minipar.inference import Engine, ModelRunner, SamplingParams, SchedulerConfig
from minipar.inference.arrivals import poisson_arrivals
from minipar.nn import GPT, GPTConfig

from .simulated_load import run_load, ways_of_serving
from .timing import Row, interleave, medians

NUM_REQUESTS, PROMPT, ANSWER = 32, 16, 32
TARGET = 5.0            # times the tokens a second of one request at a time
LARGE = GPTConfig(50257, 2048, num_layers=40, num_heads=40, width=5120)       # 13 B parameters
RATES, NUM_ARRIVALS, SLOTS = (0.5, 1, 2, 4, 8, 12), 120, 16 * 1024


def measure(num_rounds: int, out: Path | None = None) -> Iterator[Row]:
    """Yield the row; then, with `out`, draw the load curve there."""
    keep_freed_memory()
    model = GPT(GPTConfig(103, 64)).initialize(seed=0)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 103, PROMPT).tolist() for _ in range(NUM_REQUESTS)]
    ways = {"together": _served(model, prompts, NUM_REQUESTS),
            "one by one": _served(model, prompts, 1)}
    first, second = (serve() for serve in ways.values())
    assert first == second                  # batching changes no token
    seconds = medians(interleave(ways, max(3, num_rounds // 4)))
    tokens = NUM_REQUESTS * ANSWER
    together, alone = (tokens / each for each in seconds.values())
    yield Row(f"{NUM_REQUESTS} requests of {PROMPT} + {ANSWER} tokens, a GPT of 4 × 128",
              f"{together:,.0f} tokens/s", f"one by one {alone:,.0f}", together / alone, TARGET)
    if out is not None:
        draw_load(out)


def _served(model: GPT, prompts: list[list[int]], at_once: int) -> Callable[[], list[list[int]]]:
    def serve() -> list[list[int]]:
        config = SchedulerConfig(NUM_REQUESTS * 4, 16, max_requests=at_once)
        engine = Engine(ModelRunner(model, config.num_blocks, config.block_size), config,
                        clock=time.perf_counter)
        found = [engine.submit(prompt, ANSWER, SamplingParams(seed=i))
                 for i, prompt in enumerate(prompts)]
        engine.run()
        return [each.answers[0].tokens for each in found]
    return serve


def draw_load(out: Path) -> Path:
    """Draw latency over requests a second for the ways of serving; return the path."""
    from minipar.viz import draw_load_curve
    arrivals = {rate: poisson_arrivals(NUM_ARRIVALS, rate, LARGE.context, seed=1)
                for rate in RATES}
    curves = {way: [run_load(arrivals[rate], LARGE, config) for rate in RATES]
              for way, config in ways_of_serving(LARGE.context, SLOTS).items()}
    return draw_load_curve(out / "load.png", curves,
                           f"A GPT of 13 B parameters on one device, {SLOTS:,} slots of cache")
