"""Make a GPT context-parallel: every rank has some tokens of each sequence, and all weights.

    model = parallelize_context(GPT(config), ContextSplit(mesh["cp"])).initialize(seed=0)

    ids (b, t) ─▶ cut ─▶ embed ─▶ norm ─▶ attention ─▶ mlp ─▶ … ─▶ loss of this rank's targets
                  (b, t/p)               └ the only messages

The model is given whole sequences on every rank.  It keeps its tokens of them, with their
positions, and their targets: these were shifted by one before, so a piece's last token has its
target.  The loss is this rank's share.  The ranks' gradients add up, as those of ranks that have
other samples do.
"""

from itertools import count
from typing import Any

import numpy as np

from ...autograd import Tensor
from ...backend import Array, asarray_like
from ...nn import GPT, MLP, Dropout, Module, MoE
from ...nn.gpt import Attention, too_long_error
from ..errors import experts_of_whole_sequences_error
from ..tensor.layers import retype
from ..tensor.parallelize import PartialDropout, TensorParallelGPT
from ..tensor.sequence import SequenceSplit
from .attention import context_attention
from .layout import ContextSplit, GatherTokens, TokenLayout, cut_tokens, sequences_of
from .ulysses import columns_of_qkv, heads_to_tokens, tokens_to_heads


class ContextAttentionLayer(Attention):
    """The attention of a GPT whose tokens are spread over ranks."""

    context_split: ContextSplit

    def apply_rotary(self, qkv: Tensor, positions: Array | None = None) -> Tensor:
        """Queries and keys turned by their positions in the whole sequence."""
        if positions is None:
            positions = self.context_split.layout.mine[None]
        return super().apply_rotary(qkv, positions)

    def attend(self, qkv: Tensor) -> Tensor:
        """Weighted means of the values of all tokens, for this rank's (b, t, h n)."""
        split, layout = self.context_split, self.context_split.layout
        neighbours, ring, u = split.neighbours, split.ring, split.neighbours.size
        heads, kv_heads, fmt = self.num_heads, self.num_kv_heads, split.message_format
        keep = self.attn_dropout.mask(qkv.data, (heads, layout.length, layout.length))
        if u > 1:
            width = qkv.shape[-1] // (heads + 2 * kv_heads)
            columns = columns_of_qkv(heads, kv_heads, width, u)
            qkv = tokens_to_heads(qkv, neighbours, columns, layout.neighbours, fmt)
            heads, kv_heads = heads // u, max(1, kv_heads // u)
        if keep is not None:
            mine = asarray_like(layout.blocks[ring.rank], keep)
            keep = keep[:, neighbours.rank * heads:(neighbours.rank + 1) * heads, mine]
        out = context_attention(qkv, ring, layout.blocks, heads, kv_heads, split.method,
                                keep=keep, rate=self.attn_dropout.rate, fmt=fmt)
        return heads_to_tokens(out, neighbours, layout.neighbours, fmt) if u > 1 else out


class ContextDropout(Dropout):
    """Dropout of a value that has some tokens: their part of the whole sequences' mask."""

    context_split: ContextSplit

    def mask(self, x: Array, shape: tuple[int, ...], cuts: tuple[slice, ...] = ()) -> Array | None:
        """The mask of this rank's tokens, or of those that `cuts` names of these."""
        layout = self.context_split.layout
        mine = layout.mine[cuts[0]] if cuts else layout.mine
        jumps = np.flatnonzero(np.diff(mine) > 1) + 1
        runs = [slice(int(run[0]), int(run[-1]) + 1) for run in np.split(mine, jumps) if len(run)]
        runs = runs or [slice(0, 0)]
        parts: list[Array] = [super(ContextDropout, self).mask(
            x, (layout.length, *shape[1:]), (run, *cuts[1:])) for run in runs]
        return None if parts[0] is None else np.concatenate(parts, axis=1)


class ContextPartialDropout(PartialDropout, ContextDropout):
    """With sequence parallelism: the part of this rank of tp of the tokens of its rank of cp."""


