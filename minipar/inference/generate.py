"""Generation: draw the next token from the model's distribution, append it, repeat.

    prompt ─▶ prefill: keys and values of all its tokens ─▶ logits ─▶ a token
                                           ▲                            │
                             its key and value join the cache ◀─────────┘

While the text is within the model's context, each step computes new tokens only.  If the text is
longer, the model sees its last tokens only: a sliding window.  Each step then gives every token a
new position, which changes all keys and values, so each step computes the whole window again.

Tokens are drawn as in the engine, so both give the same answer to the same prompt and seed.
"""

from collections.abc import Iterator

import numpy as np

from ..autograd import no_grad
from ..backend import Array, asarray_like, to_host
from ..nn import GPT
from .cache import ContiguousKVCache, KVSizes, SequenceInput
from .model import forward_over_cache
from .sampling import SamplingParams, next_token


def generate(model: GPT, prompt: np.ndarray, num_tokens: int, temperature: float = 1.0,
             seed: int = 0) -> Iterator[int]:
    """Yield `num_tokens` tokens that follow `prompt` (t,), which has at least one integer id.

    Logits are divided by `temperature` before softmax: 0 takes the likeliest token, 1 samples from
    the model's distribution, more is more random.  An empty prompt or a negative temperature raises
    ValueError when the first token is asked for.
    """
    if not len(prompt) or temperature < 0:
        raise ValueError("generation needs a prompt of at least one token and a temperature >= 0, "
                         f"not {len(prompt)} tokens and {temperature}")
    ids, params = [int(token) for token in prompt], SamplingParams(temperature, seed=seed)
    num_prompt, longest = len(ids), min(len(ids) + num_tokens, model.config.context)
    cache, num_cached = make_cache(model, longest), 0
    for _ in range(num_tokens):
        if len(ids) <= longest:
            new = SequenceInput(ids[num_cached:], num_cached, [0])
            logits, num_cached = to_host(forward_over_cache(model, cache, [new]).data)[0], len(ids)
        else:
            window = asarray_like(np.array(ids[-longest:], np.int64), cache.data)
            logits = logits_of_window(model, window)
        ids.append(next_token(logits, params, ids[:num_prompt], ids[num_prompt:]))
        yield ids[-1]


def make_cache(model: GPT, num_tokens: int) -> ContiguousKVCache:
    """A cache for the keys and values of one sequence of at most `num_tokens` tokens."""
    with no_grad():                         # a sharded model gathers its weights for each use
        return ContiguousKVCache(KVSizes.of(model), 1, num_tokens, model.ln_f.weight.data)


def logits_of_window(model: GPT, ids: Array) -> np.ndarray:
    """The logits (V,) after the tokens `ids` (t,), all of them computed."""
    with no_grad():
        return to_host(model(ids[None]).data)[0, -1]
