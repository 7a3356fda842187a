"""Sampling from logits that are cut along the vocabulary, without gathering them.

    rank 0: words 0 … 24        rank 1: words 25 … 49         all rows of a step together
    penalties, temperature, min-p: each rank by itself
    1  all-reduce   the maximum m of each row                     1 number a row
    2  all-gather   Σ e^(z - m) of each rank's words              1 number a row from each rank
    3  all-gather   the best words of each rank: (logit, word)    2 c numbers a row, where top-k,
                                                                  top-p or temperature 0 ask for it
    4  all-reduce   the drawn word, known to its rank only        1 number a row, in other rows

Each rank's c best words are its candidates.  Every word that is likelier than the best c-th
candidate is known to all ranks.  If all kept words are such, the ranks draw alike; else c doubles.
c is 1 for temperature 0, k for top-k, and 64 at first for top-p.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...comm import Communicator
from ...comm.collectives import all_gather, all_reduce, chunk_bounds
from .sampler import (
    NOT_FINITE,
    SamplingParams,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize,
    pick,
    softmax,
    uniform,
)

CANDIDATES = 64             # of each rank for top-p, at first


class RowToDraw(NamedTuple):
    """What the next token of a row depends on, beside its logits."""

    params: SamplingParams
    prompt: Sequence[int]
    output: Sequence[int]
    sample: int = 0

    @property
    def uniform(self) -> float:
        """The number in [0, 1) that decides."""
        return uniform(self.params.seed, len(self.prompt) + len(self.output), self.sample)

    @property
    def num_candidates(self) -> int:
        """How many words each rank offers at first; 0 if every word is kept."""
        if self.params.temperature == 0:
            return 1
        return self.params.top_k or (CANDIDATES if self.params.top_p < 1 else 0)


def next_tokens(comm: Communicator, columns: np.ndarray, vocab_size: int,
                rows: Sequence[RowToDraw]) -> list[int]:
    """Collective.  The next token of each row, the same on all ranks as `next_token` of one.

    `columns` (n, V/p) are this rank's, by `chunk_bounds`, of n rows of logits.  Raises ValueError,
    on all ranks, for logits that are not finite.
    """
    if not rows:
        return []
    bounds = chunk_bounds(vocab_size, comm.size)
    start, stop = bounds[comm.rank]
    with comm.labelled("sampling"):
        logits = [_own_logits(z, range(start, stop), row) for z, row in zip(columns, rows)]
        maxima = all_reduce(comm, np.array([z.max() for z in logits], np.float64), "max", "ring")
        for i, row in enumerate(rows):
            if row.params.min_p > 0:
                logits[i] = keep_min_p(logits[i], row.params.min_p, maxima[i])
        weights = [np.exp(z - m) for z, m in zip(logits, maxima)]
        sums = all_gather(comm, np.array([[w.sum() for w in weights]], np.float64),
                          algorithm="ring")                           # (p, n)
        if not (np.isfinite(maxima).all() and np.isfinite(sums).all()):
            raise ValueError(NOT_FINITE)
        tokens = np.full(len(rows), -1.0)
        narrow = [i for i, row in enumerate(rows) if row.num_candidates]
        for i, token in _draw_among_candidates(comm, logits, sums.sum(0), rows, narrow, bounds):
            tokens[i] = token
        wide = [i for i, row in enumerate(rows) if not row.num_candidates]
        if wide:
            drawn = [_draw_own(weights[i], sums[:, i], rows[i].uniform, comm.rank, start)
                     for i in wide]
            tokens[wide] = all_reduce(comm, np.array(drawn, float), "max", "ring")
    return [int(token) for token in tokens]


def _own_logits(columns: np.ndarray, words: range, row: RowToDraw) -> np.ndarray:
    """This rank's logits (V/p,) of a row, after penalties and temperature, in float64."""
    logits = np.asarray(columns, np.float64)
    if row.params.has_penalties:
        prompt, output = ([token - words.start for token in tokens if token in words]
                          for tokens in (row.prompt, row.output))
        logits = penalize(logits, row.params, prompt, output)
    return logits / (row.params.temperature or 1)


