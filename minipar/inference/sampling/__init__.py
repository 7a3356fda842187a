"""The choice of the next token.

    sampler.py      penalties, temperature, min-p, top-k, top-p, and the draw
    vocabulary.py   the same for logits that are cut over ranks

Read them in this order.
"""

from .sampler import SamplingParams, next_token, pick, probabilities, top_logprobs, uniform

__all__ = ["SamplingParams", "next_token", "pick", "probabilities", "top_logprobs", "uniform"]
