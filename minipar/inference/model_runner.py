"""The runner carries out a step with arrays: it moves blocks, runs the model and draws tokens.

    StepWork: moved blocks, new tokens, draws ─▶ runner.run ─▶ a drawn token for each draw

An engine gives a runner only numbers and lists.  So the same engine drives a model in this process
or a model that is spread over ranks (`parallel/`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from ..backend import Array, asarray_like, to_host
from ..nn import GPT
from .cache import KVSizes, PagedKVCache, SequenceInput
from .cache.paged import Pairs
from .model import forward_over_cache
from .sampling import DrawInputs, next_tokens, top_logprobs


class Draw(NamedTuple):
    """A token to be drawn: the sequence whose logits decide, and the inputs of the draw."""

    sequence_index: int             # of the sequence in StepWork.inputs
    inputs: DrawInputs
    num_logprobs: int | None = None     # how many of the likeliest; None: no log-probabilities


class NewToken(NamedTuple):
    """A drawn token and, if asked for, its log-probability and those of the likeliest tokens."""

    token: int
    logprob: float | None = None
    likeliest: dict[int, float] | None = None


@dataclass
class StepWork:
    """One step: first blocks move, then new tokens are computed, then next tokens are drawn."""

    inputs: list[SequenceInput]
    draws: list[Draw] = field(default_factory=list)
    swapped_out: Pairs = ()
    swapped_in: Pairs = ()
    copied: Pairs = ()


class Runner(Protocol):
    """Carries out the steps of an engine."""

    context: int            # tokens of the longest sequence
    vocab_size: int
    bytes_per_block: int    # of keys and values

    def run(self, work: StepWork) -> list[NewToken]:
        """Carry out one step; return a token for each of its draws."""


class ModelRunner:
    """Runs a GPT in this process, with a paged cache on the model's device.

    `kind` is the class of the cache: PagedKVCache or QuantizedKVCache.
    """

    def __init__(self, model: GPT, num_blocks: int, block_size: int,
                 kind: type[PagedKVCache] = PagedKVCache):
        self.model, like = model, model.slabs[0].data
        self.cache = kind(KVSizes.of(model), num_blocks, block_size, like,
                          num_host_blocks=num_blocks)
        self.context, self.vocab_size = model.config.context, model.config.vocab_size
        self.bytes_per_block = self.cache.num_bytes // num_blocks

    def run(self, work: StepWork) -> list[NewToken]:
        """Carry out one step; return a token for each of its draws."""
        self.cache.apply(work.swapped_out, work.swapped_in, work.copied)
        return draw_tokens(forward_over_cache(self.model, self.cache, work.inputs).data, work.draws)


def draw_tokens(logits: Array, draws: Sequence[Draw]) -> list[NewToken]:
    """A token for each draw, from the logits (S, V) of a step's sequences."""
    indices = np.array([draw.sequence_index for draw in draws], np.int64)
    drawn = logits[asarray_like(indices, logits)]
    found = [NewToken(token) for token in next_tokens(drawn, [draw.inputs for draw in draws])]
    for i, draw in enumerate(draws):
        if draw.num_logprobs is not None:
            token = found[i].token
            found[i] = NewToken(token, *top_logprobs(to_host(drawn[i]), token, draw.num_logprobs))
    return found
