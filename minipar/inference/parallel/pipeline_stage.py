"""A stage of a pipeline: this rank's layers of a GPT; the last stage also draws tokens.

A stage may itself be cut over tensor-parallel ranks, tp.  Then these ranks draw together, and each
sends along its own pipeline, pp.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...autograd import no_grad
from ...backend import Array
from ...comm import Communicator
from ...compress.quantization.layers import drop_weights
from ...nn import GPT
from ...parallel.pipeline.stages import Stages
from ...parallel.tensor.packed_weights import weights_as_parameters
from ...parallel.tensor.parallelize import split_of
from ..cache import KVSizes, PagedKVCache, TokenBatch
from ..model.cached_forward import embed, head, run_blocks
from ..model_runner import Draw, NewToken, draw_tokens
from ..sampling.sampler import NOT_FINITE
from ..scheduling import SchedulerConfig
from .logprob_messages import num_numbers, pack, unpack
from .tensor_runner import draw_tokens_over_ranks


class Stage:
    """This rank's layers of a GPT; for `cuts` see `parallel.pipeline.stages.Stages`.

    `kind` is the class of the cache: PagedKVCache or QuantizedKVCache.  The model must be
    initialized; afterwards it has the parameters of this rank's layers only.  `parallelize` may
    have cut it over tp.
    """

    def __init__(self, model: GPT, pp: Communicator, cuts: Sequence[int] | None = None,
                 kind: type[PagedKVCache] = PagedKVCache):
        self.model, self.pp, self.kind = model, pp, kind
        self.like, sizes = np.empty_like(model.slabs[0].data, shape=0), KVSizes.of(model)
        with weights_as_parameters(model):
            parts = Stages(model, pp, [*range(pp.size)], cuts).parts[pp.rank]
        drop_weights(model, {module for part in parts for each in part.modules
                             for _, module in each.named_modules()})
        self.is_first, self.is_last = pp.rank == 0, pp.rank == pp.size - 1
        self.blocks = [model.h[int(part.name[2:])] for part in parts if part.is_block]
        self.sizes = sizes._replace(num_layers=len(self.blocks))
        self.context, self.vocab_size = model.config.context, model.config.vocab_size

    def make_cache(self, config: SchedulerConfig) -> PagedKVCache:
        """A cache for the keys and values of this rank's layers."""
        return self.kind(self.sizes, config.num_blocks, config.block_size, self.like,
                         num_host_blocks=config.num_blocks)

    def receive(self, batch: TokenBatch, tag: int) -> Array | None:
        """The activations (T, d) of the stage before; None on the first stage."""
        if self.is_first:
            return None
        x = np.empty((len(batch.ids), self.model.config.width), self.like.dtype, like=self.like)
        self.pp.recv(x, self.pp.rank - 1, tag)
        return x

    def run(self, x: Any, cache: PagedKVCache, batch: TokenBatch,
            last_only: bool = True) -> np.ndarray:
        """This stage's activations (T, d) from those of the stage before; the first takes None.

        The last stage returns logits (S, V) after each sequence's last token, or, if not
        `last_only`, after all tokens (T, V).
        """
        with no_grad():
            h = embed(self.model, batch) if self.is_first else x
            h = run_blocks(self.blocks, h, cache, batch)
            return head(self.model, h, batch, last_only).data if self.is_last else h

    def draw(self, logits: Array, draws: Sequence[Draw]) -> np.ndarray:
        """On the last stage: draw tokens; return the message about them, NaN if drawing failed."""
        counts = self.logprob_counts(draws)
        try:
            if split := split_of(self.model):
                found = draw_tokens_over_ranks(split.tp, logits, self.vocab_size, draws)
            else:
                found = draw_tokens(logits, draws)
        except ValueError:                  # the other stages must learn of it
            return np.full(len(draws) + num_numbers(counts), np.nan)
        logprobs = [(new.logprob, new.likeliest) for new in found
                    if new.logprob is not None and new.likeliest is not None]
        return np.concatenate([np.array([new.token for new in found], np.float64),
                               pack(logprobs, counts)])

    def logprob_counts(self, draws: Sequence[Draw]) -> list[int]:
        """The number of likeliest tokens of each draw that asks for log-probabilities."""
        return [min(draw.num_logprobs, self.vocab_size) for draw in draws
                if draw.num_logprobs is not None]

    def tokens_of(self, numbers: np.ndarray, draws: Sequence[Draw]) -> list[NewToken]:
        """The tokens in a message of `draw`.  Raises ValueError if drawing failed."""
        if np.isnan(numbers[:len(draws)]).any():
            raise ValueError(NOT_FINITE)
        logprobs = iter(unpack(numbers[len(draws):], self.logprob_counts(draws)))
        return [NewToken(int(number), *(() if draw.num_logprobs is None else next(logprobs)))
                for number, draw in zip(numbers, draws)]
