"""The closed forms of the textbooks, and what else "auto" knows of each algorithm: one table.

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
    rounds, size, reduced = form_of(operation, algorithm).cost(Sizes(p, num_bytes, num_segments))
    return Cost(rounds, size, float("nan"), reduced)


def form_of(operation: str, algorithm: str) -> "Form":
    """The entry of the table.  Raises ValueError for an unknown operation or algorithm."""
    if algorithm not in FORMS.get(operation, {}):
        raise ValueError(f"no textbook form of {operation} by {algorithm!r}: choose from "
                         f"{', '.join(FORMS.get(operation, FORMS))}")
    return FORMS[operation][algorithm]


class Sizes:
    """The arguments of `textbook`, and the numbers of which the closed forms are made.

    Algorithms that double a distance run among `power_of_two` ranks.  If there are others
    (`has_others` is 1), these give their vectors before and get the result after.
    """

    def __init__(self, p: int, n: float, num_segments: int | None):
        self.p, self.n, self.num_segments = p, n, num_segments      # n: bytes of the whole vector
        self.log_up = (p - 1).bit_length()                          # ⌈log₂ p⌉
        self.log_down = p.bit_length() - 1                          # ⌊log₂ p⌋
        self.power_of_two = 1 << self.log_down                      # the largest one up to p
        self.has_others = int(p != self.power_of_two)               # 1 if p is no power of two
        self.chunk = n / p                                          # one of p equal chunks
        self.all_but_one = n * (p - 1) / p                          # all chunks but one …
        # … and the same, if the vector is cut into `power_of_two` chunks
        self.all_but_one_of_power = n * (self.power_of_two - 1) / self.power_of_two


def pipelined_chain(c: Sizes) -> tuple[float, float, float]:
    """Each of k segments is one round behind the segment before it."""
    k = c.num_segments or best_num_segments(c.p, c.n)
    rounds = c.p + k - 2 if c.p > 1 else 0
    return rounds, c.n * rounds / k, 0


class Form(NamedTuple):
    """An algorithm: its closed form (rounds, bytes, bytes combined), and what else is known of it.

    `is_candidate`: it can be the fastest by the model, so "auto" compares it.  Of equally fast ones
    "auto" takes the first in the table.  `pattern` describes algorithms that send to ranks 2^k
    away.  Each round sends half or twice the bytes of the round before (HALVING), or all (WHOLE).
    `person` is the person it is named after.
    """

    cost: Callable[[Sizes], tuple[float, float, float]]
    is_candidate: bool = False
    pattern: str = ""
    person: str = ""


HALVING, WHOLE = "halving", "whole"         # the patterns
SCATTER = {
    "binomial": Form(lambda c: (c.log_up, c.all_but_one, 0), True, HALVING),
    "linear": Form(lambda c: (c.p - 1, c.all_but_one, 0), True),
}
FORMS: dict[str, dict[str, Form]] = {
    "barrier": {
        "dissemination": Form(lambda c: (c.log_up, 0, 0), True),
        "tree": Form(lambda c: (2 * c.log_up, 0, 0), True),
    },
    "broadcast": {
        "binomial": Form(lambda c: (c.log_up, c.n * c.log_up, 0), True, WHOLE),
        "pipelined_chain": Form(pipelined_chain, True),
        "scatter_all_gather": Form(lambda c: (c.log_up + c.p - 1, 2 * c.all_but_one, 0), True),
        "chain": Form(lambda c: (c.p - 1, c.n * (c.p - 1), 0)),
    },
    "scatter": SCATTER,
    "gather": SCATTER,                      # the same messages, backwards
    "reduce": {
        "binomial": Form(lambda c: (c.log_up, c.n * c.log_up, c.n * c.log_up), True, WHOLE),
        "rabenseifner": Form(lambda c: (
            2 * c.log_down + c.has_others, 2 * c.all_but_one_of_power + c.has_others * c.n,
            c.all_but_one_of_power + c.has_others * c.n), True, HALVING, "Rabenseifner"),
    },
    "all_gather": {
        "ring": Form(lambda c: (c.p - 1, c.all_but_one, 0), True),
        "bruck": Form(lambda c: (c.log_up, c.all_but_one, 0), True, person="Bruck"),
        "recursive_doubling": Form(lambda c: (
            c.log_down + 2 * c.has_others, c.all_but_one + c.has_others * (c.n + c.chunk), 0)),
    },
    "reduce_scatter": {
        "ring": Form(lambda c: (c.p - 1, c.all_but_one, c.all_but_one), True),
        "recursive_halving": Form(lambda c: (
            c.log_down + 2 * c.has_others, c.all_but_one_of_power + c.has_others * (c.n + c.chunk),
            c.all_but_one_of_power + c.has_others * c.n), True, HALVING),
        "pairwise": Form(lambda c: (c.p - 1, c.all_but_one, c.all_but_one)),
    },
    "all_reduce": {
        "ring": Form(lambda c: (2 * (c.p - 1), 2 * c.all_but_one, c.all_but_one), True),
        "recursive_doubling": Form(lambda c: (
            c.log_down + 2 * c.has_others, c.n * (c.log_down + 2 * c.has_others),
            c.n * (c.log_down + c.has_others)), True, WHOLE),
        "rabenseifner": Form(lambda c: (
            2 * (c.log_down + c.has_others), 2 * (c.all_but_one_of_power + c.has_others * c.n),
            c.all_but_one_of_power + c.has_others * c.n), True, HALVING, "Rabenseifner"),
        "blocked_ring": Form(lambda c: (
            2 * (c.p - 1) * max(1, ceil(c.n / BLOCK_BYTES)), 2 * c.all_but_one, c.all_but_one)),
        "tree": Form(lambda c: (2 * c.log_up, 2 * c.n * c.log_up, c.n * c.log_up), pattern=WHOLE),
    },
    "all_to_all": {
        "pairwise": Form(lambda c: (c.p - 1, c.all_but_one, 0), True),
        "bruck": Form(lambda c: (c.log_up, c.chunk * sum(j.bit_count() for j in range(c.p)), 0),
                      True, person="Bruck"),
    },
    "scan": {
        "recursive_doubling": Form(lambda c: (c.log_up, c.n * c.log_up, c.n * c.log_up), True),
        "linear": Form(lambda c: (c.p - 1, c.n * (c.p - 1), c.n * (c.p - 1)), True),
    },
    "exscan": {
        "recursive_doubling": Form(
            lambda c: (c.log_up, c.n * c.log_up, c.n * max(0, 2 * c.log_up - 1)), True),
        "linear": Form(lambda c: (c.p - 1, c.n * (c.p - 1), c.n * max(0, c.p - 2)), True),
    },
}
