"""The part of the engine that has arrays: one step of the model, and the tokens drawn from it.

    Work: moved blocks, rows of tokens, draws ─▶ runner.run ─▶ a token for each draw

An engine talks to a runner by numbers and lists only, so the same engine drives a model in this
process or one that is spread over ranks (`parallel/`).
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ..backend import to_host
from ..nn import GPT
from .cache import KVSizes, PagedKVCache, Row, forward
from .cache.paged import Pairs
from .sampling import SamplingParams, next_token, top_logprobs


class Draw(NamedTuple):
    """A token to be drawn from the logits of row `row`, as number `sample` of its request."""

    row: int
    params: SamplingParams
    prompt: list[int]
    output: list[int]
    sample: int = 0
    num_logprobs: int | None = None


class NewToken(NamedTuple):
    """A drawn token; if asked for, its log-probability and those of the likeliest tokens."""

    token: int
    logprob: float | None = None
    likeliest: dict[int, float] | None = None


@dataclass
class Work:
    """What a step does: blocks that move first, then rows that are computed, then draws."""

    rows: list[Row]
    draws: list[Draw] = field(default_factory=list)
    swapped_out: Pairs = ()
    swapped_in: Pairs = ()
    copied: Pairs = ()


class Runner(Protocol):
    """Carries out the steps of an engine."""

    context: int            # tokens of the longest sequence
    vocab_size: int
    bytes_per_block: int    # of keys and values

    def run(self, work: Work) -> list[NewToken]:
        """Carry out one step; return a token for each of its draws."""


class ModelRunner:
    """Runs a GPT in this process, with a paged cache on the model's device."""

    def __init__(self, model: GPT, num_blocks: int, block_size: int):
        self.model, sizes = model, KVSizes.of(model)
        like = model.slabs[0].data
        self.cache = PagedKVCache(sizes, num_blocks, block_size, like, num_host_blocks=num_blocks)
        self.context, self.vocab_size = model.config.context, model.config.vocab_size
        self.bytes_per_block = block_size * sizes.bytes_per_token(like.dtype.itemsize)

    def run(self, work: Work) -> list[NewToken]:
        """Carry out one step; return a token for each of its draws."""
        self.cache.apply(work.swapped_out, work.swapped_in, work.copied)
        logits = to_host(forward(self.model, self.cache, work.rows).data)
        return [draw_token(logits[draw.row], draw) for draw in work.draws]


def draw_token(logits, draw: Draw) -> NewToken:
    """The token of a draw, from the logits (V,) of its row."""
    token = next_token(logits, draw.params, draw.prompt, draw.output, draw.sample)
    if draw.num_logprobs is None:
        return NewToken(token)
    return NewToken(token, *top_logprobs(logits, token, draw.num_logprobs))
