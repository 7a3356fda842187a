"""The closed forms of the textbooks: one table for each operation.

Exact where p is a power of two that divides n; elsewhere near enough to choose by.  Thakur,
Rabenseifner & Gropp 2005; Chan, Heimlich, Purkayastha & van de Geijn 2007.
"""

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from ..collectives.all_reduce import BLOCK_BYTES
from ..collectives.broadcast import best_num_segments
from .alpha_beta import Cost


def textbook(operation: str, algorithm: str, p: int, num_bytes: float,
             num_segments: int | None = None) -> Cost:
    """The textbook's cost; `num_bytes` is that of the whole vector, see `predict`.

    `num_segments` is for a pipelined chain (by default the best number).  The number of messages is
    not known: NaN.  Raises ValueError for an unknown operation or algorithm.
    """
    if algorithm not in FORMS.get(operation, {}):
        raise ValueError(f"no textbook form of {operation} by {algorithm!r}: choose from "
                         f"{', '.join(FORMS.get(operation, FORMS))}")
    rounds, size, reduced = FORMS[operation][algorithm](Sizes(p, num_bytes, num_segments))
    return Cost(rounds, size, float("nan"), reduced)


class Sizes(NamedTuple):
    """The arguments of `textbook`, and the numbers of which the closed forms are made.

    Algorithms that double a distance run among `power_of_two` ranks.  If there are others
    (`has_others` is 1), these give their vectors before and get the result after.
    """

    p: int
    n: float                        # bytes of the whole vector
    num_segments: int | None

    @property
    def log_up(self) -> int:
        """⌈log₂ p⌉."""
        return (self.p - 1).bit_length()

    @property
    def log_down(self) -> int:
        """⌊log₂ p⌋."""
        return self.p.bit_length() - 1

    @property
    def power_of_two(self) -> int:
        """The largest power of two up to p."""
        return 1 << self.log_down

    @property
    def has_others(self) -> bool:
        """1 if p is no power of two, else 0."""
        return self.p != self.power_of_two

    @property
    def chunk(self) -> float:
        """The bytes of one of p equal chunks."""
        return self.n / self.p

    @property
    def all_but_one(self) -> float:
        """The bytes of all chunks but one: n (p-1) / p."""
        return self.n * (self.p - 1) / self.p

    @property
    def all_but_one_of_power(self) -> float:
        """The same, if the vector is cut into `power_of_two` chunks."""
        return self.n * (self.power_of_two - 1) / self.power_of_two


def pipelined_chain(c: Sizes) -> tuple[float, float, float]:
    """Each of k segments is one round behind the segment before it."""
    k = c.num_segments or best_num_segments(c.p, c.n)
    rounds = c.p + k - 2 if c.p > 1 else 0
    return rounds, c.n * rounds / k, 0


Form = Callable[[Sizes], tuple[float, float, float]]         # rounds, bytes, reduced

BARRIER: dict[str, Form] = {
    "dissemination": lambda c: (c.log_up, 0, 0),
    "tree": lambda c: (2 * c.log_up, 0, 0),
}
BROADCAST: dict[str, Form] = {
    "binomial": lambda c: (c.log_up, c.n * c.log_up, 0),
    "chain": lambda c: (c.p - 1, c.n * (c.p - 1), 0),
    "pipelined_chain": pipelined_chain,
    "scatter_all_gather": lambda c: (c.log_up + c.p - 1, 2 * c.all_but_one, 0),
}
SCATTER: dict[str, Form] = {
    "binomial": lambda c: (c.log_up, c.all_but_one, 0),
    "linear": lambda c: (c.p - 1, c.all_but_one, 0),
}
GATHER = SCATTER                    # the same messages, backwards
REDUCE: dict[str, Form] = {
    "binomial": lambda c: (c.log_up, c.n * c.log_up, c.n * c.log_up),
    "rabenseifner": lambda c: (
        2 * c.log_down + c.has_others, 2 * c.all_but_one_of_power + c.has_others * c.n,
        c.all_but_one_of_power + c.has_others * c.n),
}
ALL_GATHER: dict[str, Form] = {
    "ring": lambda c: (c.p - 1, c.all_but_one, 0),
    "bruck": lambda c: (c.log_up, c.all_but_one, 0),
    "recursive_doubling": lambda c: (
        c.log_down + 2 * c.has_others, c.all_but_one + c.has_others * (c.n + c.chunk), 0),
}
REDUCE_SCATTER: dict[str, Form] = {
    "ring": lambda c: (c.p - 1, c.all_but_one, c.all_but_one),
    "pairwise": lambda c: (c.p - 1, c.all_but_one, c.all_but_one),
    "recursive_halving": lambda c: (
        c.log_down + 2 * c.has_others, c.all_but_one_of_power + c.has_others * (c.n + c.chunk),
        c.all_but_one_of_power + c.has_others * c.n),
}
ALL_REDUCE: dict[str, Form] = {
    "recursive_doubling": lambda c: (
        c.log_down + 2 * c.has_others, c.n * (c.log_down + 2 * c.has_others),
        c.n * (c.log_down + c.has_others)),
    "rabenseifner": lambda c: (
        2 * (c.log_down + c.has_others), 2 * (c.all_but_one_of_power + c.has_others * c.n),
        c.all_but_one_of_power + c.has_others * c.n),
    "ring": lambda c: (2 * (c.p - 1), 2 * c.all_but_one, c.all_but_one),
    "blocked_ring": lambda c: (
        2 * (c.p - 1) * max(1, ceil(c.n / BLOCK_BYTES)), 2 * c.all_but_one, c.all_but_one),
    "tree": lambda c: (2 * c.log_up, 2 * c.n * c.log_up, c.n * c.log_up),
}
ALL_TO_ALL: dict[str, Form] = {
    "pairwise": lambda c: (c.p - 1, c.all_but_one, 0),
    "bruck": lambda c: (c.log_up, c.chunk * sum(j.bit_count() for j in range(c.p)), 0),
}
SCAN: dict[str, Form] = {
    "recursive_doubling": lambda c: (c.log_up, c.n * c.log_up, c.n * c.log_up),
    "linear": lambda c: (c.p - 1, c.n * (c.p - 1), c.n * (c.p - 1)),
}
EXSCAN: dict[str, Form] = {
    "recursive_doubling":
        lambda c: (c.log_up, c.n * c.log_up, c.n * max(0, 2 * c.log_up - 1)),
    "linear": lambda c: (c.p - 1, c.n * (c.p - 1), c.n * max(0, c.p - 2)),
}
FORMS = {
    "barrier": BARRIER,
    "broadcast": BROADCAST,
    "scatter": SCATTER,
    "gather": GATHER,
    "reduce": REDUCE,
    "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "all_reduce": ALL_REDUCE,
    "all_to_all": ALL_TO_ALL,
    "scan": SCAN,
    "exscan": EXSCAN,
}
