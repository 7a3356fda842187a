"""Generation: draw the next token from the model's distribution, append it, repeat.

    prompt ─▶ prefill: keys and values of all its tokens ─▶ logits ─▶ a token
                                           ▲                            │
                             its key and value join the cache ◀─────────┘

Only new tokens are computed, while the text is within the model's context.  Beyond it the window
slides: every token gets another position, no key or value stays what it was, and the whole window
is computed again for each token.
"""

from collections.abc import Iterator

import numpy as np

from ..autograd import no_grad
from ..backend import Array, asarray_like, to_host
from ..nn import GPT
from ..random import generator
from .cache import ContiguousKVCache, KVSizes, Row
from .model import forward


def generate(model: GPT, prompt: np.ndarray, num_tokens: int, temperature: float = 1.0,
             seed: int = 0) -> Iterator[int]:
    """Yield `num_tokens` tokens that follow `prompt` (t,), integer ids, at least one.

    Logits are divided by `temperature` before softmax: 0 takes the likeliest token, 1 samples
    from the model's distribution, more is more random.
    """
    if not len(prompt) or temperature < 0:
        raise ValueError("generation needs a prompt of at least one token and a temperature >= 0, "
                         f"not {len(prompt)} tokens and {temperature}")
    ids, draw = [int(token) for token in prompt], generator(seed, "generate")
    longest = min(len(ids) + num_tokens, model.config.context)
    cache, num_cached = make_cache(model, longest), 0
    for _ in range(num_tokens):
        if len(ids) <= longest:
            row = Row(ids[num_cached:], num_cached, [0])
            logits, num_cached = to_host(forward(model, cache, [row]).data)[0], len(ids)
        else:
            window = asarray_like(np.array(ids[-longest:], np.int64), cache.data)
            logits = logits_of_window(model, window)
        if temperature:
            gumbel = draw.gumbel(size=logits.size)  # argmax of logits + Gumbel noise: a sample
            token = int((logits / temperature + gumbel).argmax())
        else:
            token = int(logits.argmax())
        ids.append(token)
        yield token


def make_cache(model: GPT, num_tokens: int) -> ContiguousKVCache:
    """Room for the keys and values of one sequence of at most `num_tokens` tokens."""
    with no_grad():                         # a sharded model gathers its weights for each use
        return ContiguousKVCache(KVSizes.of(model), 1, num_tokens, model.ln_f.weight.data)


def logits_of_window(model: GPT, ids: Array) -> np.ndarray:
    """The logits (V,) after the tokens `ids` (t,), all of them computed."""
    with no_grad():
        return to_host(model(ids[None]).data)[0, -1]
