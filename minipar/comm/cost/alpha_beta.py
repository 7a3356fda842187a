"""The α-β model: the four numbers of a cost, and the seconds that they amount to.

Hockney 1994: a message of n bytes takes α + n β seconds.  The cost of one algorithm comes from its
entry in `comm/algorithms.py`: `predict.py` adds up its rounds, `textbook.py` takes its closed form.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..rounds import Round


class Cost(NamedTuple):
    """The cost of a collective.

    `rounds` is the time if only messages take time, 1 each.  `num_bytes` is the time if only bytes
    sent do, and `reduced` if only bytes combined do.  Each has a critical path of its own.
    `messages` is the number of messages of all ranks, empty ones too.
    """

    rounds: float
    num_bytes: float
    messages: float
    reduced: float


def seconds(cost: Cost, latency: float, bandwidth: float,
            combining: float = float("inf")) -> float:
    """The seconds of a cost: rounds · α + bytes · β + reduced · γ.

    α = `latency` (seconds), β = 1 / `bandwidth`, γ = 1 / `combining` (both in bytes per second).
    """
    return cost.rounds * latency + cost.num_bytes / bandwidth + cost.reduced / combining


def critical(rounds: Iterable[Round], num_ranks: int, itemsize: int) -> Cost:
    """The cost of rounds (times combined, [(source, dest, elements), …]).

    In a round every rank sends and receives at most one message, both at once.  A message begins
    when both its ranks are ready.  Its receiver then combines all elements `times combined` times.
    """
    by_round, by_size, by_work = ([0] * num_ranks for _ in range(3))
    messages = 0
    for times_combined, transfers in rounds:
        messages += len(transfers)
        for clock, fixed, factor, combined in ((by_round, 1, 0, 0), (by_size, 0, 1, 0),
                                               (by_work, 0, 0, times_combined)):
            before = clock[:]
            for source, dest, size in transfers:
                end = max(before[source], before[dest]) + fixed + factor * size
                clock[source] = max(clock[source], end)
                clock[dest] = max(clock[dest], end)
            if combined:
                for _, dest, size in transfers:
                    clock[dest] += combined * size
    return Cost(max(by_round), max(by_size) * itemsize, messages, max(by_work) * itemsize)


def duration(rounds: Iterable[Round], num_ranks: int, combining: float,
             link_of: Callable[[int, int], tuple[float, float]]) -> float:
    """Seconds that rounds of bytes take where link_of(source, dest) is (latency, bandwidth).

    It is `critical` for links that differ.
    """
    clock = [0.0] * num_ranks
    for times_combined, transfers in rounds:
        before = clock[:]
        for source, dest, size in transfers:
            latency, bandwidth = link_of(source, dest)
            end = max(before[source], before[dest]) + size / bandwidth + latency
            clock[source] = max(clock[source], end)
            clock[dest] = max(clock[dest], end)
        for _, dest, size in transfers:
            clock[dest] += times_combined * size / combining
    return max(clock)
