"""Make a GPT context-parallel: every rank has some tokens of each sequence, and all weights.

    model = parallelize_context(GPT(config), ContextSplit(mesh["cp"])).initialize(seed=0)

    ids (b, t) ─▶ cut ─▶ embed ─▶ norm ─▶ attention ─▶ mlp ─▶ … ─▶ loss of this rank's targets
                  (b, t/p)               └ the only messages

On every rank the model is given whole sequences, and keeps the rank's own tokens, with their
positions and targets.  The targets were shifted by one before the cut, so the last of a rank's
tokens has its target too.  The loss is this rank's share.  The ranks' gradients add up, as if the
ranks had different samples.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from ...autograd import Tensor
from ...backend import Array, asarray_like
from ...nn import GPT, MLP, Dropout, Module, MoE
from ...nn.gpt import CoreAttention, too_long_error
from ..errors import experts_of_whole_sequences_error
from ..tensor.layers import PartialDropout
from ..tensor.parallelize import split_of
from ..tensor.sequence import SequenceSplit
from .attention import context_attention
from .rank_groups import ContextSplit, GatherTokens, TokenLayout, cut_tokens, sequences_of
from .ulysses import columns_of_qkv, heads_to_tokens, tokens_to_heads


class ContextCoreAttention(CoreAttention):
    """The attention of a GPT whose tokens are spread over ranks."""

    context_split: ContextSplit

    def attend(self, qkv: Tensor, heads: int, kv_heads: int) -> Tensor:
        """For each token of this rank, weighted means of all tokens' values: (b, t/p, h n)."""
        split, layout = self.context_split, self.context_split.layout
        neighbours, ring, u = split.neighbours, split.ring, split.neighbours.size
        fmt = split.message_format
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
    """Dropout of some tokens' values, by these tokens' part of the whole sequences' mask."""

    context_split: ContextSplit

    def mask(self, x: Array, shape: tuple[int, ...], cuts: tuple[slice, ...] = ()) -> Array | None:
        """The mask of this rank's tokens, or of those among them that `cuts` names."""
        layout = self.context_split.layout
        mine = layout.mine[cuts[0]] if cuts else layout.mine
        jumps = np.flatnonzero(np.diff(mine) > 1) + 1
        runs = [slice(int(run[0]), int(run[-1]) + 1) for run in np.split(mine, jumps) if len(run)]
        runs = runs or [slice(0, 0)]
        parts: list[Array] = [super(ContextDropout, self).mask(
            x, (layout.length, *shape[1:]), (run, *cuts[1:])) for run in runs]
        return None if parts[0] is None else np.concatenate(parts, axis=1)


class ContextPartialDropout(PartialDropout, ContextDropout):
    """With sequence parallelism: this tp rank's part of the tokens that its cp rank has."""


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
    """Raise ValueError for experts that count anything by sequence."""
    if isinstance(mlp, MoE):
        config = mlp.config
        if config.balance_loss or config.z_loss or config.capacity_factor is not None:
            raise experts_of_whole_sequences_error()


def parallelize_context(model: Module, split: ContextSplit) -> Any:
    """Spread the tokens of `model` over the ranks of `split.cp`; return the changed model.

    It is a plain GPT, or one that `parallelize` made tensor-parallel.  Parameters stay as they are:
    all ranks of cp have the same ones, and their gradients are sums over these ranks.  Raises
    ValueError for other models, and for heads that Ulysses cannot divide.
    """
    if type(model) is not GPT or isinstance(model.h[0].attn.core, ContextCoreAttention):
        what = "an MLP has none" if isinstance(model, MLP) else \
            f"not of a {type(model).__name__}{' twice' if type(model) is GPT else ''}"
        raise ValueError("context parallelism spreads the tokens of a GPT over ranks, and "
                         f"{what}: leave cp out")
    for block in model.h:
        check_experts(block.mlp)
        attention = block.attn
        columns_of_qkv(attention.num_heads, attention.num_kv_heads, 1, split.neighbours.size)
        attention.core = ContextCoreAttention.replacing(attention.core, context_split=split)
        attention.resid_dropout = _spread(attention.resid_dropout, split)
        block.mlp.dropout = _spread(block.mlp.dropout, split)
        if attention.rotary is not None:
            attention.rotary.around(lambda forward, qkv, heads, *positions: forward(
                qkv, heads, *positions or [split.layout.mine[None]]), inside=True)
    model.drop = _spread(model.drop, split)
    _spread_calls(model, split)
    return model


def _spread(dropout: Dropout, split: ContextSplit) -> Dropout:
    return DROPOUTS[type(dropout)].replacing(dropout, context_split=split)


def _spread_calls(model: GPT, split: ContextSplit) -> None:
    """Let the model, its embedding and its loss take whole sequences (b, t)."""
    tensor_split, longest = split_of(model), model.config.context

    def whole_logits(forward: Callable, ids: Array, gather: bool = True) -> Tensor:
        with sequences_of(ids.shape[1]):
            logits = forward(ids, gather)
            return GatherTokens.apply(logits, comm=split.cp, layout=split.layout) if gather \
                else logits

    def embed(forward: Callable, ids: Array) -> Tensor:
        if ids.shape[1] > longest:
            raise too_long_error(ids.shape[1], longest)
        if isinstance(tensor_split, SequenceSplit):
            check_divides(split, tensor_split.tp.size)
        return forward(cut_tokens(split.cp, ids, split.layout))

    def cross_entropy(forward: Callable, logits: Tensor, targets: Array, *options: Any) -> Tensor:
        with sequences_of(targets.shape[1]):
            return forward(logits, cut_tokens(split.cp, targets, split.layout), *options)

    model.around(whole_logits)
    model.embed.around(embed)
    model.embed.positions.around(
        lambda forward, places: forward(split.layout.mine[places]), inside=True)
    model.cross_entropy.around(cross_entropy)
