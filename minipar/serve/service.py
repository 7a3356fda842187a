"""One engine for many clients: requests come and go between steps.

    client A ─ submit ─┐                      ┌─▶ A: new tokens
    client B ─ submit ─┼─▶ lock ─▶ engine.step┼─▶ B: new tokens
    client C ─ cancel ─┘      (in a thread)   └─▶ C: nothing more

The engine is not for several threads at once, so submit, cancel and step each take a lock.  A step
runs in a thread, so that the server can answer other clients meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from ..inference import SamplingParams
from ..inference.engine import Generation, IsStop
from ..inference.parallel.logprob_messages import Logprobs
from ..inference.parallel.scoring import prompt_logprobs
from ..nn import GPT
from .over_ranks import LeadingEngine
from .text_model import TextEngine


class Draining(RuntimeError):
    """The server is shutting down and takes no new requests."""


class Service:
    """Runs the steps of an engine while it has requests, from `start` to `drain`."""

    def __init__(self, engine: TextEngine):
        self.engine = engine
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()            # set while there is a request
        self._news = asyncio.Condition()        # notified when a step has ended
        self._num_steps = 0
        self._is_draining = False
        self._failure: BaseException | None = None
        self._task: asyncio.Task | None = None

    def start(self) -> None:
        """Begin to run steps, in the running event loop."""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            async with self._lock:
                try:
                    await asyncio.to_thread(self.engine.step)
                except Exception as error:      # the engine has cancelled all requests
                    self._failure = error
                self._num_steps += 1
                if not self.engine.has_requests:
                    self._wake.clear()
            async with self._news:
                self._news.notify_all()

    async def submit(self, prompts: Sequence[list[int]], max_tokens: int,
                     params: Sequence[SamplingParams], num_answers: int, is_stop: IsStop | None,
                     num_logprobs: int | None) -> list[Generation]:
        """Add requests for all prompts, or for none.  With max_tokens = 0, only check the prompts.

        Raises ValueError if a request can never run, and Draining during shutdown.
        """
        if self._is_draining:
            raise Draining("the server is shutting down: ask another one, or later")
        async with self._lock:
            first = self.engine.engines[0]          # all have the same limits
            for prompt in prompts:
                if max_tokens:
                    first.check(prompt, max_tokens, num_answers)
                else:
                    first.check_prompt(prompt, 0)
            if not max_tokens:
                return []
            found = [self.engine.submit(prompt, max_tokens, each, num_answers, (), is_stop,
                                        num_logprobs) for prompt, each in zip(prompts, params)]
        self._wake.set()
        return found

    async def score(self, model: GPT, prompt: list[int], count: int) -> list[Logprobs]:
        """Call `prompt_logprobs` between two steps.  Raises RuntimeError if the model fails."""
        compute = self.engine.score if isinstance(self.engine, LeadingEngine) \
            else partial(prompt_logprobs, model)
        async with self._lock:
            try:
                return await asyncio.to_thread(compute, prompt, count)
            except Exception as error:
                raise RuntimeError(f"the model has failed: {error}") from error

    @asynccontextmanager
    async def cancelling(self, generations: Sequence[Generation]) -> AsyncIterator[None]:
        """When the context ends, cancel the requests that still run: their client has left."""
        try:
            yield
        finally:
            await asyncio.shield(self._cancel(generations))

    async def _cancel(self, generations: Sequence[Generation]) -> None:
        async with self._lock:
            for generation in generations:
                self.engine.cancel(generation)
        self._wake.set()                        # so that other ranks forget them, too
        async with self._news:
            self._news.notify_all()

    async def steps(self, generations: Sequence[Generation]) -> AsyncIterator[None]:
        """Yield now and whenever steps have run; for the last time when all generations are done.

        Raises RuntimeError if the model has failed.
        """
        while True:
            async with self._lock:              # no step is running
                seen = self._num_steps
                is_over = all(generation.is_done for generation in generations)
            if any(generation.was_cancelled for generation in generations):
                raise RuntimeError(f"the model has failed: {self._failure}")
            yield
            if is_over:
                return
            async with self._news:
                await self._news.wait_for(lambda seen=seen: self._num_steps > seen)

    async def drain(self) -> None:
        """Take no new requests, wait for those that run, and end."""
        self._is_draining = True
        async with self._news:
            await self._news.wait_for(lambda: not self.engine.has_requests)
        if self._task is not None:
            self._task.cancel()
