"""One step of a GPT over a cache: only new tokens are computed, older ones are keys and values.

    rows ─▶ ids, positions (1, T) ─▶ embed ─▶ block 0 ─▶ block 1 ─▶ … ─▶ last tokens ─▶ logits
                                                │ qkv       │
                                                ▼           ▼
                                              the cache: write k and v, attend from q

Prefill computes many tokens of a prompt, decoding one; both are rows of the same step.  The blocks
are those of training, with attention over the cache in place of attention over the batch.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ... import autograd as ag
from ...autograd import Tensor, no_grad
from ...backend import Array, asarray_like
from ...nn import GPT
from ...nn.gpt import Attention, Block
from .rows import Row, RowBatch, lay_out


class KVCache(Protocol):
    """Keys and values of all layers."""

    block_size: int

    def attend(self, layer: int, batch: RowBatch, q: Array, k: Array, v: Array) -> Array:
        """Write the new keys and values (T, kv heads, n); return the attention of q (T, h, n)."""


def forward(model: GPT, cache: KVCache, rows: Sequence[Row], last_only: bool = True) -> Tensor:
    """Logits (S, V) of each row's last token; of all tokens (T, V) with `last_only` False.

    A row's table must have room for its tokens.  Of a tensor-parallel model: this rank's columns.
    Raises ValueError for positions beyond the model's context.
    """
    batch = lay_out(rows, cache.block_size)
    check_context(model, batch)
    with no_grad():
        x = run_blocks(model.h, embed(model, batch), cache, batch)
        return head(model, x, batch, last_only)


def check_context(model: GPT, batch: RowBatch) -> None:
    """Raise ValueError if a sequence is longer than the model's context."""
    if batch.lengths.max() > model.config.context:
        raise ValueError(f"a sequence of {batch.lengths.max()} tokens is longer than the model's "
                         f"context of {model.config.context}: generate fewer tokens")


def embed(model: GPT, batch: RowBatch) -> Tensor:
    """The embeddings of words and positions: (1, T, d)."""
    words = model.wte(batch.ids)
    if model.config.rope is not None:
        return words
    return words + ag.embedding(model.wpe.weight, batch.positions)


def run_blocks(blocks: Sequence[Block], x: Tensor, cache: KVCache, batch: RowBatch) -> Tensor:
    """x (1, T, d) → (1, T, d): the blocks, one after the other."""
    for layer, block in enumerate(blocks):
        x = run_block(block, x, cache, layer, batch)
    return x


def head(model: GPT, x: Tensor, batch: RowBatch, last_only: bool = True) -> Tensor:
    """x (1, T, d) → logits (S, V) of each row's last token, or of all tokens (T, V)."""
    return model.head(x[0, asarray_like(batch.last, x.data)] if last_only else x[0])


def run_block(block: Block, x: Tensor, cache: KVCache, layer: int, batch: RowBatch) -> Tensor:
    """x (1, T, d) → (1, T, d), as Block.forward, with attention over the cache."""
    attended = attend(block.attn, block.attn.c_attn(block.ln_1(x)), cache, layer, batch)
    x = x + block.attn.c_proj(attended)
    return x + block.mlp(block.ln_2(x))


def attend(attention: Attention, qkv: Tensor, cache: KVCache, layer: int,
           batch: RowBatch) -> Tensor:
    """Queries, keys and values (1, T, (h + 2 kv) n) → the attention over the cache (1, T, h n)."""
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    qkv = attention.turn(qkv, batch.positions)          # keys are turned before they are kept
    rows = qkv.data.reshape(qkv.shape[1], heads + 2 * kv_heads, -1)
    q, k, v = np.split(rows, [heads, heads + kv_heads], axis=1)
    out = cache.attend(layer, batch, q, k, v)
    return Tensor(out.reshape(1, len(out), -1))
