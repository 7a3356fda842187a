"""Log-probabilities as numbers, to be sent from the rank that has the logits to others.

    log p │ token  log p │ token  log p │ …         of a token, then of the k likeliest in its place

All numbers are float64.
"""

from collections.abc import Sequence

import numpy as np

Logprobs = tuple[float, dict[int, float]]       # of a token, and of the likeliest ones
NONE = -1.0                                     # in place of a token, if there are fewer than k


def num_numbers(counts: Sequence[int]) -> int:
    """The length of a message about tokens; token i comes with `counts[i]` likeliest ones."""
    return sum(1 + 2 * count for count in counts)


def pack(logprobs: Sequence[Logprobs], counts: Sequence[int]) -> np.ndarray:
    """The message (num_numbers(counts),) that holds the log-probabilities of all tokens."""
    numbers: list[float] = []
    for (logprob, likeliest), count in zip(logprobs, counts):
        pairs = [*likeliest.items(), *[(NONE, 0.0)] * (count - len(likeliest))]
        numbers += [logprob, *(number for pair in pairs for number in pair)]
    return np.array(numbers, np.float64)


def unpack(numbers: np.ndarray, counts: Sequence[int]) -> list[Logprobs]:
    """The log-probabilities in a message; the inverse of `pack`."""
    found, start = [], 0
    for count in counts:
        pairs = numbers[start + 1:start + 1 + 2 * count].reshape(count, 2).tolist()
        found.append((float(numbers[start]),
                      {int(token): logprob for token, logprob in pairs if token != NONE}))
        start += 1 + 2 * count
    return found
