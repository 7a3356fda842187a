"""The log-probabilities of a given text: how likely the model finds each of its tokens.

    tokens     a      b             c
    scores     –      log p(b|a)    log p(c|ab)         the first token follows nothing

Evaluations of models ask for them: they compare answers, or measure the perplexity of a text.  The
prompt is computed in chunks over a cache of its own, in the model's precision.
"""

import numpy as np

from ..backend import to_host
from ..nn import GPT
from .cache import SequenceInput
from .generate import make_cache
from .model import forward_over_cache
from .sampling import top_logprobs
from .sampling.sampler import NOT_FINITE

Score = tuple[float, dict[int, float]]      # of a token, and of the likeliest tokens at its place
CHUNK = 256         # tokens whose logits (CHUNK, V) are held at a time


def prompt_logprobs(model: GPT, prompt: list[int], count: int) -> list[Score]:
    """The log-probabilities of each token but the first, and of the `count` likeliest there.

    Raises ValueError for logits that are not finite.
    """
    cache, found = make_cache(model, len(prompt)), []
    for start in range(0, len(prompt) - 1, CHUNK):
        chunk = SequenceInput(prompt[start:start + CHUNK], start, [0])
        logits = to_host(forward_over_cache(model, cache, [chunk], last_only=False).data)
        found += scores(logits, prompt[start + 1:], count)
    return found


def scores(logits: np.ndarray, tokens: list[int], count: int) -> list[Score]:
    """The scores of tokens that follow logits (n, V), of as many as there are.

    Raises ValueError for logits that are not finite.
    """
    if not np.isfinite(logits.max(axis=-1)).all():
        raise ValueError(NOT_FINITE)
    return [top_logprobs(row, token, count) for row, token in zip(logits, tokens)]
