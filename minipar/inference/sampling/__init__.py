"""The choice of the next token."""

from .sampler import SamplingParams, draw, next_token, probabilities, top_logprobs

__all__ = ["SamplingParams", "draw", "next_token", "probabilities", "top_logprobs"]
