"""Sampling from logits that are cut along the vocabulary, without gathering them.

    rank 0: tokens 0 … 24        rank 1: tokens 25 … 49        all draws of a step together
    penalties, temperature: each rank by itself
    1  all-reduce   the maximum m of the logits z    1 number a draw, except for temperature 0, and
                                                     for top-k without min-p
    2  all-gather   Σ e^(z - m) of each rank         1 number a draw and rank, in the same draws
    3  all-gather   the best tokens of each rank,    2 c numbers a draw and rank, for temperature 0,
                    (logit, token)                   top-k and top-p
    4  all-reduce   the drawn token, which only its  1 number a draw, in the other draws
                    rank knows

Each rank's c best tokens are its candidates.  Among the ranks' c-th candidates, one is likeliest:
all ranks know every token that is likelier than this one.  If they know all tokens that top-k and
top-p keep, they draw the same token; else c doubles, and 3 is repeated.  The first c is 1 for
temperature 0, k for top-k, and 64 for top-p.  Nearly all tokens travel only if k is close to the
size of the vocabulary, or if the distribution is flat and top-p is large.

Sums over ranks are rounded differently from sums in one process, by about 1e-16.  A token differs
only if the random number u lies that close to the border between two tokens.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ...comm import Communicator
from ...comm.collectives import all_gather, all_reduce, chunk_bounds
from .sampler import (
    NOT_FINITE,
    DrawInputs,
    SamplingParams,
    first_above,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    likeliest,
    penalize,
    pick,
    softmax,
)

CANDIDATES = 64             # of each rank for top-p, at first


def num_candidates(params: SamplingParams) -> int:
    """The number of tokens that each rank offers at first; 0 if no tokens must be ranked."""
    if params.temperature == 0:
        return 1
    return params.top_k or (CANDIDATES if params.top_p < 1 else 0)


def needs_sums(params: SamplingParams) -> bool:
    """True if the probabilities of all tokens count, not only the order of the best."""
    return params.temperature > 0 and (params.min_p > 0 or not params.top_k)


def next_tokens_over_ranks(comm: Communicator, columns: np.ndarray, vocab_size: int,
                           inputs: Sequence[DrawInputs]) -> list[int]:
    """Collective.  A token for each of n draws, the same on all ranks, like `sampler.next_tokens`.

    `columns` (n, V/p) are this rank's columns of the logits (n, V), by `chunk_bounds`.  Raises
    ValueError, on all ranks, for logits that are not finite.
    """
    if not inputs:
        return []
    bounds = chunk_bounds(vocab_size, comm.size)
    start, stop = bounds[comm.rank]
    with comm.labelled("sampling"):
        logits = [_own_logits(z, range(start, stop), each) for z, each in zip(columns, inputs)]
        summed = [i for i, each in enumerate(inputs) if needs_sums(each.params)]
        sums = _sums(comm, logits, inputs, summed)
        tokens = np.full(len(inputs), -1.0)
        narrow = [i for i, each in enumerate(inputs) if num_candidates(each.params)]
        totals = {i: float(column.sum()) for i, column in sums.items()}
        for i, token in _draw_among_candidates(comm, logits, totals, inputs, narrow, bounds):
            tokens[i] = token
        wide = [i for i, each in enumerate(inputs) if not num_candidates(each.params)]
        if wide:
            drawn = [_draw_own(logits[i], sums[i], inputs[i].u, comm.rank, start)
                     for i in wide]
            tokens[wide] = all_reduce(comm, np.array(drawn, np.float64), "max", "ring")
    return [int(token) for token in tokens]


def _sums(comm: Communicator, logits: list[np.ndarray], inputs: Sequence[DrawInputs],
          summed: list[int]) -> dict[int, np.ndarray]:
    """For each draw of `summed`: Σ e^(z - m) of each rank (p,), with m the maximum over all ranks.

    Subtracts m from these logits, and applies min-p, which also needs m.
    """
    if not summed:
        return {}
    own = np.array([logits[i].max() for i in summed], np.float64)
    maxima = all_reduce(comm, own, "max", "ring")
    for i, maximum in zip(summed, maxima):
        with np.errstate(invalid="ignore"):     # inf - inf is NaN, and refused below
            logits[i] = logits[i] - maximum
        if inputs[i].params.min_p > 0:
            logits[i] = keep_min_p(logits[i], inputs[i].params.min_p, 0.0)
    own = np.array([[np.exp(logits[i]).sum() for i in summed]], np.float64)
    sums = all_gather(comm, own, algorithm="ring")                              # (p, draws)
    if not (np.isfinite(maxima).all() and np.isfinite(sums).all()):
        raise ValueError(NOT_FINITE)
    return dict(zip(summed, sums.T))


def _own_logits(columns: np.ndarray, own: range, inputs: DrawInputs) -> np.ndarray:
    """This rank's logits (V/p,) of a draw, after penalties and temperature, in float64."""
    logits = np.asarray(columns, np.float64)
    if inputs.params.has_penalties:
        prompt, output = ([token - own.start for token in tokens if token in own]
                          for tokens in (inputs.prompt, inputs.output))
        logits = penalize(logits, inputs.params, prompt, output)
    if np.isnan(logits.max()):
        return np.full_like(logits, np.inf)     # largest of all, so no rank can miss it
    return logits / (inputs.params.temperature or 1)


