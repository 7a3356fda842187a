"""One step of a GPT over a cache: it computes only new tokens; older ones are keys and values.

    inputs ─▶ ids, positions (T,) ─▶ embed ─▶ block 0 ─▶ block 1 ─▶ … ─▶ last tokens ─▶ logits
                                                │ qkv       │
                                                ▼           ▼
                                              the cache: write k and v, attend from q

Prefill computes many tokens of a prompt, and decoding computes one token; one step can do both.
The layers are the blocks of `nn/gpt.py`, but attention runs over the cache, not over the batch.
test_logits_are_those_of_a_whole_forward (tests/inference/test_cached_forward.py) holds them equal.
"""

from collections.abc import Iterable, Sequence

from ...autograd import Tensor, no_grad
from ...backend import Array, asarray_like
from ...nn import GPT
from ...nn.gpt import Attention, Block
from ..cache import PagedKVCache, SequenceInput, TokenBatch
from .plain_layers import evaluate, evaluate_head


def forward_over_cache(model: GPT, cache: PagedKVCache, inputs: Sequence[SequenceInput],
                       last_only: bool = True) -> Tensor:
    """Logits (S, V) after each sequence's last token; after all tokens (T, V) if not `last_only`.

    A sequence's table must have room for its new tokens.  A tensor-parallel model gives this rank's
    columns of the logits.  Raises ValueError for positions beyond the model's context.
    """
    batch = TokenBatch(inputs, cache.block_size, cache.data)
    check_context(model, batch)
    with no_grad():
        x = run_blocks(model.h, embed(model, batch), cache, batch)
        return head(model, x, batch, last_only)


def check_context(model: GPT, batch: TokenBatch) -> None:
    """Raise ValueError if a sequence is longer than the model's context."""
    if batch.longest > model.config.context:
        raise ValueError(f"a sequence of {batch.longest} tokens is longer than the model's "
                         f"context of {model.config.context}: generate fewer tokens")


def embed(model: GPT, batch: TokenBatch) -> Array:
    """The embeddings of tokens and positions: (T, d)."""
    tokens = evaluate(model.wte, batch.ids)
    if model.config.rope is not None:
        return tokens
    return tokens + model.wpe.weight.data.take(asarray_like(batch.positions, tokens), axis=0)


def run_blocks(blocks: Iterable[Block], x: Array, cache: PagedKVCache, batch: TokenBatch) -> Array:
    """x (T, d) → (T, d): the blocks, one after the other."""
    for layer, block in enumerate(blocks):
        x = run_block(block, x, cache, layer, batch)
    return x


def run_block(block: Block, x: Array, cache: PagedKVCache, layer: int, batch: TokenBatch) -> Array:
    """x (T, d) → (T, d), as in Block.forward, but with attention over the cache."""
    parts = block._modules                              # by name: attributes would take longer
    attention = parts["attn"]
    qkv = evaluate(attention._modules["c_attn"], evaluate(parts["ln_1"], x))
    attended = attend_over_cache(attention, qkv, cache, layer, batch)
    x = x + evaluate(attention._modules["c_proj"], attended)
    return x + evaluate(parts["mlp"], evaluate(parts["ln_2"], x))


def attend_over_cache(attention: Attention, qkv: Array, cache: PagedKVCache, layer: int,
                      batch: TokenBatch) -> Array:
    """Queries, keys and values (T, (h + 2 kv) n) → the attention over the cache (T, h n)."""
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    if attention.rotary is not None:                    # keys are turned before they are kept
        qkv = attention.rotary(Tensor(qkv[None]), heads + kv_heads, batch.positions[None]).data
    qkv = qkv.reshape(len(batch.positions), heads + 2 * kv_heads, -1)
    q, k, v = qkv[:, :heads], qkv[:, heads:heads + kv_heads], qkv[:, heads + kv_heads:]
    return cache.attend(layer, batch, q, k, v).reshape(len(qkv), -1)


def head(model: GPT, x: Array, batch: TokenBatch, last_only: bool = True) -> Tensor:
    """x (T, d) → logits (S, V) after each sequence's last token, or after all tokens (T, V)."""
    if last_only and len(batch.inputs) < len(x):
        x = x[batch.last]
    return Tensor(evaluate_head(model, x))
