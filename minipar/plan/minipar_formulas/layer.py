"""Seconds and bytes of one layer on one rank, as minipar computes it.

Bytes of element-wise operations are in units of a token's width in 16 bits, forward:

    two norms 4, two sums 6, biases after a sum over tp 4      shared with sequence parallelism
    rotary positions 2 q                                       q: widths of q, k, v of a rank
    GELU 2 f, SwiGLU 3 f                                       f: that of the MLP

and what is kept for backward: two normed inputs, unit rows of norms, q, k, v, their result, and
2 f or 3 f.  Attention is fused: it keeps no probabilities, unless the whole block is computed
again.

With experts, k rows for each token:

    rows picked 2 k, times gates 2 k, added k + 1; sorted by expert and back 4 k, with ep
    of experts' inner width, too: GELU 2 f, SwiGLU 3 f, for each of k rows

They keep their input and their result, k each, and 2 f or 3 f of each row.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ...nn import GPTConfig
from ...parallel.cost.activations import visible_pairs
from ..cluster import ClusterSpec
from ..layout import Layout
from ..models import head_width, mlp_width
from ..time.kernels import attention, product, stream
from ..time.messages import rate


class LayerSeconds(NamedTuple):
    """Seconds of forward, of it again in backward, of gradients of inputs and of weights."""

    forward: float = 0.0
    again: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0


class LayerWidths(NamedTuple):
    """The sizes of a layer on one rank; widths are in units of the model's width.

    With experts the MLP is the shared one, if there is any.
    """

    qkv: float                  # the width of q, k and v together
    result: float               # … of attention's result
    inner: float                # … within the MLP
    columns: int                # layers by columns that begin an MLP: 1, or 2 if it is gated
    shared: int                 # ranks that share the tokens of norms and sums: tp, or 1
    gathers: int                # of inputs in forward, with sequence parallelism
    rows: float = 0.0           # rows that experts compute, for each token
    experts: float = 1.0        # experts on this rank
    expert: float = 0.0         # the width within one of them

    @property
    def wide(self) -> float:
        """Inner widths of all rows of a token."""
        return self.inner + self.rows * self.expert


def layer_widths(model: GPTConfig, layout: Layout) -> LayerWidths:
    """The widths of a layer."""
    tp, heads = layout.tp, model.num_heads * head_width(model) / model.width
    kv = max(model.num_kv_heads or model.num_heads, tp) * head_width(model) / model.width
    columns = 2 if model.mlp == "swiglu" else 1
    is_split, moe = layout.sp and tp > 1, model.experts
    inner = (moe and moe.width or mlp_width(model)) / model.width / tp
    mixture = () if moe is None else (moe.top_k * min(1.0, moe.capacity_factor or 1.0),
                                      moe.num_experts / layout.ep, inner)
    return LayerWidths((heads + 2 * kv) / tp, heads / tp, inner * (moe.num_shared if moe else 1),
                       columns, tp if is_split else 1, (1 + (1 if moe else columns)) * is_split,
                       *mixture)


def message(cluster: ClusterSpec, size: int, stride: int, num_bytes: float, hidden: float = 0.0,
            passes: int = 1) -> float:
    """Seconds of a ring's `passes` over `num_bytes` that are launched together."""
    software = cluster.software
    if size == 1:
        return 0.0
    one = software.latency_rank + num_bytes / size / rate(cluster, size, stride)
    return software.latency + passes * (size - 1) * one * (1 - hidden)


@lru_cache(10_000)
def layer_seconds(cluster: ClusterSpec, model: GPTConfig,
                  layout: Layout) -> dict[str, LayerSeconds]:
    """Seconds of a layer and microbatch, by part."""
    widths, rows = layer_widths(model, layout), layout.microbatch * model.context / layout.cp
    d, columns, is_full = model.width, widths.columns, layout.remat == "full"
    router = widths.experts * layout.ep * (widths.rows > 0)
    sums = products(cluster, rows, d, [(widths.qkv, 1.0), (1.0, widths.result), (router / d, 1.0),
                                       *[(widths.inner, 1.0)] * columns, (1.0, widths.inner)])
    last = products(cluster, rows, d, [(1.0, widths.inner)])[0]       # no backward needs its result
    each = products(cluster, rows * widths.rows / widths.experts, d,
                    [(widths.expert, 1.0)] * columns + [(1.0, widths.expert)], widths.experts)
    return {
        "products": LayerSeconds(sums[0], is_full * (sums[0] - last), *sums[1:]),
        "expert products": LayerSeconds(each[0], is_full * each[0], *each[1:]),
        "attention": attention_seconds(cluster, model, layout, rows),
        "element-wise": element_wise_seconds(cluster, model, layout, rows),
        "tp messages": tensor_seconds(cluster, model, layout, rows),
        "cp messages": context_seconds(cluster, model, layout, rows),
        "ep messages": expert_seconds(cluster, model, layout, rows)}


