"""The closed forms of the textbooks.

Exact where p is a power of two that divides n; elsewhere near enough to choose by.  Thakur,
Rabenseifner & Gropp 2005; Chan, Heimlich, Purkayastha & van de Geijn 2007.
"""

from math import ceil
from typing import Any

from ..collectives.all_reduce import BLOCK_BYTES
from ..collectives.broadcast import best_num_segments
from .model import Cost


def textbook(operation: str, algorithm: str, p: int, num_bytes: float, **details: Any) -> Cost:
    """The textbook's cost; `num_bytes` is that of the whole vector, see `predict`.

    A pipelined chain takes num_segments=k (by default the best).  Raises ValueError for an unknown
    operation or algorithm.
    """
    up = (p - 1).bit_length()                           # ⌈log₂ p⌉
    core = 1 << (p.bit_length() - 1)                    # 2^⌊log₂ p⌋
    down, odd = core.bit_length() - 1, p != core        # ⌊log₂ p⌋; 1 if p is no power of two
    whole, share = num_bytes, num_bytes / p             # the vector, and one rank's piece of it
    most, rest = whole * (p - 1) / p, whole * (core - 1) / core
    if operation == "broadcast":
        k = details.get("num_segments") or best_num_segments(p, num_bytes)
        hops = p + k - 2 if p > 1 else 0
    forms: dict[str, dict[str, Any]] = {        # rounds, bytes, reduced
        "barrier": {"dissemination": (up, 0, 0), "tree": (2 * up, 0, 0)},
        "broadcast": {
            "binomial": (up, whole * up, 0), "chain": (p - 1, whole * (p - 1), 0),
            # a function: the number of segments is known for a broadcast only
            "pipelined_chain": lambda: (hops, whole * hops / k, 0),
            "scatter_all_gather": (up + p - 1, 2 * most, 0)},
        "scatter": {"binomial": (up, most, 0), "linear": (p - 1, most, 0)},
        "gather": {"binomial": (up, most, 0), "linear": (p - 1, most, 0)},
        "reduce": {"binomial": (up, whole * up, whole * up),
                   "rabenseifner": (2 * down + odd, 2 * rest + odd * whole, rest + odd * whole)},
        "all_gather": {"ring": (p - 1, most, 0), "bruck": (up, most, 0),
                       "recursive_doubling": (down + 2 * odd, most + odd * (whole + share), 0)},
        "reduce_scatter": {
            "ring": (p - 1, most, most), "pairwise": (p - 1, most, most),
            "recursive_halving": (down + 2 * odd, rest + odd * (whole + share),
                                  rest + odd * whole)},
        "all_reduce": {
            "recursive_doubling": (down + 2 * odd, whole * (down + 2 * odd), whole * (down + odd)),
            "rabenseifner": (2 * (down + odd), 2 * (rest + odd * whole), rest + odd * whole),
            "ring": (2 * (p - 1), 2 * most, most),
            "blocked_ring": (2 * (p - 1) * max(1, ceil(whole / BLOCK_BYTES)), 2 * most, most),
            "tree": (2 * up, 2 * whole * up, whole * up)},
        "all_to_all": {
            "pairwise": (p - 1, most, 0),
            # a function: only bruck should pay for a sum over p ranks
            "bruck": lambda: (up, share * sum(j.bit_count() for j in range(p)), 0)},
        "scan": {"recursive_doubling": (up, whole * up, whole * up),
                 "linear": (p - 1, whole * (p - 1), whole * (p - 1))},
        "exscan": {"recursive_doubling": (up, whole * up, whole * max(0, 2 * up - 1)),
                   "linear": (p - 1, whole * (p - 1), whole * max(0, p - 2))},
    }
    if algorithm not in forms.get(operation, {}):
        raise ValueError(f"no textbook form of {operation} by {algorithm!r}: choose from "
                         f"{', '.join(forms.get(operation, forms))}")
    form = forms[operation][algorithm]
    rounds, size, reduced = form() if callable(form) else form
    return Cost(rounds, size, float("nan"), reduced)
