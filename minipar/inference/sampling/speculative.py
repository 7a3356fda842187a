"""Speculative decoding: a small model drafts γ tokens, the large one checks them in one step.

    draft    the cat sat ─▶ on ─▶ the ─▶ rug                   γ small steps, one after the other
    target   p after "sat", "on", "the", "rug"                 one step over all of them
    check    on ✓   the ✓   rug ✗ ─▶ mat                       mat is drawn from the residual

The answer has the distribution of the target alone.  Let q be the draft's distribution of the next
token and p the target's, both after all rules of `sampler.py`:

    accept x ~ q with probability min(1, p(x) / q(x))
    else draw from the residual max(p - q, 0), normalized, and drop the drafts after x
    after γ accepted drafts the same step of the target gives one more token: the bonus

A token x is drafted and accepted with probability min(p, q).  A rejection has probability
1 - Σ min(p, q), and the residual turns it into max(p - q, 0) for each token.  The sum is p.  At
temperature 0, p and q are 0 or 1, and the answer is the greedy one.

Each position has three random numbers: for its draft, for the check, and for the residual or bonus.
A position after a rejected draft is drafted again.  It may use the same numbers again, because no
token that they decided was kept.  Leviathan et al. 2023; Chen et al. 2023.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...backend import to_host
from ...nn import GPT
from ..cache import KVSizes, PagedKVCache, SequenceInput
from ..model import forward_over_cache
from ..scheduling import BlockPool, CachedSequence, blocks_for
from .sampler import SamplingParams, pick, probabilities, uniform


def acceptance_probability(p: np.ndarray, q: np.ndarray, token: int) -> float:
    """The probability of accepting a token that was drafted from q: min(1, p / q)."""
    return min(1.0, float(p[token] / q[token]))


def acceptance_rate(p: np.ndarray, q: np.ndarray) -> float:
    """α = Σ min(p, q): the probability of accepting a token drafted from q (V,)."""
    return float(np.minimum(p, q).sum())


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The distribution (V,) of the token in place of a rejected one: max(p - q, 0), normalized."""
    excess = np.maximum(p - q, 0)
    total = excess.sum()
    return excess / total if total > 0 else p       # p = q: only rounding can reject


def expected_tokens(alpha: float, num_drafts: int) -> float:
    """Tokens that one step of the target yields: 1 + α + … + α^γ = (1 - α^(γ+1)) / (1 - α).

    The formula takes α to be the same at every position.  Leviathan et al. 2023, equation 1.
    """
    return num_drafts + 1 if alpha == 1 else (1 - alpha ** (num_drafts + 1)) / (1 - alpha)


def verify(p: np.ndarray, q: np.ndarray, drafts: Sequence[int], check: Sequence[float],
           own: Sequence[float]) -> list[int]:
    """The drafts before the first rejected one, and the target's own token in its place.

    If no draft is rejected, the target's token follows the last one.

    p (γ + 1, V) has the target's distribution at each draft and after the last one.  q (γ, V) has
    the distribution from which each of the γ `drafts` was drawn.  `check` (γ,) and `own` (γ + 1,)
    are random numbers in [0, 1): for the check of each position, and for the target's own token.
    """
    for i, token in enumerate(drafts):
        if check[i] >= acceptance_probability(p[i], q[i], token):
            return [*drafts[:i], pick(residual(p[i], q[i]), own[i])]
    return [*drafts, pick(p[-1], own[len(drafts)])]


def append_drafts(sequence: CachedSequence, pool: BlockPool, drafts: Sequence[int]) -> list[int]:
    """Append tokens that may be taken back; return the blocks taken for pending tokens."""
    sequence.tokens += drafts
    return sequence.allocate(pool, sequence.num_pending)


def settle(sequence: CachedSequence, pool: BlockPool, num_known: int,
           tokens: Sequence[int]) -> list[int]:
    """Let `tokens` follow the first `num_known` ones, in place of drafts; return freed blocks.

    All but the last of `tokens` were drafts.  Drafts that were computed stay computed.  The last
    token, and a draft that was not computed, are pending in the next step.
    """
    num_kept = num_known + len(tokens) - 1
    freed = sequence.rewind(pool, min(num_kept, sequence.num_computed))
    sequence.tokens[num_known:] = tokens
    return freed


class CachedModel:
    """A model, and one sequence with its keys and values.

    Between two steps, the last token of the sequence is not computed yet.
    """

    def __init__(self, model: GPT, prompt: Sequence[int], max_tokens: int, block_size: int):
        num_blocks = blocks_for(len(prompt) + max_tokens, block_size)
        self.model, self.pool = model, BlockPool(num_blocks, block_size)
        self.cache = PagedKVCache(KVSizes.of(model), num_blocks, block_size, model.slabs[0].data)
        self.sequence = CachedSequence("", list(prompt[:-1]))
        if len(prompt) > 1:
            self.compute(last_only=True)
        self.sequence.tokens.append(prompt[-1])

    def compute(self, drafts: Sequence[int] = (), last_only: bool = False) -> np.ndarray:
        """Append drafts, compute all pending tokens; return the logits (pending, V)."""
        append_drafts(self.sequence, self.pool, drafts)
        start = self.sequence.num_computed
        new = SequenceInput(self.sequence.tokens[start:], start, self.sequence.table)
        self.sequence.num_computed = len(self.sequence.tokens)
        return to_host(forward_over_cache(self.model, self.cache, [new], last_only).data)