def element_wise_seconds(cluster: ClusterSpec, model: GPTConfig, layout: Layout,
                         rows: float) -> LayerSeconds:
    """The operations in the head of this file, in its units."""
    widths = layer_widths(model, layout)
    columns = widths.columns
    unit = 2 * rows * model.width * cluster.software.unfused / stream(cluster)
    biases = 4 * (model.bias and layout.tp > 1)
    rope = 2 * widths.qkv * (model.rope is not None)
    activation = (1 + columns) * widths.wide
    picked = (1 + (5 + 4 * (layout.ep > 1)) * widths.rows) * (widths.rows > 0)
    beside = widths.rows > 0 and widths.inner > 0               # an MLP beside the experts
    forward = (10 + biases) / widths.shared + rope + activation + picked + 3 * beside
    again = rope
    if layout.remat == "full":          # all but the last sum and its bias
        again = forward - (3 + biases / 2) / widths.shared - 3 * beside
    inputs = ((12 + biases) / widths.shared + rope + 2 * columns * widths.wide + picked
              + (widths.rows > 0) + 4 * beside)
    weights = vectors_of(model) / widths.shared + model.bias * (widths.qkv + widths.wide)
    return LayerSeconds(unit * forward, unit * again, unit * inputs, unit * weights)


def products(cluster: ClusterSpec, rows: float, d: int,
             matrices: Sequence[tuple[float, float]], times: float = 1) -> list[float]:
    """Seconds of products: of forward, of the gradients of inputs, of the gradients of weights.

    `rows` rows meet each of the `matrices`, which are (outputs, inputs) in units of `d`, `times`
    times.  A matrix with a 0 is left out.
    """
    found = [(product(cluster, rows, n * d, k * d), product(cluster, rows, k * d, n * d),
              product(cluster, k * d, n * d, rows)) for n, k in matrices if n * k]
    return [times * sum(each) for each in zip(*found)] or [0.0] * 3


def attention_seconds(cluster: ClusterSpec, model: GPTConfig, layout: Layout,
                      rows: float) -> LayerSeconds:
    """Fused; with cp it is a chain of products, which backward computes again."""
    if layout.cp == 1:
        fused = attention(cluster, model, rows, layout.tp)
        return LayerSeconds(fused.forward, fused.forward * (layout.remat == "full"), fused.backward)
    pairs = 2 * rows * model.context * model.num_heads / layout.tp * (head_width(model) + 2)
    one = pairs / (cluster.rate * cluster.software.product)
    return LayerSeconds(one, one, 2.5 * one)


def tensor_seconds(cluster: ClusterSpec, model: GPTConfig, layout: Layout,
                   rows: float) -> LayerSeconds:
    """Sums over tp after attention and MLP, and backward of each layer by columns.

    With sequence parallelism a sum is a scatter, and each layer by columns gathers its input; and
    gradients of vectors that are not cut are summed.
    """
    widths, num_bytes = layer_widths(model, layout), 2 * rows * model.width
    columns, hidden = 1 + widths.columns, cluster.software.tp_overlap
    one = message(cluster, layout.tp, 1, num_bytes, hidden, 1 if widths.gathers else 2)
    vectors = vectors_of(model) * shared_vector(cluster, model, layout)
    if widths.rows:                       # around all experts, and around the MLP beside them
        whole, moved = [message(cluster, layout.tp, 1, share * num_bytes, hidden, 2) * (share > 0)
                        for share in (float(widths.inner > 0), widths.rows)]
        outside = (3 if widths.gathers else 1) * one
        return LayerSeconds(outside + moved + whole, (outside + moved) * (layout.remat == "full"),
                            outside + widths.columns * (moved + whole), vectors)
    number = columns + 2 if widths.gathers else 2
    return LayerSeconds(number * one, (number - 1) * one * (layout.remat == "full"),
                        (number if widths.gathers else columns) * one, vectors)


def vectors_of(model: GPTConfig) -> int:
    """The parameters of a layer that tp does not cut: of norms, biases after a sum."""
    return (2 if model.norm == "rms" else 4) + 2 * model.bias


