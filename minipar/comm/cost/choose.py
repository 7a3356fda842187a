"""The algorithm that takes the fewest seconds on a network.

    seconds     ╲ doubling      ╱ doubling          few rounds while rounds · α decides,
                 ╲_____________╱_____ ring          few bytes while bytes · β does: where the lines
                      bytes ─▶  ▲                   cross, the choice changes

The choice depends on the arguments alone, so that all ranks choose the same algorithm.

On simulated ranks this decides what algorithm="auto" means.  On real ranks a measured table, where
there is one, decides first, and among all algorithms, `blocked_ring` included (`auto.py`,
`calibration.py`).  Here the algorithms are compared whose entry says that they can be the fastest
by the model.
"""

from collections.abc import Callable, Sequence

from ..algorithms import ALGORITHMS
from .network import UNKNOWN, Network, seconds_on


def candidates(operation: str, network: Network) -> tuple[str, ...]:
    """The algorithms to choose from; those with parts only if several nodes have several ranks."""
    several = len(network.runs) > 1 and max(network.runs) > 1
    return tuple(name for name, entry in ALGORITHMS[operation].items()
                 if entry.is_candidate and entry.rounds and (entry.form or several and entry.parts))


def choose(operation: str, p: int, num_bytes: int, network: Network = UNKNOWN) -> str:
    """The candidate that takes the fewest seconds for `num_bytes` on `p` ranks joined by `network`.

    If several are equally fast, the first of them.
    """
    return min(candidates(operation, network),
               key=lambda algorithm: seconds_on(operation, algorithm, p, num_bytes, network))


def crossings(best: Callable[[int], str], sizes: Sequence[int]) -> list[tuple[int, str, str]]:
    """The sizes at which best(num_bytes) changes, between the first and the last of `sizes`.

    [(first number of bytes of the new algorithm, the old one, the new one), …], found by bisection
    between neighbouring sizes.
    """
    found = []
    for low, high in zip(sizes, sizes[1:]):
        while best(low) != best(high):
            before, left, right = best(low), low, high
            while right - left > 1:
                middle = (left + right) // 2
                left, right = (middle, right) if best(middle) == before else (left, middle)
            found.append((right, before, best(right)))
            low = right
    return found