def _draw_own(weights: np.ndarray, sums: np.ndarray, u: float, rank: int, start: int) -> int:
    """The word that u picks, on the rank that has it; -1 on the others.  `sums` (p,)."""
    owner = pick(sums, u)
    if rank != owner:
        return -1
    left = u * np.cumsum(sums)[-1] - (np.cumsum(sums)[owner - 1] if owner else 0)
    return start + min(int(np.searchsorted(np.cumsum(weights), left, side="right")),
                       len(weights) - 1)


def _draw_among_candidates(comm: Communicator, logits: list[np.ndarray], totals: np.ndarray,
                           rows: Sequence[RowToDraw], undecided: list[int],
                           bounds: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Gather the ranks' best words, more and more of them, until each row's draw is decided."""
    found, factor = [], 1
    start, longest = bounds[comm.rank][0], max(stop - start for start, stop in bounds)
    while undecided:
        counts = [min(longest, factor * rows[i].num_candidates) for i in undecided]
        own = np.concatenate([_best(logits[i], count, start)
                              for i, count in zip(undecided, counts)])
        offers = all_gather(comm, own[None], algorithm="ring")      # (p, Σ c, 2)
        left = []
        for i, count, offer in zip(undecided, counts,
                                   np.split(offers, np.cumsum(counts)[:-1], axis=1)):
            token = _decide(offer, count, bounds, float(totals[i]), rows[i])
            if token is None:
                left.append(i)
            else:
                found.append((i, token))
        undecided, factor = left, 2 * factor
    return found


def _best(logits: np.ndarray, count: int, start: int) -> np.ndarray:
    """The `count` likeliest words (count, 2): logit and number; -inf where there are no more."""
    best = np.full((count, 2), -np.inf)
    order = np.argsort(-logits, kind="stable")[:count]
    best[:len(order), 0], best[:len(order), 1] = logits[order], order + start
    return best


def _decide(offer: np.ndarray, count: int, bounds: Sequence[tuple[int, int]], total: float,
            row: RowToDraw) -> int | None:
    """The token, if the candidates (p, count, 2) decide it; else None.

    `total` is Σ e^(z - m) over all words.
    """
    hidden = [part[-1, 0] for part, (start, stop) in zip(offer, bounds) if count < stop - start]
    floor = max(hidden, default=-np.inf)            # no word that is not offered is likelier
    values, words = offer.reshape(-1, 2).T
    order = np.argsort(words[values > -np.inf], kind="stable")
    values, words = (each[values > -np.inf][order] for each in (values, words))
    if row.params.temperature == 0:
        return int(words[np.argmax(values)])
    kept = keep_top_k(values, row.params.top_k)
    if row.params.top_k:
        total = float(np.exp(kept - kept.max()).sum())
    if row.params.top_p < 1:
        kept = keep_top_p(kept, row.params.top_p, total)
    if kept[kept > -np.inf].min() <= floor and floor > -np.inf:
        return None
    return int(words[pick(softmax(kept), row.uniform)])


def top_logprobs(comm: Communicator, columns: np.ndarray, vocab_size: int, tokens: Sequence[int],
                 count: int) -> list[tuple[float, dict[int, float]]]:
    """Collective.  For each row (n, V/p): the log-probability of its token, and of the likeliest.

    As `sampler.top_logprobs`: under the model, before penalties and temperature.
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
                      {int(word): float(logit - denominators[i, 0]) for logit, word in offer[best]
                       if logit > -np.inf}))
    return found


def sampling_bytes(num_ranks: int, num_rows: int, num_candidates: int, num_wide: int) -> int:
    """Bytes that all ranks together send to draw a step's tokens, by rings of float64 numbers.

    `num_candidates` is the sum of all rows' candidates, of all attempts; `num_wide` the number of
    rows that keep every word.
    """
    p = num_ranks
    all_reduced = 2 * (p - 1) * (num_rows + num_wide)
    gathered = p * (p - 1) * (num_rows + 2 * num_candidates)
    return 8 * (all_reduced + gathered)
