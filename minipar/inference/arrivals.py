"""Requests that arrive at random times, for simulated loads.

    arrivals   │  ││    │ │      Poisson, `rate` a second; lengths log-normal

Times and lengths follow from one seed.
"""

from typing import NamedTuple

import numpy as np

from ..random import generator


class Arrival(NamedTuple):
    """A request that comes at `time` seconds: the numbers of tokens of its prompt and answer."""

    time: float
    prompt: int
    answer: int


def poisson_arrivals(num_requests: int, rate: float, longest: int, mean_prompt: float = 160,
                     mean_answer: float = 200, seed: int = 0) -> list[Arrival]:
    """Requests at `rate` a second on average; prompt and answer have at most `longest` tokens.

    The means of the lengths are those before lengths are clipped to `longest`.
    """
    draw = generator(seed, "arrivals")
    times = np.cumsum(draw.exponential(1 / rate, num_requests))
    spread = 0.8                                    # of the logarithms of the lengths
    lengths = np.exp(draw.normal(size=(num_requests, 2)) * spread - spread**2 / 2)
    found = []
    for time, (prompt, answer) in zip(times, lengths * (mean_prompt, mean_answer)):
        prompt = int(np.clip(prompt, 1, longest // 2))
        found.append(Arrival(float(time), prompt, int(np.clip(answer, 1, longest - prompt))))
    return found
