"""Replicas behind a router: every rank of `dp` has a whole model, each request runs on one of them.

    submit ─▶ router ─┬─▶ replica 0: engine, cache      the least loaded one: fewest tokens that are
                      ├─▶ replica 1: engine, cache      still to be computed, by prompt and
                      └─▶ replica 2: engine, cache      max_tokens

All ranks see all requests and route them alike.  After each step the ranks gather all new tokens,
four numbers for each token.  So every rank can stream every answer, and knows every load.
"""

from typing import Any

import numpy as np

from ...comm import Communicator
from ...comm.collectives import all_gather
from ..engine import Answer, Engine, Generation
from ..sampling import SamplingParams

REASONS = (None, "length", "stop")          # why an answer ended, as numbers


class RoutedGeneration:
    """A request and its answers, on whichever replica it runs; log-probabilities stay there."""

    def __init__(self, number: int, replica: int, num_left: int, num_answers: int,
                 generation: Generation | None):
        self.number, self.replica, self.num_left = number, replica, num_left
        self.answers = [Answer() for _ in range(num_answers)]
        self.generation = generation            # on its replica only

    @property
    def is_done(self) -> bool:
        """True if all answers have ended."""
        return all(answer.finish_reason for answer in self.answers)


class Router:
    """Collective.  Spreads requests over the engines of the ranks of `dp`, one on each rank."""

    def __init__(self, engine: Engine, dp: Communicator):
        self.engine, self.dp = engine, dp
        self.running: dict[int, RoutedGeneration] = {}
        self._own: dict[str, int] = {}              # this rank's requests: name → number
        self._num_submitted = 0

    @property
    def has_requests(self) -> bool:
        """True if any request is left to run, on any replica."""
        return bool(self.running)

    def loads(self) -> list[int]:
        """The tokens that each replica has still to compute, at most."""
        loads = [0] * self.dp.size
        for routed in self.running.values():
            loads[routed.replica] += routed.num_left
        return loads

    def submit(self, prompt: list[int], max_tokens: int, params: SamplingParams | None = None,
               num_answers: int = 1, **options: Any) -> RoutedGeneration:
        """As Engine.submit, on the least loaded replica; of equal ones on the first."""
        self.engine.check(prompt, max_tokens, num_answers)          # alike on all ranks
        loads = self.loads()
        replica = loads.index(min(loads))
        generation = None
        if replica == self.dp.rank:
            generation = self.engine.submit(prompt, max_tokens, params, num_answers,
                                            **options)
            self._own[generation.request.name] = self._num_submitted
        routed = RoutedGeneration(self._num_submitted, replica,
                                  len(prompt) + num_answers * max_tokens, num_answers, generation)
        self.running[routed.number] = routed
        self._num_submitted += 1
        return routed

    def step(self) -> list[tuple[RoutedGeneration, int, int]]:
        """Run a step on every replica; return all new tokens: (request, answer index, token)."""
        events = []
        for generation, answer_index, token in self.engine.step():
            reason = REASONS.index(generation.answers[answer_index].finish_reason)
            events.append((self._own[generation.request.name], answer_index, token, reason))
        own = np.array(events, np.int64).reshape(-1, 4)
        with self.dp.labelled("tokens"):
            counts = all_gather(self.dp, np.array([len(own)], np.int64), algorithm="ring")
            everywhere = all_gather(self.dp, own, counts=counts.tolist(), algorithm="ring")
        return [self._note(*(int(number) for number in event)) for event in everywhere]

    def _note(self, number: int, answer_index: int, token: int,
              reason: int) -> tuple[RoutedGeneration, int, int]:
        """Append a token to its request; forget a request that is done."""
        routed = self.running[number]
        routed.answers[answer_index].tokens.append(token)
        routed.answers[answer_index].finish_reason = REASONS[reason]
        routed.num_left -= 1
        if routed.is_done:
            del self.running[number]
        return routed, answer_index, token

    def run(self) -> None:
        """Run steps until no request is left."""
        while self.has_requests:
            self.step()


def step_bytes(num_ranks: int, num_tokens: int) -> int:
    """Bytes that all ranks together send in a step with `num_tokens` new tokens, by rings.

    The ranks' numbers of tokens, then four numbers for each token.
    """
    return 8 * (num_ranks - 1) * (num_ranks + 4 * num_tokens)
