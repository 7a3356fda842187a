"""The choice of the next tokens.

    sampler.py              penalties, temperature, min-p, top-k, top-p, and the draw
    vocabulary_parallel.py  the same draw for logits that are cut over ranks
    speculative.py          a small model guesses ahead, the large one checks the guesses together

Read them in this order.
"""

from .sampler import (
    DrawInputs,
    SamplingParams,
    next_token,
    next_tokens,
    pick,
    probabilities,
    top_logprobs,
    uniform,
)

__all__ = ["DrawInputs", "SamplingParams", "next_token", "next_tokens", "pick", "probabilities",
           "top_logprobs", "uniform"]
