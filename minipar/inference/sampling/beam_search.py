"""Beam search: keep the `width` likeliest beginnings of an answer, and extend all of them.

    beam 0  the cat ─┬─ sat  -1.2 ✓          each beam offers all its continuations, with the sum
                     └─ ran  -1.9 ✓          of their tokens' log-probabilities; the best `width`
    beam 1  the dog ─┬─ sat  -2.8            of all offers are the new beams
                     └─ .    -2.1 ended

An answer ends with a stop token or with `max_tokens`.  Its score is the sum of log-probabilities
divided by length^penalty.  A penalty of 0 prefers short answers, 1 compares means per token.  The
search ends when no beam can become better than the `width` best answers: a sum only falls, so a
beam's score stays below sum / max_tokens^penalty.

One step computes all beams.  They share blocks: `scheduling/beam_blocks.py`.
Wu et al. 2016 (length normalization), section 7.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from ...backend import to_host
from ...nn import GPT
from ..cache import KVSizes, PagedKVCache, SequenceInput
from ..model import forward_over_cache
from ..scheduling import BlockPool, blocks_for
from ..scheduling.beam_blocks import Beams
from .sampler import likeliest


class FinishedBeam(NamedTuple):
    """Tokens after the prompt, the sum of their log-probabilities, and the score."""

    tokens: list[int]
    logprob: float
    score: float


class Offer(NamedTuple):
    """A continuation of beam `parent` by one token, with the sum of all log-probabilities."""

    parent: int
    token: int
    logprob: float


def beam_search(model: GPT, prompt: Sequence[int], width: int, max_tokens: int,
                length_penalty: float = 1.0, stop_tokens: Collection[int] = (),
                block_size: int = 16) -> list[FinishedBeam]:
    """At most `width` answers of the highest score found, best first.

    Raises ValueError for an empty prompt, a width or max_tokens below 1, a negative penalty, and
    more tokens than the model's context.
    """
    _check(model, prompt, width, max_tokens, length_penalty)
    num_blocks = width * blocks_for(len(prompt) + max_tokens, block_size)
    cache = PagedKVCache(KVSizes.of(model), num_blocks, block_size, model.slabs[0].data)
    beams = Beams(BlockPool(num_blocks, block_size), prompt, width)
    answers: list[FinishedBeam] = []
    first = SequenceInput(prompt, 0, beams.sequences[0].table)
    logits = forward_over_cache(model, cache, [first]).data
    sums = np.zeros(1)
    for length in range(1, max_tokens + 1):
        offers = best_offers(sums[:, None] + log_softmax(to_host(logits)),
                             width * (1 + len(stop_tokens)))
        has_ended = [offer.token in stop_tokens or length == max_tokens for offer in offers]
        for offer in (offer for offer, ended in zip(offers, has_ended) if ended):
            before = beams.sequences[offer.parent].tokens[len(prompt):]
            answers.append(FinishedBeam([*before, offer.token], offer.logprob,
                                        offer.logprob / length ** length_penalty))
        answers = sorted(answers, key=lambda answer: -answer.score)[:width]
        alive = [offer for offer, ended in zip(offers, has_ended) if not ended][:width]
        if not alive or len(answers) == width and (
                alive[0].logprob / max_tokens ** length_penalty <= answers[-1].score):
            break
        logits = extend(model, cache, beams, alive)
        sums = np.array([offer.logprob for offer in alive])
    return answers


def best_offers(logprobs: np.ndarray, count: int) -> list[Offer]:
    """The `count` largest of the sums (beams, V); of equal ones the smaller beam and token first.
    """
    vocab_size = logprobs.shape[1]
    best = likeliest(logprobs.ravel(), min(count, logprobs.size))
    return [Offer(int(i) // vocab_size, int(i) % vocab_size, float(logprobs.flat[i]))
            for i in best]


def extend(model: GPT, cache: PagedKVCache, beams: Beams, offers: Sequence[Offer]):
    """Let the offers be the beams; return the logits (beams, V) behind their new tokens."""
    blocks = beams.select([offer.parent for offer in offers], [offer.token for offer in offers])
    cache.apply((), (), blocks.copied)
    inputs = [SequenceInput(each.tokens[-1:], each.num_computed - 1, each.table)
              for each in beams.sequences]
    return forward_over_cache(model, cache, inputs).data


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """The log-probabilities (n, V) of logits (n, V), in float64."""
    shifted = np.asarray(logits, np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _check(model: GPT, prompt: Sequence[int], width: int, max_tokens: int,
           length_penalty: float) -> None:
    context = model.config.context
    if not prompt or width < 1 or max_tokens < 1 or length_penalty < 0:
        raise ValueError("a beam search needs a prompt, a width and max_tokens of at least 1, and "
                         f"a length penalty of at least 0, not {len(prompt)} tokens, {width}, "
                         f"{max_tokens} and {length_penalty}")
    if len(prompt) + max_tokens > context:
        raise ValueError(f"a prompt of {len(prompt)} tokens and max_tokens={max_tokens} are more "
                         f"than the model's context of {context}: lower max_tokens")
