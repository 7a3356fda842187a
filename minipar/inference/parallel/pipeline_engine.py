"""Pipeline-parallel inference: each rank has some layers; p groups of requests keep p ranks busy.

    stage 0   a b a b a b              a, b: a step of group a or b
    stage 1     a b a b a b            a's next step begins when stage 1 has drawn a's tokens

A step of a group needs the tokens of the group's last step.  So with a single group, one stage
would work and the others wait; with p groups every stage has work.  Each group has its own engine
and blocks.  All ranks run all engines on equal requests, so no rank sends its schedule.  A step
sends

    T·d numbers from each stage to the next           the activations of T tokens
    n numbers from the last stage to each other one   the n tokens that were drawn

Huang et al. 2019 (GPipe); Pope et al. 2022.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...autograd import no_grad
from ...comm import Communicator
from ...comm import Request as Message
from ...compress.quantization.layers import drop_weights
from ...nn import GPT
from ...parallel.packed_weights import weights_as_parameters
from ...parallel.pipeline.stages import Staged
from ..cache import KVSizes, PagedKVCache, TokenBatch
from ..engine import Engine, Generation, TokenEvent
from ..model.cached_forward import check_context, embed, head, run_blocks
from ..model_runner import NewToken, StepWork, draw_tokens
from ..scheduling import SchedulerConfig


class Stage:
    """This rank's layers of a GPT; for `cuts` see `parallel.pipeline.stages.Staged`.

    `kind` of cache: PagedKVCache, or QuantizedKVCache.  The model must be initialized; afterwards
    it has the parameters of this rank's layers only.
    """

    def __init__(self, model: GPT, pp: Communicator, cuts: Sequence[int] | None = None,
                 kind: type[PagedKVCache] = PagedKVCache):
        self.model, self.pp, self.kind = model, pp, kind
        self.like, sizes = np.empty_like(model.slabs[0].data, shape=0), KVSizes.of(model)
        with weights_as_parameters(model):
            parts = Staged(model, pp, [*range(pp.size)], cuts).stages[pp.rank]
        drop_weights(model, {module for part in parts for each in part.modules
                             for _, module in each.named_modules()})
        self.is_first, self.is_last = pp.rank == 0, pp.rank == pp.size - 1
        self.blocks = [model.h[int(part.name[2:])] for part in parts if part.is_block]
        self.sizes = sizes._replace(num_layers=len(self.blocks))
        self.context, self.vocab_size = model.config.context, model.config.vocab_size

    def make_cache(self, config: SchedulerConfig) -> PagedKVCache:
        """The keys and values of this rank's layers."""
        return self.kind(self.sizes, config.num_blocks, config.block_size, self.like,
                         num_host_blocks=config.num_blocks)

    def run(self, x: Any, cache: PagedKVCache, batch: TokenBatch) -> np.ndarray:
        """Activations (T, d) of the stage before → this stage's; of the last one logits (S, V).

        The first stage takes None.
        """
        with no_grad():
            h = embed(self.model, batch) if self.is_first else x
            h = run_blocks(self.blocks, h, cache, batch)
            return head(self.model, h, batch).data if self.is_last else h


class RequestGroup:
    """The requests of one group: an engine, this stage's part of its cache, a step under way."""

    def __init__(self, stage: Stage, config: SchedulerConfig, number: int):
        self.stage, self.number = stage, number
        self.context, self.vocab_size = stage.context, stage.vocab_size
        self.bytes_per_block = (config.block_size
                                * stage.sizes.bytes_per_token(stage.like.dtype.itemsize))
        self.cache = stage.make_cache(config)
        self.engine = Engine(self, config)
        self.work: StepWork | None = None               # under way
        self.tokens: list[NewToken] = []            # on the last stage: drawn by it
        self.sends: list[Message] = []

    def run(self, work: StepWork) -> list[NewToken]:
        """Refused: a stage draws no tokens by itself."""
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
        x = None
        if not stage.is_first:
            x = np.empty((len(batch.ids), stage.model.config.width), stage.like.dtype,
                         like=stage.like)
            pp.recv(x, pp.rank - 1, tag=self.number)
        out = stage.run(x, self.cache, batch)
        for message in self.sends:                  # of the step before: received long ago
            message.wait()
        if stage.is_last:
            self.tokens = draw_tokens(out, work.draws)
            numbers = np.array([new.token for new in self.tokens], np.int64)
            self.sends = [pp.isend(numbers, rank, tag=self.number) for rank in range(pp.size - 1)
                          if len(numbers)]
        else:
            self.sends = [pp.isend(np.ascontiguousarray(out), pp.rank + 1, tag=self.number)]

    def end(self) -> list[TokenEvent]:
        """Wait for the tokens of the step under way, if there is one, and append them."""
        if self.work is None:
            return []
        work, self.work = self.work, None
        tokens = self.tokens
        if not self.stage.is_last:
            numbers = np.empty(len(work.draws), np.int64)
            if len(numbers):
                self.stage.pp.recv(numbers, self.stage.pp.size - 1, tag=self.number)
            tokens = [NewToken(int(number)) for number in numbers]
        return self.engine.end_step(tokens)


class PipelineEngine:
    """Collective.  Runs requests in `num_groups` groups, by default as many as stages.

    `config` holds for each group.  Log-probabilities are known on the last rank only.
    """

    def __init__(self, model: GPT, pp: Communicator, config: SchedulerConfig,
                 num_groups: int | None = None, cuts: Sequence[int] | None = None,
                 kind: type[PagedKVCache] = PagedKVCache):
        stage = Stage(model, pp, cuts, kind)
        self.groups = [RequestGroup(stage, config, i) for i in range(num_groups or pp.size)]
        self._num_submitted = 0

    @property
    def engines(self) -> list[Engine]:
        """The groups' engines."""
        return [group.engine for group in self.groups]

    @property
    def has_requests(self) -> bool:
        """True if any request is left to run."""
        return any(engine.has_requests for engine in self.engines)

    def submit(self, *arguments: Any, **options: Any) -> Generation:
        """As Engine.submit, on the next group in turn."""
        group = self.groups[self._num_submitted % len(self.groups)]
        generation = group.engine.submit(*arguments, **options)
        self._num_submitted += 1
        return generation

    def step(self) -> list[TokenEvent]:
        """For each group: take the tokens of its last step, begin its next step."""
        events = []
        for group in self.groups:
            events += group.end()
            group.begin()
        if not self.has_requests:
            for group in self.groups:
                for message in group.sends:
                    message.wait()
        return events

    def run(self) -> None:
        """Run steps until no request is left."""
        while self.has_requests:
            self.step()


def step_bytes(num_ranks: int, width: int, num_tokens: int, num_draws: int, itemsize: int) -> int:
    """Bytes that all ranks together send in a step: activations on, tokens to the others."""
    return (num_ranks - 1) * (num_tokens * width * itemsize + 8 * num_draws)