class ContextParallel(GPT):
    """Base of the GPTs whose tokens are spread over the ranks of `context_split.cp`."""

    context_split: ContextSplit

    def embed(self, ids: Array) -> Tensor:
        """ids (b, t), whole → x (b, t/p, d) of this rank's tokens."""
        if ids.shape[1] > self.config.context:
            raise too_long_error(ids.shape[1], self.config.context)
        return super().embed(cut_tokens(self.context_split.cp, ids, self.context_split.layout))

    def positions_of(self, tokens: slice) -> Array:
        """The positions in the whole sequence of some of this rank's tokens."""
        return asarray_like(self.context_split.layout.mine[tokens], self.wpe.weight.data)

    def criterion(self, logits: Tensor, targets: Array, loss_divisor: float | None = None,
                  ignore_index: int | None = None) -> Tensor:
        """This rank's share of the loss of targets (b, t), whole; logits are of its tokens."""
        split = self.context_split
        return super().criterion(logits, cut_tokens(split.cp, targets, split.layout),
                                 loss_divisor, ignore_index)

    def forward(self, ids: Array) -> Tensor:
        """ids (b, t) → logits (b, t, V) of all tokens, on every rank."""
        with sequences_of(ids.shape[1]):
            return GatherTokens.apply(super().forward(ids), comm=self.context_split.cp,
                                      layout=self.context_split.layout)

    def loss(self, ids: Array, targets: Array, loss_divisor: float | None = None,
             ignore_index: int | None = None) -> Tensor:
        """This rank's share of the loss: give the divisor of all ranks' targets, then add up."""
        with sequences_of(ids.shape[1]):
            return self.criterion(self.run_all_parts(ids), targets, loss_divisor, ignore_index)


class ContextParallelGPT(ContextParallel):
    """A GPT whose tokens are spread over ranks."""

    def positions(self, time: int) -> Tensor:
        """The embeddings of the positions of this rank's tokens."""
        return self.wpe.weight[self.positions_of(slice(time))]


class ContextTensorParallelGPT(ContextParallel, TensorParallelGPT):
    """A GPT whose tokens are spread over cp, and whose layers over tp."""

    def embed(self, ids: Array) -> Tensor:
        """As ContextParallel.embed; raises ValueError if tp cannot split the tokens of a rank."""
        if isinstance(self.split, SequenceSplit):
            check_divides(self.context_split, self.split.tp.size)
        return super().embed(ids)

    def places(self, time: int) -> Array:
        """The positions of this rank's tokens, with sequence parallelism of those of tp."""
        return self.positions_of(super().places(time))


CONTEXT_PARALLEL: dict[type[Module], type[ContextParallel]] = {
    GPT: ContextParallelGPT, TensorParallelGPT: ContextTensorParallelGPT}
DROPOUTS = {Dropout: ContextDropout, PartialDropout: ContextPartialDropout}


def check_divides(split: ContextSplit, tp: int) -> None:
    """Raise ValueError unless the tokens of each rank of cp divide over `tp` ranks."""
    def indivisible(layout: TokenLayout) -> list[int]:
        return [len(part) for part in layout.of_ranks if len(part) % tp]
    length = split.layout.length
    if wrong := indivisible(split.layout):
        good = next(n for n in count(length + 1) if not indivisible(split.make_layout(n)))
        raise ValueError(f"sequence parallelism splits the tokens of each rank of cp over {tp} "
                         f"ranks of tp, and of {length} tokens a rank of cp has {wrong[0]}, which "
                         f"does not divide: take sequences of {good}, or leave it off")


def check_experts(mlp: Module) -> None:
    """Raise ValueError for experts of which something is counted by sequence."""
    if isinstance(mlp, MoE):
        config = mlp.config
        if config.balance_loss or config.z_loss or config.capacity_factor is not None:
            raise experts_of_whole_sequences_error()


def parallelize_context(model: Module, split: ContextSplit) -> Any:
    """Spread the tokens of `model` over the ranks of `split.cp`; return it, changed.

    It is a plain GPT, or one that `parallelize` made tensor-parallel.  Parameters stay as they are:
    every rank has all, and their gradients are sums over the ranks.  Raises ValueError for other
    models, and for heads that Ulysses cannot divide.
    """
    if type(model) not in CONTEXT_PARALLEL:
        what = "an MLP has none" if isinstance(model, MLP) else f"not of a {type(model).__name__}"
        raise ValueError("context parallelism spreads the tokens of a GPT over ranks, and "
                         f"{what}: leave cp out")
    for block in model.h:
        check_experts(block.mlp)
        attention = block.attn
        columns_of_qkv(attention.num_heads, attention.num_kv_heads, 1, split.neighbours.size)
        retype(attention, ContextAttentionLayer, context_split=split)
        for dropout in (attention.resid_dropout, block.mlp.dropout):
            retype(dropout, DROPOUTS[type(dropout)], context_split=split)
    retype(model.drop, DROPOUTS[type(model.drop)], context_split=split)
    retype(model, CONTEXT_PARALLEL[type(model)], context_split=split)
    return model
