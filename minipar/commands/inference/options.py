"""Options of `generate` and `serve`: how tokens are drawn, what the engine may use."""

import os
from dataclasses import dataclass

from ...inference import SamplingParams, SchedulerConfig
from ...inference.cache import KVSizes
from ...inference.scheduling import Preemption
from ...inference.scheduling.scripted_requests import MOST
from ...launcher import UsageError
from ...serve.text_model import TextModel, check_axes, default_blocks
from ...train.option import CommandOptions, option
from ...train.setup.mesh import ranks_for, sizes_of
from ...units import in_bytes

SAMPLING, CACHE = "sampling, in the order in which it is applied", "cache and scheduler"


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(CommandOptions):
    """The options of SamplingParams."""

    repetition_penalty: float = option(1.0, "divide positive logits of tokens that occurred by "
                                       "this, multiply negative ones", group=SAMPLING)
    presence_penalty: float = option(0.0, "subtract from the logits of tokens of the answer",
                                     group=SAMPLING)
    frequency_penalty: float = option(0.0, "subtract for each time that a token is in the answer",
                                      group=SAMPLING)
    temperature: float = option(1.0, "divide the logits by this; 0: the likeliest token",
                                group=SAMPLING)
    min_p: float = option(0.0, "keep tokens of at least this part of the largest probability",
                          group=SAMPLING)
    top_k: int = option(0, "keep the K likeliest tokens", default_text="all", group=SAMPLING)
    top_p: float = option(1.0, "keep the likeliest tokens that reach this probability",
                          group=SAMPLING)
    seed: int = option(0, "of the draws: the same seed, the same text", group=SAMPLING)

    @property
    def sampling(self) -> SamplingParams:
        """The SamplingParams that the options say.  Raises UsageError."""
        try:
            return SamplingParams(**{name: getattr(self, name)
                                     for name in SamplingParams.__dataclass_fields__})
        except ValueError as error:
            raise UsageError(f"--{str(error).replace('_', '-', 1)}") from error


@dataclass(frozen=True, kw_only=True)
class SchedulingOptions(CommandOptions):
    """The options of SchedulerConfig."""

    block_size: int = option(16, "tokens in a block of the cache", least=1, most=MOST, group=CACHE)
    blocks: int | None = option(None, "blocks of the cache", least=1, most=MOST, group=CACHE,
                                default_text="enough for 8 sequences of the whole context")
    cache: str = option("full", "keys and values as the model computes them, or as 8-bit integers",
                        choices="inference.cache:CACHES", group=CACHE)
    token_budget: int | None = option(None, "tokens that a step computes at most", least=1,
                                      default_text="no limit", group=CACHE)
    max_requests: int | None = option(None, "requests that run at the same time", least=1,
                                      default_text="no limit", group=CACHE)
    prefix_caching: bool = option(False, "keep the blocks of prompts, for prompts that begin alike",
                                  group=CACHE)
    preempt_by: str = option(SchedulerConfig.preempt_by.value, "when blocks run short: compute "
                             "again, or move to the host", choices=tuple(map(str, Preemption)),
                             group=CACHE)

    def scheduling(self, text: TextModel) -> SchedulerConfig:
        """The SchedulerConfig that the options say.

        Raises UsageError for a cache that this machine has no room for.
        """
        blocks = self.blocks or default_blocks(text.model, self.block_size, num_sequences=8)
        itemsize = 1 if self.cache == "int8" else text.model.ln_f.weight.data.itemsize
        # twice: the host keeps as many blocks again, for requests that are swapped out
        needed = 2 * blocks * self.block_size * KVSizes.of(text.model).bytes_per_token(itemsize)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > memory:
            raise UsageError(f"--blocks {blocks} of --block-size {self.block_size} take "
                             f"{in_bytes(needed)}, and this machine has {in_bytes(memory)}: choose "
                             "less")
        return SchedulerConfig(blocks, self.block_size, self.token_budget, self.max_requests,
                               self.prefix_caching, Preemption(self.preempt_by))


def sizes_for(mesh: str | None, ranks: int | None) -> dict[str, int]:
    """The sizes of the axes of --mesh; without it, a replica on every rank.  Raises UsageError."""
    if mesh is not None:
        check_axes(sizes_of(mesh))
    num_ranks = ranks_for(mesh, ranks)
    return {"dp": num_ranks} if mesh is None else sizes_of(mesh)
