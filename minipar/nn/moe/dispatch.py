"""Dispatch, the decisions of routing: whole numbers on the host, which no gradient flows through.

    scores (n, E) ─▶ choose_experts ─▶ ids (n, k) ─▶ queue_places ─▶ kept (n, k) ─▶ dispatch
                     the k best        │             < capacity                     rows sorted
                                       └ load (E,)                                  by expert

Without a capacity all choices are kept.  With a capacity, a group of n tokens makes k n choices,
and an expert serves at most ⌈c k n / E⌉ of them, with the capacity factor c.  Places are taken in
an order:

    by choice        first choices of all tokens, then their second choices
    by token         all choices of the first token, then those of the second
    by probability   the largest scores first

n tokens, E experts, k experts of each token.  Lepikhin et al. 2020 (GShard), algorithm 1; Fedus et
al. 2021 (Switch), section 2.2; DeepSeek-AI 2024 (DeepSeek-V3), section 2.1.2.
"""

import math
from typing import NamedTuple

import numpy as np

from ...backend import Array


class Dispatch(NamedTuple):
    """The rows that experts compute, sorted by expert.

    Row i is token `tokens[i]`.  `choices[i]` is the number of its choice among all n k, counted
    token by token.  The first counts[0] rows are for expert 0, the next counts[1] for expert 1, …
    """

    tokens: Array                   # (rows,)
    choices: Array                  # (rows,)
    counts: tuple[int, ...]         # (E,)


def choose_experts(scores: np.ndarray, top_k: int, num_groups: int = 1,
                   top_groups: int = 1) -> np.ndarray:
    """The `top_k` experts of the largest scores (n, E), best first: ids (n, top_k).

    With several groups of neighbouring experts, each token chooses within its `top_groups` best
    groups.  The score of a group is the sum of its two best scores.
    """
    n, num_experts = scores.shape
    if num_groups > top_groups:
        of_groups = scores.reshape(n, num_groups, num_experts // num_groups)
        two_best = np.sort(of_groups, axis=2)[:, :, -2:].sum(axis=2)
        worst = np.argsort(-two_best, axis=1, kind="stable")[:, top_groups:]
        of_groups = of_groups.copy()
        np.put_along_axis(of_groups, worst[:, :, None], -np.inf, axis=1)
        scores = of_groups.reshape(n, num_experts)
    # a copy: a view would keep the order of all experts alive until backward
    return np.argsort(-scores, axis=1, kind="stable")[:, :top_k].copy()


def capacity(num_tokens: int, num_experts: int, top_k: int, factor: float) -> int:
    """The choices that an expert serves of a group of `num_tokens` tokens: ⌈c k n / E⌉."""
    return math.ceil(factor * top_k * num_tokens / num_experts)


def queue_places(ids: np.ndarray, group_size: int, order: str,
                 scores: np.ndarray | None = None) -> np.ndarray:
    """The place (n, k) of each choice in the queue of its expert, 0 being the first.

    Each group of `group_size` tokens has queues of its own.  `order` is "choice", "token" or
    "probability", which needs the `scores` (n, k) of the choices.
    """
    n, k = ids.shape
    numbers = np.arange(n * k)
    if order == "choice":
        served = numbers.reshape(n, k).T.ravel()
    elif order == "token":
        served = numbers
    elif order == "probability" and scores is not None:
        served = np.argsort(-scores.ravel(), kind="stable")
    else:
        raise ValueError(f"choices are served by choice, token or probability, not {order!r}")
    queue = (numbers // k // max(group_size, 1) * (1 + ids.max(initial=0)) + ids.ravel())[served]
    by_queue = np.argsort(queue, kind="stable")             # within a queue in the order of service
    first = np.searchsorted(queue[by_queue], queue[by_queue])
    places = np.empty(n * k, np.int64)
    places[served[by_queue]] = numbers - first
    return places.reshape(n, k)


def dispatch(ids: np.ndarray, kept: np.ndarray, num_experts: int) -> Dispatch:
    """The rows of the choices in `kept` (n, k), sorted by expert, then by token."""
    choices = np.flatnonzero(kept)
    experts = ids.ravel()[choices]
    choices = choices[np.argsort(experts, kind="stable")]
    tokens = choices // max(ids.shape[1], 1)
    tokens.flags.writeable = choices.flags.writeable = False    # several operations save them
    counts = np.bincount(experts, minlength=num_experts)
    return Dispatch(tokens, choices, tuple(counts.tolist()))
