"""From logits to the next token.

    logits ─▶ penalties ─▶ ÷ temperature ─▶ min-p ─▶ top-k ─▶ top-p ─▶ softmax ─▶ draw

min-p, top-k and top-p remove unlikely tokens by setting their logits to -inf.  The order is vLLM's;
Hugging Face applies min-p last, which can keep different tokens.  The random number of a draw
follows from the request's seed, the answer's index and the position alone.  Other requests in the
batch, preemption and the number of ranks do not change it.  They change the logits by rounding
alone, except with the 8-bit cache, which rounds a chunk of tokens differently from single tokens
(`cache/quantized.py`).

    repetition penalty r    tokens of prompt and output: a positive logit ÷ r, a negative one · r
    presence, frequency     tokens of the output: logit - presence - frequency · count
    temperature             0 takes the likeliest token, 1 keeps the model's distribution
    min-p                   keeps tokens of at least min-p times the largest probability
    top-k                   keeps the k likeliest tokens, and tokens as likely as the k-th
    top-p                   keeps the likeliest tokens until their probabilities reach p

Keskar et al. 2019 (repetition penalty); Holtzman et al. 2020 (top-p); Nguyen et al. 2024 (min-p).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np

from ...backend import Array, to_host
from ...random import first_uniform

NOT_FINITE = "the model's logits hold NaN or infinite numbers: check its weights"


@dataclass(frozen=True)
class SamplingParams:
    """The rules by which a request draws its tokens; by default from the model's distribution.

    Raises ValueError for values out of range.
    """

    temperature: float = 1.0
    top_k: int = 0                      # 0: all tokens
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    def __post_init__(self):
        for each in fields(self):
            value, is_integer = getattr(self, each.name), each.name in ("top_k", "seed")
            if isinstance(value, bool) or not isinstance(value, Integral if is_integer else Real):
                raise ValueError(f"{each.name} must be {'an integer' if is_integer else 'a number'}"
                                 f", not {value!r}")
        for name, valid, expected in (
                ("temperature", self.temperature >= 0, "at least 0"),
                ("top_k", self.top_k >= 0, "at least 1, or 0 for all tokens"),
                ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
                ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
                ("repetition_penalty", self.repetition_penalty > 0, "above 0")):
            if not valid:
                raise ValueError(f"{name} must be {expected}, not {getattr(self, name)}")
        for each in fields(self):
            # so that no logit overflows: a draw that fails would end the step of all requests
            if (value := getattr(self, each.name)) != 0 and not 1e-100 <= abs(value) < 2**64:
                raise ValueError(f"{each.name} must be 0, or 1e-100 to 2^64 in size, not {value}")

    @property
    def has_penalties(self) -> bool:
        """True if a penalty changes the logits of earlier tokens."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def is_greedy(self) -> bool:
        """True if the token with the largest logit of the model is taken."""
        return self.temperature == 0 and not self.has_penalties


class DrawInputs(NamedTuple):
    """All that the next token of a sequence depends on, apart from the logits."""

    params: SamplingParams
    prompt: Sequence[int]
    output: Sequence[int]
    answer_index: int = 0               # of this answer among the answers to the prompt

    @property
    def u(self) -> float:
        """The random number in [0, 1) by which `pick` chooses the token."""
        return uniform(self.params.seed, len(self.prompt) + len(self.output), self.answer_index)


def penalize(logits: np.ndarray, params: SamplingParams, prompt: Sequence[int],
             output: Sequence[int]) -> np.ndarray:
    """Logits (V,) after the penalties for tokens that stand in the prompt or the output."""
    logits = logits.copy()
    seen = np.unique(np.array([*prompt, *output], np.int64))
    r = params.repetition_penalty
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / r, logits[seen] * r)
    tokens, counts = np.unique(np.array(output, np.int64), return_counts=True)
    logits[tokens] -= params.presence_penalty + params.frequency_penalty * counts
    return logits


def keep_min_p(logits: np.ndarray, min_p: float, maximum: float) -> np.ndarray:
    """Logits (V,) of tokens with at least `min_p` times the largest probability; others -inf.

    `maximum` is the largest of all logits.
    """
    return np.where(logits >= maximum + np.log(min_p), logits, -np.inf)


def keep_top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """Logits (V,) of the k likeliest tokens, and of those as likely as the k-th; others -inf."""
    if not 0 < k < logits.size:
        return logits
    return np.where(logits >= np.partition(logits, -k)[-k], logits, -np.inf)