def _draw_own(logits: np.ndarray, sums: np.ndarray, u: float, rank: int, start: int) -> int:
    """The token that u picks, on the rank that has this token; -1 on all others.

    `sums` (p,) are the Σ e^(z - m) of the ranks.
    """
    ends = np.cumsum(sums)
    owner = first_above(ends, u * ends[-1])
    if rank != owner:
        return -1
    before = ends[owner - 1] if owner else 0.0
    return start + first_above(np.cumsum(np.exp(logits)), u * ends[-1] - before)


def _draw_among_candidates(comm: Communicator, logits: list[np.ndarray],
                           totals: Mapping[int, float],
                           inputs: Sequence[DrawInputs], undecided: list[int],
                           bounds: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Gather the ranks' best tokens, more and more of them, until every draw is decided."""
    found, factor = [], 1
    start, longest = bounds[comm.rank][0], max(stop - start for start, stop in bounds)
    while undecided:
        counts = [min(longest, factor * num_candidates(inputs[i].params)) for i in undecided]
        own = np.concatenate([_best(logits[i], count, start)
                              for i, count in zip(undecided, counts)])
        offers = all_gather(comm, own[None], algorithm="ring")      # (p, Σ c, 2)
        left = []
        for i, count, offer in zip(undecided, counts,
                                   np.split(offers, np.cumsum(counts)[:-1], axis=1)):
            token = _decide(offer, count, bounds, totals.get(i), inputs[i])
            if token is None:
                left.append(i)
            else:
                found.append((i, token))
        undecided, factor = left, 2 * factor
    return found


def _best(logits: np.ndarray, count: int, start: int) -> np.ndarray:
    """The `count` likeliest tokens (count, 2): logit and number; -inf where there are no more."""
    best = np.full((count, 2), -np.inf)
    order = likeliest(logits, count)
    best[:len(order), 0], best[:len(order), 1] = logits[order], order + start
    return best


def _decide(offer: np.ndarray, count: int, bounds: Sequence[tuple[int, int]],
            total: float | None, inputs: DrawInputs) -> int | None:
    """The token, if the candidates (p, count, 2) decide it; else None.

    `total` is Σ e^(z - m) over all tokens; top-k needs none.
    """
    if not np.isfinite(offer[..., 0].max()):
        raise ValueError(NOT_FINITE)
    hidden = [part[-1, 0] for part, (start, stop) in zip(offer, bounds) if count < stop - start]
    floor = max(hidden, default=-np.inf)            # no token that is not offered is likelier
    values, tokens = offer.reshape(-1, 2).T
    order = np.argsort(tokens[values > -np.inf], kind="stable")
    values, tokens = (each[values > -np.inf][order] for each in (values, tokens))
    if inputs.params.temperature == 0:
        return int(tokens[np.argmax(values)])
    kept = keep_top_k(values, inputs.params.top_k)
    if inputs.params.top_k:
        total = None                            # top-p counts probabilities among the k tokens
    if inputs.params.top_p < 1:
        kept = keep_top_p(kept, inputs.params.top_p, total)
    if kept[kept > -np.inf].min() <= floor and floor > -np.inf:
        return None
    return int(tokens[pick(softmax(kept), inputs.u)])


def top_logprobs_over_ranks(comm: Communicator, columns: np.ndarray, vocab_size: int,
                            tokens: Sequence[int],
                            count: int) -> list[tuple[float, dict[int, float]]]:
    """Collective.  For each of n draws: the log-probability of its token, and of the likeliest.

    `columns` (n, V/p) are this rank's columns of the logits.  Penalties and temperature are
    left out, as in `sampler.top_logprobs`.
    """
    start, stop = chunk_bounds(vocab_size, comm.size)[comm.rank]
    logits = np.asarray(columns, np.float64)
    own = np.full((len(tokens), 1), -np.inf)
    for i, token in enumerate(tokens):
        if start <= token < stop:
            own[i] = logits[i, token - start]
    with comm.labelled("sampling"):
        maxima, chosen = all_reduce(comm, np.stack([logits.max(-1, keepdims=True), own]), "max",
                                    "ring")
        total = all_reduce(comm, np.exp(logits - maxima).sum(-1, keepdims=True), "sum", "ring")
        offers = all_gather(comm, np.stack([_best(row, count, start) for row in logits])[None],
                            algorithm="ring")                           # (p, n, count, 2)
    denominators = np.log(total) + maxima                               # (n, 1)
    found = []
    for i, offer in enumerate(offers.swapaxes(0, 1).reshape(len(tokens), -1, 2)):
        best = np.lexsort((offer[:, 1], -offer[:, 0]))[:count]
        found.append((float(chosen[i, 0] - denominators[i, 0]),
                      {int(token): float(logit - denominators[i, 0]) for logit, token in offer[best]
                       if logit > -np.inf}))
    return found


def sampling_bytes(num_ranks: int, num_summed: int, num_candidates: int, num_wide: int) -> int:
    """Bytes that all ranks together send to draw a step's tokens, by rings of float64 numbers.

    `num_summed` draws need sums (`needs_sums`), and `num_wide` draws offer no candidates.
    `num_candidates` is the sum of a rank's candidates over all draws and all attempts.
    """
    p = num_ranks
    all_reduced = 2 * (p - 1) * (num_summed + num_wide)
    gathered = p * (p - 1) * (num_summed + 2 * num_candidates)
    return 8 * (all_reduced + gathered)
