"""Programs for one device whose shardings and collectives are known from another partitioner."""

import math

import minipar.autograd as ag
from minipar.autograd import Tensor
from minipar.gspmd.constrain import constrain
from minipar.gspmd.spec import P

EPSILON = 1e-5


def softmax(x: Tensor) -> Tensor:
    e = ag.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / ag.sqrt(variance + EPSILON) * gain + bias


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q, k, v (b, h, t, d) → (b, h, t, d), not causal: the mask changes no sharding."""
    scores = q @ k.transpose(0, 1, 3, 2) * (1 / math.sqrt(q.shape[-1]))
    return softmax(scores) @ v


def one_hot_cross_entropy(logits: Tensor, one_hot: Tensor) -> Tensor:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return (ag.log(ag.exp(shifted).sum(axis=-1)) - (shifted * one_hot).sum(axis=-1)).mean()


def block(x, g1, b1, wqkv, wo, g2, b2, w1, c1, w2, c2, between=None, inputs=None):
    """A transformer block; wqkv (d, 3, h, k), wo (h, k, d)."""
    batch, time, width = x.shape
    _, _, heads, k = wqkv.shape
    between, inputs = between or (lambda y: y), inputs or (lambda y: y)
    y = inputs(layer_norm(x, g1, b1))
    qkv = y.reshape(batch, 1, 1, time, width) @ wqkv.transpose(1, 2, 0, 3)      # (b, 3, h, t, k)
    q, key, v = (qkv[:, i] for i in range(3))
    o = attention(q, key, v).transpose(0, 2, 1, 3).reshape(batch, time, heads * k)
    x1 = between(x + ag.linear(o, wo.reshape(heads * k, width)))
    y = inputs(layer_norm(x1, g2, b2))
    up = ag.gelu(ag.linear(y, w1, c1))
    return between(x1 + ag.linear(up, w2, c2))


TIME, HEADS = P(None, None, "x"), P(None, "x")


def ulysses(q, k, v):
    q, k, v = (constrain(x, HEADS) for x in (q, k, v))
    return constrain(attention(q, k, v), TIME)


def sequence_parallel(*inputs):
    residual, whole = P("data", "model"), P("data")
    return block(*inputs, between=lambda y: constrain(y, residual),
                 inputs=lambda y: constrain(y, whole))


def experts(x: Tensor, m: Tensor, w: Tensor) -> Tensor:
    """x (g, t, d), routing m (g, t, e, c), weights w (e, d, f) → (g, t, f)."""
    g, t, e, c = m.shape
    routing = m.reshape(g, t, e * c)
    sent = (routing.transpose(0, 2, 1) @ x).reshape(g, e, c, x.shape[-1])
    sent = constrain(constrain(sent, P("x")), P(None, "x"))
    computed = constrain(constrain(sent @ w, P(None, "x")), P("x"))
    return routing @ computed.reshape(g, e * c, w.shape[-1])


PROGRAMS = {
    "attention_heads_sharded": attention,
    "attention_heads_gradient": attention,
    "attention_queries_sharded": lambda q, k, v: constrain(attention(q, k, v), TIME),
    "attention_head_dim_sharded": attention,
    "ulysses_by_constraint": ulysses,
    "block_batch_only": block, "block_batch_only_gradient": block,
    "block_two_weights": block, "block_two_weights_gradient": block,
    "block_megatron_gradient": block, "block_fsdp_gradient": block,
    "block_mixed_fsdp_tensor": block, "block_mixed_fsdp_tensor_gradient": block,
    "block_sequence_parallel": sequence_parallel,
    "optimizer_state_sharded": lambda p, m, g: (
        constrain(p - 0.1 * constrain(0.9 * m + g, P("data")), P()),
        constrain(0.9 * m + g, P("data"))),
    "scan_free_mlp3_batch_then_width": lambda x, a, b, c: ag.tanh(
        ag.tanh(ag.tanh(x @ a) @ b) @ c),
    "layer_norm_rows": layer_norm, "layer_norm_width_sharded": layer_norm,
    "bias_gradient": lambda g: g.sum(axis=(0, 1)),
    "embedding_vocab_sharded": ag.embedding, "embedding_width_sharded": ag.embedding,
    "embedding_gradient_vocab_sharded": ag.embedding,
    "batched_matmul_batch_sharded": ag.matmul, "batched_matmul_batch_and_contract": ag.matmul,
    "chain_backward_from_output": lambda a, b, c: constrain((a @ b) @ c, P("x")),
    "conflict_add": lambda a, b: a + b,
    "conflict_batched_left_larger": ag.matmul, "conflict_batched_right_larger": ag.matmul,
    "outer_mixed_2d": lambda a, b: a.reshape(16, 1) * b.reshape(1, 32),
    "bilinear_three_operands": lambda x, w, y: (x @ w * y).sum(axis=1),
    "sum_over_sharded": lambda a: a.sum(axis=1),
    "max_keepdims": lambda a: a - a.max(axis=-1, keepdims=True),
    "transpose": lambda a: a.transpose(2, 0, 1),
    "merge_heads": lambda a: a.reshape(2, 16, 64), "merge_minor_sharded": lambda a:
        a.reshape(2, 16, 64),
    "split_heads": lambda a: a.reshape(2, 16, 8, 8),
    "split_axis_larger_than_major": lambda a: a.reshape(2, 16, 2, 32),
    "concatenate_sharded_dim": lambda a, b: ag.concatenate([a, b], axis=0),
    "slice_sharded_dim": lambda a: a[2:10],
    "cross_entropy_vocab_sharded_onehot": lambda z, t: ag.cross_entropy(z, t, 128.0),
    "cross_entropy_vocab_sharded_gather": lambda z, t: ag.cross_entropy(z, t, 128.0),
    "cross_entropy_vocab_sharded_gradient": lambda z, t: ag.cross_entropy(z, t, 128.0),
    "head_and_loss_gradient_vocab": lambda w, x, t: ag.cross_entropy(ag.linear(x, w), t, 128.0),
    "moe_dispatch_einsum": experts,
    "uneven_intermediate": lambda a, w: constrain(constrain(a @ w, P(None, "x")).sum(axis=0), P()),
}
