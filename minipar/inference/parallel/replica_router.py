"""Replicas behind a router: each coordinate of `dp` has a whole model, and a request runs on one.

    submit ─▶ router ─┬─▶ replica 0: engine, cache      to the replica with the lowest load: tokens
                      ├─▶ replica 1: engine, cache      of prompts and max_tokens of answers, less
                      └─▶ replica 2: engine, cache      the tokens that have come

All ranks see all requests and route them alike.  After each step the ranks gather all new tokens
and the log-probabilities that were asked for.  A token comes as four numbers: the request, the
answer, the token itself, and the reason if the answer ends with it.  So every rank can stream every
answer, and knows every load.  A replica may itself be cut over tp and pp.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import accumulate

import numpy as np

from ...comm import Communicator
from ...comm.collectives import all_gather
from ..engine import Answer, Engine, Generation, IsStop
from ..model_runner import NewToken
from ..sampling import SamplingParams
from .logprob_messages import Logprobs, num_numbers, pack, unpack
from .pipeline_engine import PipelineEngine

REASONS = (None, "length", "stop", "failed")        # why an answer ended, as numbers


class RoutedGeneration:
    """A request and its answers, on whichever replica it runs."""

    def __init__(self, number: int, replica: int, num_left: int, num_answers: int,
                 num_logprobs: int | None, generation: Generation | None):
        self.number, self.replica, self.num_left = number, replica, num_left
        self.answers = [Answer() for _ in range(num_answers)]
        self.num_logprobs = num_logprobs
        self.generation = generation            # on its replica only
        self.was_cancelled = False

    @property
    def is_done(self) -> bool:
        """True if all answers have ended, or the request was cancelled."""
        return self.was_cancelled or all(answer.finish_reason for answer in self.answers)

    def news(self) -> list[tuple[int, int, int, int]]:
        """On its replica, (number, answer index, token, reason) of each new token; elsewhere []."""
        if self.generation is None:
            return []
        if self.generation.was_cancelled:           # the model has failed
            return [(self.number, 0, 0, REASONS.index("failed"))]
        return [(self.number, i, token, REASONS.index(
                    answer.finish_reason if place == len(answer.tokens) - 1 else None))
                for i, (answer, noted) in enumerate(zip(self.generation.answers, self.answers))
                for place, token in enumerate(answer.tokens) if place >= len(noted.tokens)]

    def logprobs_of(self, answer_index: int) -> Logprobs:
        """On its replica: the log-probabilities of an answer's newest token."""
        assert self.generation is not None
        answer = self.generation.answers[answer_index]
        return answer.logprobs[-1], answer.likeliest[-1]


class ReplicaRouter:
    """Collective.  Spreads requests over the engines of the ranks of `dp`, one on each rank."""

    def __init__(self, engine: Engine | PipelineEngine, dp: Communicator):
        self.engine, self.dp, self.engines = engine, dp, engine.engines
        self.running: dict[int, RoutedGeneration] = {}
        self._num_submitted = 0

    @property
    def has_requests(self) -> bool:
        """True if any request is left to run, on any replica."""
        return bool(self.running)

    def loads(self) -> list[int]:
        """For each replica, the most tokens that its requests still need."""
        loads = [0] * self.dp.size
        for routed in self.running.values():
            loads[routed.replica] += routed.num_left
        return loads

    def submit(self, prompt: list[int], max_tokens: int, params: SamplingParams | None = None,
               num_answers: int = 1, stop_tokens: Collection[int] = (),
               is_stop: IsStop | None = None,
               num_logprobs: int | None = None) -> RoutedGeneration:
        """Submit as Engine.submit does, to the first of the replicas with the lowest load."""
        self.engines[0].check(prompt, max_tokens, num_answers)      # alike on all ranks
        loads = self.loads()
        replica = loads.index(min(loads))
        generation = None
        if replica == self.dp.rank:
            generation = self.engine.submit(prompt, max_tokens, params, num_answers, stop_tokens,
                                            is_stop, num_logprobs)
        routed = RoutedGeneration(self._num_submitted, replica,
                                  len(prompt) + num_answers * max_tokens, num_answers,
                                  num_logprobs, generation)
        self.running[routed.number] = routed
        self._num_submitted += 1
        return routed

    def cancel(self, routed: RoutedGeneration) -> None:
        """Forget a request on all ranks."""
        if not routed.is_done:
            routed.was_cancelled = True
            del self.running[routed.number]
            if routed.generation is not None:
                self.engine.cancel(routed.generation)

    def step(self) -> None:
        """Run a step on every replica; append all new tokens to their answers.

        If the model of a replica fails, its requests are cancelled, and all ranks raise ValueError.
        """
        with suppress(ValueError):              # its requests are cancelled: all ranks learn of it
            self.engine.step()
        events = [event for routed in self.running.values() for event in routed.news()]
        own = np.array(events, np.int64).reshape(-1, 4)
        with self.dp.labelled("tokens"):
            counts = all_gather(self.dp, np.array([len(own)], np.int64), algorithm="ring").tolist()
            everywhere = all_gather(self.dp, own, counts=counts, algorithm="ring").tolist()
        logprobs = iter(self._gather_logprobs(everywhere, counts))
        noted = [self._note(event, logprobs) for event in everywhere]
        if failed := {routed.replica for routed in noted if routed.was_cancelled}:
            raise ValueError(f"the model of replica {min(failed)} failed, and its requests are "
                             "cancelled: check its weights")

    def _gather_logprobs(self, events: list[list[int]], counts: list[int]) -> list[Logprobs]:
        """The log-probabilities of those tokens whose requests ask for them, in order."""
        most, starts = self.engines[0].runner.vocab_size, accumulate(counts, initial=0)
        asked = [[(routed, answer_index) for number, answer_index, _, reason in part
                  if (routed := self.running[number]).num_logprobs is not None
                  and REASONS[reason] != "failed"]
                 for part in (events[start:start + count] for start, count in zip(starts, counts))]
        sizes = [[min(routed.num_logprobs or 0, most) for routed, _ in part] for part in asked]
        if not any(sizes):
            return []
        rank = self.dp.rank
        own = pack([routed.logprobs_of(i) for routed, i in asked[rank]], sizes[rank])
        with self.dp.labelled("tokens"):
            everywhere = all_gather(self.dp, own, counts=[num_numbers(part) for part in sizes],
                                    algorithm="ring")
        return unpack(everywhere, [size for part in sizes for size in part])

    def _note(self, event: list[int], logprobs: Iterator[Logprobs]) -> RoutedGeneration:
        """Append a token to its request, and return the request; forget it once it is done."""
        number, answer_index, token, reason = event
        routed = self.running[number]
        routed.was_cancelled = REASONS[reason] == "failed"
        if not routed.was_cancelled:
            answer = routed.answers[answer_index]
            answer.append(NewToken(token, *(() if routed.num_logprobs is None else next(logprobs))))
            answer.finish_reason = REASONS[reason]
            routed.num_left -= 1
        if routed.is_done:
            del self.running[number]
        return routed

    def run(self) -> None:
        """Run steps until no request is left."""
        while self.has_requests:
            self.step()


def step_bytes(num_ranks: int, num_tokens: int) -> int:
    """Bytes that all ranks together send in a step with `num_tokens` new tokens, by rings.

    Each rank sends how many tokens it has, then four numbers for each of them.  Log-probabilities
    are not counted.
    """
    return 8 * (num_ranks - 1) * (num_ranks + 4 * num_tokens)