@dataclass
class SpeculationStats:
    """Counts of a decoder; `rate_sum` adds up Σ min(p, q) of the drafts that were checked."""

    target_calls: int = 0
    tokens: int = 0                 # that the target's steps gave
    drafted: int = 0
    checked: int = 0                # drafts up to the first rejected one, that one included
    accepted: int = 0
    rate_sum: float = 0.0

    @property
    def alpha(self) -> float:
        """The mean acceptance rate Σ min(p, q) of the checked drafts."""
        return self.rate_sum / max(1, self.checked)

    @property
    def tokens_per_call(self) -> float:
        """The mean number of tokens that one step of the target gave."""
        return self.tokens / max(1, self.target_calls)


class SpeculativeDecoder:
    """Generates with `target`, helped by `num_drafts` guesses of `draft` for each of its steps.

    Both need the same vocabulary.  `stats` counts over all answers.
    """

    def __init__(self, target: GPT, draft: GPT, num_drafts: int = 4, block_size: int = 16):
        if target.config.vocab_size != draft.config.vocab_size:
            raise ValueError(f"the draft knows {draft.config.vocab_size} tokens, the target "
                             f"{target.config.vocab_size}: both need the same vocabulary")
        if num_drafts < 1:
            raise ValueError(f"num_drafts must be at least 1, not {num_drafts}")
        self.target, self.draft = target, draft
        self.num_drafts, self.block_size = num_drafts, block_size
        self.stats = SpeculationStats()

    def generate(self, prompt: Sequence[int], max_tokens: int,
                 params: SamplingParams | None = None,
                 stop_tokens: Collection[int] = ()) -> Iterator[int]:
        """Yield at most `max_tokens` tokens, up to the first one of `stop_tokens`.

        Raises ValueError for a prompt without a token, for max_tokens < 1, and for more tokens than
        the shorter of the two contexts holds.
        """
        context = min(self.target.config.context, self.draft.config.context)
        if not prompt or max_tokens < 1 or len(prompt) + max_tokens > context:
            raise ValueError(f"a prompt of {len(prompt)} tokens and max_tokens={max_tokens}: "
                             f"expected at least 1 each, and at most {context} together")
        answer = _SpeculativeAnswer(self, list(prompt), max_tokens, params or SamplingParams())
        return answer.tokens(frozenset(stop_tokens))


class _SpeculativeAnswer:
    """One answer of a SpeculativeDecoder, while it grows."""

    def __init__(self, decoder: SpeculativeDecoder, prompt: list[int], max_tokens: int,
                 params: SamplingParams):
        self.decoder, self.params = decoder, params
        self.prompt, self.max_tokens = prompt, max_tokens
        self.output: list[int] = []
        self.target, self.draft = (CachedModel(model, prompt, max_tokens, decoder.block_size)
                                   for model in (decoder.target, decoder.draft))

    def tokens(self, stop_tokens: frozenset[int]) -> Iterator[int]:
        """Yield the tokens, up to a stop token."""
        while len(self.output) < self.max_tokens:
            for token in self.step():
                self.output.append(token)
                yield token
                if token in stop_tokens:
                    return

    def step(self) -> list[int]:
        """The tokens of one step of the target; the caller appends them to the output."""
        known = len(self.prompt) + len(self.output)
        left = self.max_tokens - len(self.output)
        drafts, q = self._propose(min(self.decoder.num_drafts, left - 1))
        logits = self.target.compute(drafts)
        p = np.stack([self._distribution(row, drafts[:i]) for i, row in enumerate(logits)])
        check, own = ([self._uniform(i, purpose) for i in range(len(p))]
                      for purpose in ("check", "sample"))
        tokens = verify(p, q, drafts, check, own)
        for model in (self.target, self.draft):
            settle(model.sequence, model.pool, known, tokens)
        self._count(p, q, len(tokens) - 1)
        return tokens

    def _propose(self, count: int) -> tuple[list[int], np.ndarray]:
        """(`count` drafts, the distributions (count, V) from which they were drawn)."""
        drafts: list[int] = []
        q = np.zeros((count, self.decoder.target.config.vocab_size))
        for i in range(count):
            # after γ accepted drafts two tokens are pending: the last draft, and the bonus
            logits = self.draft.compute(drafts[-1:])[-1]
            q[i] = self._distribution(logits, drafts)
            drafts.append(pick(q[i], self._uniform(i, "draft")))
        return drafts, q

    def _distribution(self, logits: np.ndarray, drafts: list[int]) -> np.ndarray:
        return probabilities(logits, self.params, self.prompt, self.output + drafts)

    def _uniform(self, i: int, purpose: str) -> float:
        """The random number of the i-th token from here, for a purpose."""
        position = len(self.prompt) + len(self.output) + i
        return uniform(self.params.seed, position, purpose=purpose)

    def _count(self, p: np.ndarray, q: np.ndarray, num_accepted: int) -> None:
        stats, num_checked = self.decoder.stats, min(len(q), num_accepted + 1)
        stats.target_calls += 1
        stats.tokens += num_accepted + 1
        stats.drafted += len(q)
        stats.checked += num_checked
        stats.accepted += num_accepted
        stats.rate_sum += sum(map(acceptance_rate, p[:num_checked], q[:num_checked]))
