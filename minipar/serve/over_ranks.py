"""One server on many ranks: rank 0 has HTTP and leads, the others follow its steps.

    rank 0    submit, cancel, submit … ─┐ step: send what was called since the last one; compute
                                        ▼
    rank 1 …                            call the same; compute

The engines of a mesh decide alike if they are called alike.  So at the beginning of each step they
are equal, whatever clients did meanwhile.  Rank 0 sends each other rank the length of the calls, 8
bytes, and broadcasts the calls, pickled.
"""

import io
import pickle
import time
from contextlib import suppress
from typing import Any

import numpy as np

from ..comm import Communicator
from ..comm.collectives import broadcast
from ..data import Vocabulary
from ..inference.parallel.scoring import prompt_logprobs_over_ranks
from ..inference.scheduling import Request
from ..inference.scoring import Score
from ..launcher import UsageError, end_all
from .text_model import TextEngine, TextGeneration, engines_of

LONGEST_NAP = 0.01      # seconds between two looks for a step, while no request runs


class Calls:
    """The calls of a step on their way from rank 0; the tokenizer, which all ranks have, stays."""

    def __init__(self, comm: Communicator, tokenizer: Vocabulary):
        self.comm, self.tokenizer = comm, tokenizer

    def send(self, calls: Any) -> None:
        """Send `calls` to all other ranks."""
        written = io.BytesIO()
        pickler = pickle.Pickler(written)
        pickler.persistent_id = lambda each: "tokenizer" if each is self.tokenizer else None
        pickler.dump(calls)
        content = np.frombuffer(written.getvalue(), np.uint8)
        for rank in range(1, self.comm.size):
            self.comm.send(np.array([len(content)]), rank)
        broadcast(self.comm, content, algorithm="binomial")

    def receive(self) -> Any:
        """Wait for the calls of rank 0, however long: no watchdog ends this wait."""
        length, nap = np.empty(1, np.int64), 1e-5
        coming = self.comm.irecv(length, 0)
        while not coming.test():
            time.sleep(nap)                     # leaves the core to others
            nap = min(2 * nap, LONGEST_NAP)
        content = broadcast(self.comm, np.empty(length[0], np.uint8), algorithm="binomial")
        unpickler = pickle.Unpickler(io.BytesIO(content.tobytes()))
        unpickler.persistent_load = lambda name: self.tokenizer
        return unpickler.load()


class LeadingEngine:
    """On rank 0: an engine of a mesh, whose steps the other ranks follow.  Made on all ranks."""

    def __init__(self, engine: TextEngine, comm: Communicator, tokenizer: Vocabulary):
        self.engine, self.comm, self.engines = engine, comm, engines_of(engine)
        self.messages = Calls(comm, tokenizer)
        self._calls: list[tuple] = []                   # since the last step
        self._running: dict[int, TextGeneration] = {}   # by their numbers
        self._num_submitted = 0

    @property
    def has_requests(self) -> bool:
        """True if any request is left to run, or to be cancelled on the other ranks."""
        return bool(self._calls) or self.engine.has_requests

    def check(self, prompt: list[int], max_tokens: int, num_answers: int = 1) -> Request:
        """As Engine.check."""
        return self.engine.check(prompt, max_tokens, num_answers)

    def check_prompt(self, prompt: list[int], max_tokens: int) -> None:
        """As Engine.check_prompt."""
        self.engine.check_prompt(prompt, max_tokens)

    def submit(self, *arguments: Any, **options: Any) -> Any:
        """As Engine.submit."""
        generation = self.engine.submit(*arguments, **options)
        self._calls.append(("submit", arguments, options))
        self._running[self._num_submitted] = generation
        self._num_submitted += 1
        return generation

    def cancel(self, generation: Any) -> None:
        """As Engine.cancel."""
        for number, running in self._running.items():
            if running is generation and not generation.is_done:
                self.engine.cancel(generation)
                self._calls.append(("cancel", number))

    def step(self) -> Any:
        """Run one step on all ranks."""
        return self._on_all_ranks("step")

    def score(self, prompt: list[int], count: int) -> list[Score]:
        """As `prompt_logprobs`, by all ranks."""
        return self._on_all_ranks("score", prompt, count)

    def _on_all_ranks(self, *call: Any) -> Any:
        """Let all ranks compute, after the calls since the last time.

        A ValueError comes on all of them: requests were cancelled, and the next step can run.  Any
        other error is that of one rank, for which the others would wait: it ends all.
        """
        calls, self._calls = self._calls, []
        self.messages.send([*calls, call])
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
        self.messages.send(error)

    def follow(self) -> None:
        """On the other ranks: do as rank 0 does, until its `end`."""
        while isinstance(calls := self.messages.receive(), list):
            for name, *given in calls[:-1]:
                if name == "submit":
                    self.submit(*given[0], **given[1])
                elif given[0] in self._running:
                    self.engine.cancel(self._running[given[0]])
            self._calls = []
            with suppress(ValueError):          # rank 0 has it, too, and says so
                self._compute(*calls[-1])
        if calls is not None:
            raise calls
