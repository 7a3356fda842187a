"""Measurements of an engine: times of each request, use of the cache, tokens computed twice.

    submitted      first token        token   token        last token
        │── queue, prefill ──│── gap ──│── gap ──│ …            │
        │ time to first token│         between tokens           │

    waste              slots without a token / slots of all blocks in use
    prefix hit rate    tokens found in the cache / tokens looked up
    computed again     tokens whose keys and values were lost by preemption

Times are those of the first answer to each prompt.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .scheduling import ScheduledStep, Scheduler


class RequestTimes(NamedTuple):
    """The times of a request that has ended, in seconds: of its submission and of each token."""

    submitted: float
    tokens: list[float]

    @property
    def first_token(self) -> float:
        """Seconds from the request to its first token."""
        return self.tokens[0] - self.submitted

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [after - before for before, after in zip(self.tokens, self.tokens[1:])]


class Summary(NamedTuple):
    """Figures of all ended requests.  Times are in seconds; NaN where nothing was measured."""

    num_requests: int
    first_token_median: float
    first_token_p95: float
    gap_median: float
    gap_p95: float
    tokens_per_second: float        # of first answers, from the first request to the last token
    waste: float
    prefix_hit_rate: float
    num_preemptions: int
    tokens_computed: int
    tokens_computed_again: int
    peak_cache_bytes: int


class EngineMetrics:
    """Adds up the figures of steps, and keeps the times of requests that have ended."""

    def __init__(self, bytes_per_block: int):
        self.bytes_per_block = bytes_per_block
        self.requests: list[RequestTimes] = []
        self.slots = self.filled = self.peak_blocks = 0
        self.num_preemptions = self.tokens_computed = self.tokens_computed_again = 0
        self._computed_up_to: defaultdict[str, int] = defaultdict(int)      # of each request

    def record_step(self, step: ScheduledStep, num_blocks_used: int) -> None:
        """Count a step that is finished."""
        self.slots, self.filled = self.slots + step.slots, self.filled + step.filled
        self.peak_blocks = max(self.peak_blocks, num_blocks_used)
        self.num_preemptions += len(step.preempted)
        for request, start, num_tokens, num_sequences in step.scheduled:
            self.tokens_computed += num_tokens * num_sequences
            before, end = self._computed_up_to[request.name], start + num_tokens
            self.tokens_computed_again += num_sequences * max(0, min(before, end) - start)
            self._computed_up_to[request.name] = max(before, end)

    def record_request(self, name: str, submitted: float, token_times: list[float]) -> None:
        """Note the times of a request that has ended."""
        self.requests.append(RequestTimes(submitted, token_times))
        del self._computed_up_to[name]

    def forget(self, name: str) -> None:
        """Forget a request that was cancelled."""
        self._computed_up_to.pop(name, None)

    def summary(self, scheduler: Scheduler) -> Summary:
        """The figures so far."""
        return summary_of([(self, scheduler)])


def summary_of(engines: Sequence[tuple[EngineMetrics, Scheduler]]) -> Summary:
    """The figures of several engines together; their counts and peaks of caches are added up."""
    every, schedulers = [metrics for metrics, _ in engines], [each for _, each in engines]
    requests = [request for each in every for request in each.requests]
    tokens = [time for request in requests for time in request.tokens]
    begin = min((request.submitted for request in requests), default=0.0)
    return Summary(
        len(requests), *percentiles([request.first_token for request in requests]),
        *percentiles([gap for request in requests for gap in request.gaps]),
        ratio(len(tokens), max(tokens, default=0.0) - begin),
        1 - ratio(sum(each.filled for each in every), sum(each.slots for each in every)),
        ratio(sum(each.tokens_hit for each in schedulers),
              sum(each.tokens_queried for each in schedulers)),
        sum(each.num_preemptions for each in every),
        sum(each.tokens_computed for each in every),
        sum(each.tokens_computed_again for each in every),
        sum(each.peak_blocks * each.bytes_per_block for each in every))


def ratio(part: float, whole: float) -> float:
    """part / whole; NaN if the whole is 0."""
    return part / whole if whole else float("nan")


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """(the median, the 95th percentile); NaN without values."""
    if not values:
        return float("nan"), float("nan")
    return float(np.median(values)), float(np.percentile(values, 95))
