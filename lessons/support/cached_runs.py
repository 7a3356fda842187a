"""Lessons 26 and 30: a small GPT that generates, with several caches and several schedules."""

import itertools

import numpy as np

from minipar.inference import Engine, ModelRunner, SamplingParams, SchedulerConfig
from minipar.inference.cache import PagedKVCache, SequenceInput
from minipar.inference.engine_metrics import Summary
from minipar.inference.model import forward_over_cache
from minipar.inference.sampling.speculative import expected_tokens, verify
from minipar.nn import GPT, GPTConfig

VOCABULARY, CONTEXT = 31, 32
GREEDY = SamplingParams(temperature=0)


def small_gpt(seed: int = 0) -> GPT:
    """A GPT of 2 layers with 4 heads, which share 2 heads of keys and values."""
    return GPT(GPTConfig(VOCABULARY, CONTEXT, num_layers=2, num_heads=4, num_kv_heads=2,
                         width=32)).initialize(seed, np.float64)


def decode(model: GPT, cache: PagedKVCache, tables: list[list[int]],
           prompts: list[list[int]], num_tokens: int) -> tuple[list[list[int]], np.ndarray]:
    """Each prompt with the likeliest tokens behind it, all prompts together; the last logits."""
    tokens, starts = [list(prompt) for prompt in prompts], [0] * len(prompts)
    for _ in range(num_tokens):
        inputs = [SequenceInput(each[start:], start, table)
                  for each, start, table in zip(tokens, starts, tables)]
        logits = forward_over_cache(model, cache, inputs).data
        starts = [len(each) for each in tokens]
        tokens = [[*each, int(row.argmax())] for each, row in zip(tokens, logits)]
    return tokens, logits


def differing(found: list, expected: list) -> int:
    """The number of tokens in which two lists of answers differ."""
    return sum(int(np.sum(np.array(a) != np.array(b)))
               for a, b in zip(found, expected, strict=True))


def answers(model: GPT, prompts: list[list[int]], num_tokens: int, one_by_one: bool = False,
            **settings) -> tuple[list[list[int]], Summary]:
    """The likeliest answers by an engine of these settings: tokens, and its summary."""
    config = SchedulerConfig(**{"num_blocks": 64, "block_size": 4, **settings})
    ticks = itertools.count()
    engine = Engine(ModelRunner(model, config.num_blocks, config.block_size), config,
                    clock=lambda: float(next(ticks)))
    generations = []
    for prompt in prompts:
        generations.append(engine.submit(prompt, num_tokens, GREEDY))
        if one_by_one:
            engine.run()
    engine.run()
    return ([generation.answers[0].tokens for generation in generations],
            engine.metrics.summary(engine.scheduler))


def speculate(p: np.ndarray, q: np.ndarray, num_drafts: int, trials: int) -> tuple[float, float]:
    """Tokens that one call of the target yields, by the formula and on average of `trials`.

    The target draws from p (V,) and the draft from q (V,) at every position.
    """
    draw = np.random.default_rng(num_drafts)
    alpha = float(np.minimum(p, q).sum())
    lengths = [len(verify(np.tile(p, (num_drafts + 1, 1)), np.tile(q, (num_drafts, 1)),
                          draw.choice(q.size, num_drafts, p=q).tolist(), draw.random(num_drafts),
                          draw.random(num_drafts + 1))) for _ in range(trials)]
    return expected_tokens(alpha, num_drafts), float(np.mean(lengths))
