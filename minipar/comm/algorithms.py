"""The algorithms of each collective: an entry has the function, the rounds and the closed form.

    "linear": Algorithm(scatter.linear,                         runs: p - 1 messages of rank 0
                        lambda c: rounds.from_first(c.pieces),  predicted: who sends what, by rounds
                        lambda s: (s.p - 1, s.all_but_one, 0))  textbook: p - 1 rounds, n(p-1)/p B

A collective finds the function (`arguments.find_algorithm`), `cost.predict` the rounds and
`cost.textbook` the form.  All three are written independently; tests compare them.  The first entry
of an operation is what "auto" takes on a communicator that does not choose.  Algorithms that
one kind of communicator has ("mpi", "shared") are not here, but in its `own_algorithms`.

Forms are exact where p is a power of two that divides n (and k divides n, for a chain of k
segments).  Elsewhere they are near enough to choose by.
Thakur, Rabenseifner & Gropp 2005; Chan, Heimlich, Purkayastha & van de Geijn 2007.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import chain
from math import ceil
from typing import Any, NamedTuple

from . import rounds
from .rounds import Round

# The files: `from . import` would give the functions of the same names.
all_gather, all_reduce, all_to_all, barrier, broadcast, gather, reduce, reduce_scatter, scan, \
    scatter = (import_module(f".collectives.{name}", __package__) for name in (
        "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "reduce",
        "reduce_scatter", "scan", "scatter"))
HALVING, WHOLE = "halving", "whole"         # patterns


class Algorithm(NamedTuple):
    """An algorithm: its function, and what the cost model knows of it.

    `run` works in place and takes the same arguments as the other algorithms of its operation.
    `rounds(call)` lists the messages, for `predict`.  `form(sizes)` is the textbook's (rounds,
    bytes, bytes combined).  An algorithm for several nodes of several ranks has `parts` in place of
    `form`: `parts(ranks of each node, bytes)` lists its collectives, each as ("within" or "between"
    nodes, arguments of `textbook`).

    "auto" compares the modelled times of the algorithms that have `is_candidate`, `rounds`, and
    `form` or `parts`.  If several are equally fast, it takes the first in the table.
    `is_candidate` may be False for one that another equals or beats on equal links.
    "auto" takes such an algorithm only where a measured table ranks it first (`cost/choose.py`).

    `pattern` is for algorithms that send to ranks 2^k away.  A round sends half or twice the bytes
    of the round before (HALVING), or the whole array (WHOLE).  `closed_parts` in cost/network.py
    uses it.  `person` is the person after whom the algorithm is named.
    """

    run: Callable[..., None]
    rounds: Callable[[Any], Iterable[Round]] | None = None
    form: Callable[[Any], tuple[float, float, float]] | None = None
    is_candidate: bool = True
    pattern: str = ""
    person: str = ""
    parts: Callable[[Sequence[int], float], list[tuple[str, tuple]]] | None = None


def pipelined_chain(s: Any) -> tuple[float, float, float]:
    """The closed form of the pipelined chain: each segment is one round behind the one before."""
    k = s.num_segments or broadcast.best_num_segments(s.p, s.n)
    num_rounds = s.p + k - 2 if s.p > 1 else 0
    return num_rounds, s.n * num_rounds / k, 0


# operation -> name -> Algorithm
# c is a `Call` (cost/predict.py), s are `ClosedFormSizes` (cost/textbook.py)
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_gather": {
        "ring": Algorithm(all_gather.ring, lambda c: rounds.ring(c.pieces, 0, 0),
                          lambda s: (s.p - 1, s.all_but_one, 0)),
        "recursive_doubling": Algorithm(
            all_gather.recursive_doubling, lambda c: rounds.folded_gather(c.pieces),
            lambda s: (s.log_down + 2 * s.has_others,
                       s.all_but_one + s.has_others * (s.n + s.chunk), 0), is_candidate=False),
        "bruck": Algorithm(all_gather.bruck, lambda c: rounds.bruck_gather(c.pieces),
                           lambda s: (s.log_up, s.all_but_one, 0), person="Bruck"),
    },
    "all_reduce": {
        "ring": Algorithm(all_reduce.ring, lambda c: rounds.blocked_ring(c.p, c.n, max(1, c.n)),
                          lambda s: (2 * (s.p - 1), 2 * s.all_but_one, s.all_but_one)),
        "blocked_ring": Algorithm(
            all_reduce.blocked_ring,
            lambda c: rounds.blocked_ring(c.p, c.n, max(1, c.block_bytes // c.itemsize)),
            lambda s: (2 * (s.p - 1) * max(1, ceil(s.n / all_reduce.BLOCK_BYTES)),
                       2 * s.all_but_one, s.all_but_one), is_candidate=False),
        "recursive_doubling": Algorithm(
            all_reduce.recursive_doubling, lambda c: rounds.folded(
                c.p, c.n, lambda parts: rounds.swap_all(len(parts), c.n)),
            lambda s: (s.log_down + 2 * s.has_others, s.n * (s.log_down + 2 * s.has_others),
                       s.n * (s.log_down + s.has_others)), pattern=WHOLE),
        "rabenseifner": Algorithm(
            all_reduce.rabenseifner, lambda c: rounds.rabenseifner(c.p, c.n),
            lambda s: (2 * (s.log_down + s.has_others),
                       2 * (s.all_but_one_of_power + s.has_others * s.n),
                       s.all_but_one_of_power + s.has_others * s.n),
            pattern=HALVING, person="Rabenseifner"),
        "tree": Algorithm(
            all_reduce.tree, lambda c: chain(rounds.collect(c.p, c.n), rounds.spread(c.p, c.n)),
            lambda s: (2 * s.log_up, 2 * s.n * s.log_up, s.n * s.log_up),
            is_candidate=False, pattern=WHOLE),
        "hierarchical": Algorithm(
            all_reduce.hierarchical, lambda c: rounds.hierarchical(c.node_sizes, c.n),
            parts=lambda nodes, n: [
                ("within", ("all_reduce", "tree", max(nodes), n)),
                ("between", ("all_reduce", "rabenseifner", len(nodes), n))]),
        "torus": Algorithm(
            all_reduce.torus, lambda c: rounds.torus(c.node_sizes, c.n),
            parts=lambda nodes, n: [
                ("within", ("reduce_scatter", "ring", max(nodes), n)),
                ("between", ("all_reduce", "ring", len(nodes), n / min(nodes))),
                ("within", ("all_gather", "ring", max(nodes), n))]),
    },
    "all_to_all": {
        "pairwise": Algorithm(all_to_all.pairwise, lambda c: rounds.exchange(c.table),
                              lambda s: (s.p - 1, s.all_but_one, 0)),
        "bruck": Algorithm(
            all_to_all.bruck, lambda c: rounds.bruck_exchange(c.table), lambda s: (
                s.log_up, s.chunk * sum(j.bit_count() for j in range(s.p)), 0), person="Bruck"),
    },
    "barrier": {
        "dissemination": Algorithm(barrier.dissemination, lambda c: rounds.dissemination(c.p),
                                   lambda s: (s.log_up, 0, 0)),
        "tree": Algorithm(
            barrier.tree, lambda c: chain(rounds.dealt_back([0] * c.p), rounds.deal([0] * c.p)),
            lambda s: (2 * s.log_up, 0, 0)),
    },
    "broadcast": {
        "binomial": Algorithm(broadcast.binomial, lambda c: rounds.spread(c.p, c.n),
                              lambda s: (s.log_up, s.n * s.log_up, 0), pattern=WHOLE),
        "chain": Algorithm(broadcast.chain, lambda c: rounds.pipeline(c.p, [c.n]),
                           lambda s: (s.p - 1, s.n * (s.p - 1), 0), is_candidate=False),
        "pipelined_chain": Algorithm(
            broadcast.pipelined_chain, lambda c: rounds.pipeline(c.p, c.segments), pipelined_chain),
        "scatter_all_gather": Algorithm(
            broadcast.scatter_all_gather, lambda c: chain(
                rounds.deal(c.pieces), rounds.ring(c.pieces, 0, 0)),
            lambda s: (s.log_up + s.p - 1, 2 * s.all_but_one, 0)),
    },
    "exscan": {             # runs the functions of a scan; recursive doubling combines more often
        "recursive_doubling": Algorithm(
            scan.recursive_doubling, lambda c: rounds.shifts(c.p, c.n, 1, 2),
            lambda s: (s.log_up, s.n * s.log_up, s.n * max(0, 2 * s.log_up - 1))),
        "linear": Algorithm(scan.linear, lambda c: rounds.passed_on(c.p, c.n, c.p - 2),
                            lambda s: (s.p - 1, s.n * (s.p - 1), s.n * max(0, s.p - 2))),
    },
    "gather": {
        "binomial": Algorithm(gather.binomial, lambda c: rounds.dealt_back(c.pieces),
                              lambda s: (s.log_up, s.all_but_one, 0), pattern=HALVING),
        "linear": Algorithm(gather.linear, lambda c: rounds.to_first(c.pieces),
                            lambda s: (s.p - 1, s.all_but_one, 0)),
    },
    "reduce": {
        "binomial": Algorithm(reduce.binomial, lambda c: rounds.collect(c.p, c.n), lambda s: (
            s.log_up, s.n * s.log_up, s.n * s.log_up), pattern=WHOLE),
        "rabenseifner": Algorithm(
            reduce.rabenseifner, lambda c: rounds.folded(
                c.p, c.n, rounds.halving, rounds.dealt_back, give_back=False),
            lambda s: (2 * s.log_down + s.has_others,
                       2 * s.all_but_one_of_power + s.has_others * s.n,
                       s.all_but_one_of_power + s.has_others * s.n),
            pattern=HALVING, person="Rabenseifner"),
    },
    "reduce_scatter": {
        "ring": Algorithm(reduce_scatter.ring, lambda c: rounds.ring(c.pieces, -1, 1),
                          lambda s: (s.p - 1, s.all_but_one, s.all_but_one)),
        "pairwise": Algorithm(
            reduce_scatter.pairwise, lambda c: rounds.exchange([c.pieces] * c.p, 1),
            lambda s: (s.p - 1, s.all_but_one, s.all_but_one), is_candidate=False),
        "recursive_halving": Algorithm(
            reduce_scatter.recursive_halving, lambda c: rounds.folded_scatter(c.pieces),
            lambda s: (s.log_down + 2 * s.has_others,
                       s.all_but_one_of_power + s.has_others * (s.n + s.chunk),
                       s.all_but_one_of_power + s.has_others * s.n), pattern=HALVING),
    },
    "scan": {
        "recursive_doubling": Algorithm(
            scan.recursive_doubling, lambda c: rounds.shifts(c.p, c.n, 1, 1),
            lambda s: (s.log_up, s.n * s.log_up, s.n * s.log_up)),
        "linear": Algorithm(scan.linear, lambda c: rounds.passed_on(c.p, c.n, c.p - 1),
                            lambda s: (s.p - 1, s.n * (s.p - 1), s.n * (s.p - 1))),
    },
    "scatter": {
        "binomial": Algorithm(scatter.binomial, lambda c: rounds.deal(c.pieces),
                              lambda s: (s.log_up, s.all_but_one, 0), pattern=HALVING),
        "linear": Algorithm(scatter.linear, lambda c: rounds.from_first(c.pieces),
                            lambda s: (s.p - 1, s.all_but_one, 0)),
    },
}


def known(operation: str, algorithm: str, column: str) -> Any:
    """The field `column` of the algorithm's entry.

    Raises ValueError for an unknown operation or algorithm, and if the entry leaves the field out.
    """
    having = {name: value for name, entry in ALGORITHMS.get(operation, {}).items()
              if (value := getattr(entry, column))}
    if algorithm not in having:
        raise ValueError(f"no {column} known of {operation} by {algorithm!r}: choose from "
                         f"{', '.join(having or ALGORITHMS)}")
    return having[algorithm]
