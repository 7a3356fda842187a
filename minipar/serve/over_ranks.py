"""One server on many ranks: rank 0 answers HTTP and leads, the others follow its steps.

    rank 0    submit, cancel, submit … ─┐ step: send what was called since the last one; compute
                                        ▼
    rank 1 …                            call the same; compute

The engines of a mesh decide alike if they are called alike.  So at the beginning of each step they
are in the same state, whatever clients did meanwhile.  Rank 0 sends every other rank the length of
the calls, 8 bytes, and broadcasts the calls as JSON.
"""

import json
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from ..comm import Communicator
from ..comm.collectives import broadcast
from ..data import Vocabulary
from ..inference import SamplingParams
from ..inference.parallel.logprob_messages import Logprobs
from ..inference.parallel.scoring import prompt_logprobs_over_ranks
from ..launcher import UsageError, end_all
from .detokenizer import Detokenizer
from .text_model import TextEngine, TextGeneration

LONGEST_NAP = 0.01      # seconds between two looks for a step, while no request runs


def send(comm: Communicator, calls: list) -> None:
    """Collective with `receive`.  Send the calls to all other ranks."""
    content = np.frombuffer(json.dumps(calls).encode(), np.uint8)
    for rank in range(1, comm.size):
        comm.send(np.array([len(content)], np.int64), rank)
    broadcast(comm, content, algorithm="binomial")


def receive(comm: Communicator) -> list:
    """Wait for the calls of rank 0, and return them.  No watchdog ends this wait."""
    length, nap = np.empty(1, np.int64), 1e-5
    coming = comm.irecv(length, 0)
    while not coming.test():
        time.sleep(nap)                     # leaves the core to others
        nap = min(2 * nap, LONGEST_NAP)
    content = broadcast(comm, np.empty(length[0], np.uint8), algorithm="binomial")
    return json.loads(content.tobytes())


class LeadingEngine:
    """An engine of a mesh, made on all ranks.  Rank 0 calls it; the others run `follow`."""

    def __init__(self, engine: TextEngine, comm: Communicator, tokenizer: Vocabulary):
        self.engine, self.comm, self.engines = engine, comm, engine.engines
        self.tokenizer = tokenizer
        self._calls: list[list] = []                    # since the last step
        self._running: dict[int, TextGeneration] = {}   # by their numbers
        self._num_submitted = 0

    @property
    def has_requests(self) -> bool:
        """True if a request is left to run, or there is a call that other ranks have not made."""
        return bool(self._calls) or self.engine.has_requests

    def submit(self, prompt: Collection[int], max_tokens: int,
               params: SamplingParams | None = None, num_answers: int = 1,
               stop_tokens: Collection[int] = (), is_stop: Detokenizer | None = None,
               num_logprobs: int | None = None) -> Any:
        """Submit as Engine.submit does; other ranks make `is_stop` from its stops and ends."""
        prompt = [int(token) for token in prompt]
        generation = self.engine.submit(prompt, max_tokens, params, num_answers, stop_tokens,
                                        is_stop, num_logprobs)
        self._calls.append(["submit", prompt, max_tokens, asdict(params or SamplingParams()),
                            num_answers, [*stop_tokens],
                            is_stop and [is_stop.stops, is_stop.ends], num_logprobs])
        self._running[self._num_submitted] = generation
        self._num_submitted += 1
        return generation

    def cancel(self, generation: Any) -> None:
        """Cancel a request as Engine.cancel does."""
        for number, running in self._running.items():
            if running is generation and not generation.is_done:
                self.engine.cancel(generation)
                self._calls.append(["cancel", number])

    def step(self) -> Any:
        """Run one step on all ranks."""
        return self._on_all_ranks("step")

    def score(self, prompt: list[int], count: int) -> list[Logprobs]:
        """The result of `prompt_logprobs`, computed by all ranks."""
        return self._on_all_ranks("score", prompt, count)

    def _on_all_ranks(self, *call: Any) -> Any:
        """Send the calls since the last time to all ranks, and let all ranks compute `call`.

        All ranks raise a ValueError alike: requests were cancelled, and the next step can run.  Any
        other error may be on one rank alone, and the others would wait for it: it ends all ranks.
        """
        calls, self._calls = self._calls, []
        send(self.comm, [*calls, call])
        try:
            return self._compute(*call)
        except ValueError:
            raise
        except BaseException as error:
            end_all(self.comm, error)
            raise

    def _compute(self, name: str, *given: Any) -> Any:
        try:
            if name == "score":
                return prompt_logprobs_over_ranks(self.engine, *given)
            return self.engine.step()
        finally:
            self._running = {number: generation for number, generation in self._running.items()
                             if not generation.is_done}

    def end(self, error: UsageError | None = None) -> None:
        """Let the other ranks return from `follow`, or raise `error` there."""
        send(self.comm, [["end", error and [str(error), error.status]]])

    def follow(self) -> None:
        """On the other ranks: do as rank 0 does, until its `end`."""
        while (calls := receive(self.comm))[-1][0] != "end":
            for name, *given in calls[:-1]:
                if name == "submit":
                    prompt, max_tokens, params, num_answers, stop_tokens, stop, num_logprobs = given
                    self.submit(prompt, max_tokens, SamplingParams(**params), num_answers,
                                stop_tokens, stop and Detokenizer(self.tokenizer, *stop),
                                num_logprobs)
                elif given[0] in self._running:
                    self.engine.cancel(self._running[given[0]])
            self._calls = []
            with suppress(ValueError):          # rank 0 has the error as well, and says so
                self._compute(*calls[-1])
        if calls[-1][1] is not None:
            raise UsageError(*calls[-1][1])
