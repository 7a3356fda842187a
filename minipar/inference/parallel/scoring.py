"""The log-probabilities of a given text: how likely the model finds each of its tokens.

    tokens     a      b             c
    scores     –      log p(b|a)    log p(c|ab)         the first token follows nothing

Evaluations of models use such scores to compare answers, or to measure the perplexity of a text.
The text is computed in chunks over a cache of its own, in the model's precision.

If there are several replicas, each computes all scores.  With tensor parallelism no rank has all
logits, so the ranks compute a score together.  In a pipeline the last stage sends the scores to the
others.
"""

import math
from typing import Any

import numpy as np

from ...backend import Array, to_host
from ...nn import GPT
from ...parallel.tensor.parallelize import split_of
from ..cache import ContiguousKVCache, SequenceInput, TokenBatch
from ..generate import make_cache
from ..model import forward_over_cache
from ..sampling import top_logprobs
from ..sampling.sampler import NOT_FINITE
from ..sampling.vocabulary_parallel import top_logprobs_over_ranks
from .logprob_messages import Logprobs, num_numbers, pack, unpack
from .pipeline_engine import PipelineEngine
from .pipeline_stage import Stage
from .replica_router import ReplicaRouter

CHUNK = 256         # tokens whose logits (CHUNK, V) are held at a time


def prompt_logprobs_over_ranks(engine: Any, prompt: list[int], count: int) -> list[Logprobs]:
    """Collective.  What `prompt_logprobs` returns, on all ranks, for any engine of a mesh."""
    if isinstance(engine, ReplicaRouter):
        engine = engine.engine
    if isinstance(engine, PipelineEngine):
        return over_stages(engine.groups[0].stage, len(engine.groups), prompt, count)
    return prompt_logprobs(engine.runner.model, prompt, count)


def prompt_logprobs(model: GPT, prompt: list[int], count: int) -> list[Logprobs]:
    """For each token but the first: its log-probability, and those of the `count` likeliest ones.

    Collective if the model is cut over tp.  Raises ValueError for logits that are not finite.
    """
    cache, found = make_cache(model, len(prompt)), []
    for start in range(0, len(prompt) - 1, CHUNK):
        chunk = SequenceInput(prompt[start:start + CHUNK], start, [0])
        logits = forward_over_cache(model, cache, [chunk], last_only=False).data
        found += scores_of(model, logits, prompt[start + 1:start + 1 + CHUNK], count)
    return found


def scores_of(model: GPT, logits: Array, tokens: list[int], count: int) -> list[Logprobs]:
    """The scores of tokens that follow logits (n, V), or this rank's columns of them.

    There may be fewer tokens than logits.  Raises ValueError for logits that are not finite.
    """
    rows, split = to_host(logits), split_of(model)
    if split is None:
        if not np.isfinite(rows.max(axis=-1)).all():
            raise ValueError(NOT_FINITE)
        return [top_logprobs(row, token, count) for row, token in zip(rows, tokens)]
    found = top_logprobs_over_ranks(split.tp, rows[:len(tokens)], model.config.vocab_size, tokens,
                                    count)
    if any(math.isnan(logprob) for logprob, _ in found):
        raise ValueError(NOT_FINITE)
    return found


def over_stages(stage: Stage, tag: int, prompt: list[int], count: int) -> list[Logprobs]:
    """Collective.  The scores of a prompt by the stages of a pipeline, in messages of this tag."""
    pp, num_tokens = stage.pp, len(prompt) - 1
    cache, found = ContiguousKVCache(stage.sizes, 1, len(prompt), stage.like), []
    counts = [min(count, stage.vocab_size)] * num_tokens
    numbers = np.full(num_numbers(counts), np.nan)
    try:
        for start in range(0, num_tokens, CHUNK):
            batch = TokenBatch([SequenceInput(prompt[start:start + CHUNK], start, [0])],
                               cache.block_size, cache.data)
            out = stage.run(stage.receive(batch, tag), cache, batch, last_only=False)
            if stage.is_last:
                found += scores_of(stage.model, out, prompt[start + 1:start + 1 + CHUNK], count)
            else:
                pp.send(np.ascontiguousarray(out), pp.rank + 1, tag)
        if stage.is_last:
            numbers = pack(found, counts)
    finally:                                        # the other stages wait for numbers or NaN
        for rank in range(pp.size - 1):
            if num_tokens and stage.is_last:
                pp.send(numbers, rank, tag)
    if num_tokens and not stage.is_last:
        pp.recv(numbers, pp.size - 1, tag)
    if np.isnan(numbers).any():
        raise ValueError(NOT_FINITE)
    return unpack(numbers, counts)