def shared_vector(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> float:
    """Seconds to sum the gradient of such a parameter, with sequence parallelism."""
    software, widths = cluster.software, layer_widths(model, layout)
    return message(cluster, widths.shared, 1, 2 * model.width, software.tp_overlap, passes=2)


def context_seconds(cluster: ClusterSpec, model: GPTConfig, layout: Layout,
                    rows: float) -> LayerSeconds:
    """Keys and values of all cp ranks are gathered, and again; float32 gradients are scattered."""
    kv = (layer_widths(model, layout).qkv - layer_widths(model, layout).result) * model.width
    one, two = (message(cluster, layout.cp, layout.tp, itemsize * rows * layout.cp * kv)
                for itemsize in (2, 4))
    return LayerSeconds(one, one, one + two)


def expert_seconds(cluster: ClusterSpec, model: GPTConfig, layout: Layout,
                   rows: float) -> LayerSeconds:
    """Numbers of rows, a control message; rows go to their experts, and back.

    No ring: in each round a rank sends to another one, and all wait for those that leave a node.
    """
    widths, ep, stride = layer_widths(model, layout), layout.ep, layout.tp * layout.cp
    stride = stride if stride * ep <= cluster.per_node else max(stride, cluster.per_node)
    there = 2 * message(cluster, ep, stride, 2 * rows * model.width * widths.rows)
    known = message(cluster, 2, stride, 0, passes=(ep - 1).bit_length()) * (ep > 1)
    return LayerSeconds(there + known, (there + known) * (layout.remat == "full"), there)


@lru_cache(1000)
def kept_units(model: GPTConfig, layout: Layout) -> float:
    """What a layer keeps of a microbatch, in tokens · width."""
    widths = layer_widths(model, layout)
    if layout.remat == "full":
        return 1 / widths.shared
    return block_units(widths)


def block_units(widths: LayerWidths) -> float:
    """What a layer keeps that is not computed again."""
    return (2 / widths.shared + (widths.gathers or 2) + widths.qkv + widths.result
            + mlp_units(widths))


def mlp_units(widths: LayerWidths) -> float:
    """What an MLP, or experts keep within."""
    return widths.wide * (1 + widths.columns if widths.columns > 1 else 2) + 2 * widths.rows


def deferred_units(model: GPTConfig, layout: Layout) -> float:
    """What a layer keeps from I to W: inputs of its products, and gradients of their results."""
    widths = layer_widths(model, layout)
    inputs = (widths.gathers or 2) + widths.result + widths.wide + 2 * widths.rows
    whole = 4 if widths.gathers else 2
    return inputs + widths.qkv + widths.columns * widths.wide + whole + 1 / widths.shared


@lru_cache(1000)
def passing_units(model: GPTConfig, layout: Layout) -> float:
    """The most that the backward of a layer has besides.

    Gradients on their way beside a weight's gradient, or beside a message of tp, or what attention
    needs when the MLP's arrays are gone: the largest.  With full recomputation, also the block that
    is computed again.
    """
    widths, rows = layer_widths(model, layout), layout.microbatch * model.context / layout.cp
    gathered, own = widths.gathers > 0, 1 / widths.shared
    received = own * (layout.pp > 1)
    inner = max(widths.inner, widths.experts * widths.expert) * model.width / rows
    of_weight = gathered + own + inner
    heads = model.num_heads / layout.tp / model.width
    pairs = 0.0 if layout.cp > 1 else visible_pairs(model.context) / model.context * heads
    if layout.remat == "full":
        outs = 3 * own + gathered * widths.columns + widths.columns * widths.inner
        return block_units(widths) + pairs - own + max(of_weight, outs) + received
    of_message = (1 + gathered + 3 * own) * (layout.tp > 1)
    rest = (3 * widths.qkv if model.rope else 2 * widths.qkv) + widths.result
    of_attention = pairs + rest - own - (widths.columns if gathered else 1) - mlp_units(widths)
    of_experts = max(2 + widths.columns * widths.wide + widths.rows * (layout.ep > 1),
                     1 - widths.rows + widths.wide) * (widths.rows > 0)     # of forward; backward
    return max(of_weight + received, of_message + received, of_attention, of_experts)


def layer_polls(cluster: ClusterSpec, model: GPTConfig, layout: Layout,
                seconds: float) -> tuple[float, int, int, int]:
    """How often the backward of a layer polls: between operations; waiting for tp; cp; ep.

    Where element-wise operations are shorter than a round of some `seconds`, several make a poll.
    """
    widths, tp = layer_widths(model, layout), layout.tp
    number = 2 + widths.gathers if widths.gathers else 2 * (1 + widths.columns)
    # Two products for each of 3 + columns matrices (c_attn, c_proj and the MLP's), and attention's
    # backward; two polls fewer move a message on, as simulated runs show.
    # Short: two norms, each for its input and its weight, the activation, a sum; five with biases.
    products, short = 5 + 2 * widths.columns, 6 + 5 * model.bias
    short_work = layer_seconds(cluster, model, layout)["element-wise"]
    each = (short_work.again + short_work.inputs + short_work.weights) / short
    # A block that is computed again polls where FSDP reads a weight: 12 times in GPT-2, 7 times if
    # the MLP is gated and there are no biases.
    return (products + short * min(1, each / seconds) + 8 * (layout.remat == "full"),
            number * (tp - 1), 3 * (layout.cp - 1), 2 * (layout.ep - 1))