def keep_top_p(logits: np.ndarray, p: float, total: float | None = None) -> np.ndarray:
    """Logits (V,) of the likeliest tokens, until their probabilities sum to `p`; others -inf.

    The token with which the sum reaches `p` is kept.  Among equally likely tokens the one with the
    smaller number comes first.  `total` is the sum of e^(logit - maximum) over all tokens, if
    `logits` are only some of them.
    """
    order = likeliest(logits, int(np.count_nonzero(logits > -np.inf)))
    weights = np.exp(logits[order] - logits[order[0]])
    sorted_probabilities = weights / (weights.sum() if total is None else total)
    before = np.cumsum(sorted_probabilities) - sorted_probabilities
    kept = np.full_like(logits, -np.inf)
    chosen = order[before < p]
    kept[chosen] = logits[chosen]
    return kept


def likeliest(logits: np.ndarray, count: int) -> np.ndarray:
    """The numbers of the `count` likeliest tokens, likeliest first; of equals the smaller first."""
    candidates = np.arange(logits.size)
    if 0 < count < logits.size:
        candidates = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    return candidates[np.argsort(-logits[candidates], kind="stable")[:count]]


def softmax(logits: np.ndarray) -> np.ndarray:
    """The probabilities (V,) of logits (V,)."""
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def probabilities(logits: np.ndarray, params: SamplingParams, prompt: Sequence[int] = (),
                  output: Sequence[int] = ()) -> np.ndarray:
    """The distribution (V,), float64, from which the next token is drawn.

    A logit of -inf is a token that never comes.  Raises ValueError for NaN and +inf.
    """
    logits = np.asarray(logits, np.float64)
    if not np.isfinite(logits.max()):           # the maximum is NaN if any logit is
        raise ValueError(NOT_FINITE)
    if params.has_penalties:
        logits = penalize(logits, params, prompt, output)
    if params.temperature == 0:
        one = np.zeros_like(logits)
        one[np.argmax(logits)] = 1
        return one
    logits = logits / params.temperature
    if params.min_p > 0:
        logits = keep_min_p(logits, params.min_p, logits.max())
    logits = keep_top_k(logits, params.top_k)
    if params.top_p < 1:
        logits = keep_top_p(logits, params.top_p)
    return softmax(logits)


def uniform(seed: int, position: int, answer_index: int = 0, purpose: str = "sample") -> float:
    """The random number in [0, 1) of a draw, which follows from the arguments alone."""
    return first_uniform(seed, purpose, answer_index, position)


def pick(weights: np.ndarray, u: float) -> int:
    """The first index at which the cumulated weights (V,) exceed u times their sum."""
    cumulated = np.cumsum(weights)
    return first_above(cumulated, u * cumulated[-1])


def first_above(cumulated: np.ndarray, target: float) -> int:
    """The first index at which `cumulated` exceeds `target`; the weight there is never 0.

    Rounding may lift a target to the sum itself: then it counts as the next smaller number.
    """
    target = min(max(target, 0.0), np.nextafter(cumulated[-1], 0))
    return int(np.searchsorted(cumulated, target, side="right"))


def next_token(logits: np.ndarray, params: SamplingParams, prompt: Sequence[int],
               output: Sequence[int], answer_index: int = 0) -> int:
    """The token that follows prompt and output in answer `answer_index`, from logits (V,)."""
    return next_tokens(logits[None], [DrawInputs(params, prompt, output, answer_index)])[0]


def next_tokens(logits: Array, inputs: Sequence[DrawInputs]) -> list[int]:
    """A token for each of n draws, from logits (n, V) on the host or a device.

    The logits of a draw that takes the likeliest token stay on the device.  Raises ValueError for
    NaN and +inf.
    """
    best, largest = (to_host(each) for each in (np.argmax(logits, axis=-1),
                                                np.max(logits, axis=-1)))
    if not np.isfinite(largest).all():
        raise ValueError(NOT_FINITE)
    tokens = best.tolist()
    for i, each in enumerate(inputs):
        if not each.params.is_greedy:
            distribution = probabilities(to_host(logits[i]), each.params, each.prompt, each.output)
            tokens[i] = pick(distribution, each.u)
    return tokens


def top_logprobs(logits: np.ndarray, token: int, count: int) -> tuple[float, dict[int, float]]:
    """The log-probabilities of a token, and of the `count` likeliest tokens.

    They follow from the model's logits, before penalties and temperature.
    """
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    return float(logprobs[token]), {int(i): float(logprobs[i]) for i in likeliest(logits, count)}
