"""Pipeline-parallel inference: each rank has some layers; p groups of requests keep p ranks busy.

    stage 0   a b a b a b              a, b: a step of group a or b
    stage 1     a b a b a b            a's next step begins when stage 1 has drawn a's tokens

A group's step needs the tokens of its step before.  So with a single group, one stage would work
while the others wait; with p groups every stage has work.  Each group has its own engine
and blocks.  All ranks run all engines on equal requests, so no rank sends its schedule.  A step
sends

    T·d numbers from each stage to the next           the activations of T tokens
    n numbers from the last stage to every other      the n tokens that were drawn, and their
                                                      log-probabilities, if a request asks for them

Huang et al. 2019 (GPipe); Pope et al. 2022.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...comm import Communicator
from ...comm import Request as Message
from ...nn import GPT
from ..cache import PagedKVCache, TokenBatch
from ..engine import Engine, Generation
from ..model.cached_forward import check_context
from ..model_runner import Draw, NewToken, StepWork
from ..scheduling import SchedulerConfig
from .logprob_messages import num_numbers
from .pipeline_stage import Stage


class RequestGroup:
    """The requests of one group: their engine, this stage's part of the cache, a step under way."""

    def __init__(self, stage: Stage, config: SchedulerConfig, number: int):
        self.stage, self.number = stage, number
        self.context, self.vocab_size = stage.context, stage.vocab_size
        self.bytes_per_block = (config.block_size
                                * stage.sizes.bytes_per_token(stage.like.dtype.itemsize))
        self.cache = stage.make_cache(config)
        self.engine = Engine(self, config)
        self.work: StepWork | None = None       # under way
        self.drawn = np.empty(0)                # on the last stage: the message about drawn tokens
        self.sends: list[Message] = []
        self.cancelled: list[Generation] = []   # to be cancelled when the step under way has ended

    def run(self, work: StepWork) -> list[NewToken]:
        """Raise TypeError: a stage draws no tokens by itself."""
        raise TypeError("a stage runs in a PipelineEngine: call its step()")

    def begin(self) -> None:
        """Schedule a step, and compute this stage's part of it."""
        if not self.engine.has_requests:
            return
        pp, stage = self.stage.pp, self.stage
        self.work = work = self.engine.begin_step()
        batch = TokenBatch(work.inputs, self.cache.block_size, self.cache.data)
        check_context(stage.model, batch)
        self.cache.apply(work.swapped_out, work.swapped_in, work.copied)
        out = stage.run(stage.receive(batch, self.number), self.cache, batch)
        for message in self.sends:                  # those of the step before, received long ago
            message.wait()
        if stage.is_last:
            self.drawn = stage.draw(out, work.draws)
            self.sends = [pp.isend(self.drawn, rank, tag=self.number) for rank in range(pp.size - 1)
                          if len(self.drawn)]
        else:
            self.sends = [pp.isend(np.ascontiguousarray(out), pp.rank + 1, tag=self.number)]

    def end(self) -> None:
        """Wait for the tokens of the step under way, if there is one, and append them.

        If no tokens could be drawn, cancel the group's requests and raise ValueError, on all
        stages.
        """
        if self.work is not None:
            work, self.work = self.work, None
            try:
                self.engine.end_step(self._receive(work.draws))
            except ValueError:
                self.engine.cancel_all()
                self.engine.scheduler.forget_cached()
                raise
        while self.cancelled:
            self.engine.cancel(self.cancelled.pop())

    def _receive(self, draws: Sequence[Draw]) -> list[NewToken]:
        stage, numbers = self.stage, self.drawn
        if not stage.is_last:
            numbers = np.empty(len(draws) + num_numbers(stage.logprob_counts(draws)))
            if len(numbers):
                stage.pp.recv(numbers, stage.pp.size - 1, tag=self.number)
        return stage.tokens_of(numbers, draws)

    def cancel(self, generation: Generation) -> None:
        """Forget a request: now, or at the end of the step under way."""
        if self.work is None:
            self.engine.cancel(generation)
        else:
            self.cancelled.append(generation)


class PipelineEngine:
    """Collective.  Runs requests in `num_groups` groups, by default as many as stages.

    Each group has a scheduler and blocks of its own, with the sizes and rules of `config`.
    """

    def __init__(self, model: GPT, pp: Communicator, config: SchedulerConfig,
                 num_groups: int | None = None, cuts: Sequence[int] | None = None,
                 kind: type[PagedKVCache] = PagedKVCache):
        stage = Stage(model, pp, cuts, kind)
        self.groups = [RequestGroup(stage, config, i) for i in range(num_groups or pp.size)]
        self.engines = [group.engine for group in self.groups]
        self._num_submitted = 0

    @property
    def has_requests(self) -> bool:
        """True if any request is left to run."""
        return any(engine.has_requests for engine in self.engines)

    def submit(self, *arguments: Any, **options: Any) -> Generation:
        """Submit as Engine.submit does, to the next group in turn."""
        group = self.groups[self._num_submitted % len(self.groups)]
        generation = group.engine.submit(*arguments, **options)
        self._num_submitted += 1
        return generation

    def cancel(self, generation: Generation) -> None:
        """Forget a request; its blocks are free when the step of its group has ended."""
        for group in self.groups:
            if group.engine.generations.get(generation.request.name) is generation:
                group.cancel(generation)

    def step(self) -> None:
        """For each group: take the tokens of its last step, begin its next step.

        If the model fails, the requests of the group are cancelled on all stages, which all raise
        ValueError.
        """
        failure = None
        for group in self.groups:
            try:
                group.end()
            except ValueError as error:
                failure = error
            group.begin()
        if not self.has_requests:
            for group in self.groups:
                for message in group.sends:
                    message.wait()
        if failure is not None:
            raise failure

    def run(self) -> None:
        """Run steps until no request is left."""
        while self.has_requests:
            self.step()


def step_bytes(num_ranks: int, width: int, num_tokens: int, num_draws: int, itemsize: int) -> int:
    """Bytes that all ranks together send in a step, without log-probabilities.

    Each stage but the last sends activations on; the last one sends tokens to the others.
    """
    return (num_ranks - 1) * (num_tokens * width * itemsize + 8 * num_draws)
