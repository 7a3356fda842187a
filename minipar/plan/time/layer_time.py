"""Seconds of one layer and microbatch on one GPU, by part; and of the host that launches it."""

from ...nn import GPTConfig
from ...parallel.cost.experts import all_to_all_bytes
from ..cluster import ClusterSpec
from ..layout import Layout
from ..models import head_width, layer_parameters, mlp_matrices, mlp_width
from .kernels import Seconds, attention, elementwise, linear, stream
from .messages import link, nic, ranks_in_node, ring


def layer_parts(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> dict[str, float]:
    """Seconds of one layer and microbatch on the GPU, forward and backward, by part."""
    rows = layout.microbatch * model.context / layout.cp
    parts = {"products": products(cluster, model, layout, rows),
             "attention": attention(cluster, model, rows, layout.tp),
             "element-wise": elementwise(cluster, model, rows, layout.tp, layout.sp)}
    sent = {"tp messages": tensor_messages(cluster, model, layout, rows),
            "cp messages": context_messages(cluster, model, layout, rows),
            "ep messages": expert_messages(cluster, model, layout, rows)}
    again = 0.0
    if layout.remat == "full":
        again = sum(part.forward for part in [*parts.values(), *sent.values()])
    elif layout.remat == "selective" and cluster.software.flash is None:
        again = parts["attention"].forward
    found = {name: part.both for name, part in (parts | sent).items()}
    summed = cluster.software.sum_bytes * layer_parameters(model, active=True) / layout.tp
    found["element-wise"] += summed / stream(cluster)
    return found | {"recomputation": again}


def products(cluster: ClusterSpec, model: GPTConfig, layout: Layout, rows: float) -> Seconds:
    """Seconds of the products of one layer."""
    width, d = model.width, head_width(model)
    heads, kv_heads = model.num_heads, model.num_kv_heads or model.num_heads
    whole = linear(cluster, rows, (heads + 2 * kv_heads) * d / layout.tp, width).plus(
        linear(cluster, rows, width, heads * d / layout.tp))
    experts, columns = model.experts, mlp_matrices(model) - 1
    if experts is None:
        wide = mlp_width(model) / layout.tp
        return whole.plus(linear(cluster, rows, columns * wide, width)).plus(
            linear(cluster, rows, width, wide))
    wide = (experts.width or mlp_width(model)) / layout.tp
    local = experts.num_experts / layout.ep
    each = rows * experts.top_k / local
    for count, tokens in ((local, each), (experts.num_shared, rows)):
        one = linear(cluster, tokens, columns * wide, width).plus(
            linear(cluster, tokens, width, wide))
        whole = whole.plus(Seconds(count * one.forward, count * one.backward))
    return whole


def tensor_messages(cluster: ClusterSpec, model: GPTConfig, layout: Layout, rows: float) -> Seconds:
    """Seconds of a layer's tp messages: two all-reduces in each direction, 4 passes of a ring.

    With sequence parallelism they are as many passes of gathers and scatters.  Backward has 6
    passes if it gathers its inputs again.
    """
    if layout.tp == 1:
        return Seconds(0, 0)
    software = cluster.software
    one = ring(cluster, layout.tp, 1, 2 * rows * model.width) * (1 - software.tp_overlap)
    one += software.cross * max(layout.tp / cluster.per_node - 1, 0)
    return Seconds(4 * one, (6 if layout.sp and software.regather else 4) * one)


def context_messages(cluster: ClusterSpec, model: GPTConfig, layout: Layout,
                     rows: float) -> Seconds:
    """Seconds of a layer's cp messages: forward gathers keys and values from all cp ranks.

    Backward gathers them once more, and reduce-scatters their gradients.
    """
    if layout.cp == 1:
        return Seconds(0, 0)
    kv_width = (model.num_kv_heads or model.num_heads) * head_width(model) / layout.tp
    one = ring(cluster, layout.cp, layout.tp, 2 * 2 * rows * layout.cp * kv_width)
    return Seconds(one, 2 * one)


def expert_messages(cluster: ClusterSpec, model: GPTConfig, layout: Layout, rows: float) -> Seconds:
    """Seconds of a layer's ep messages: two all-to-alls in each direction (`all_to_all_bytes`)."""
    if layout.ep == 1:
        return Seconds(0, 0)
    sent = all_to_all_bytes(model, round(rows), layout.ep, 2) / layout.tp
    near = ranks_in_node(cluster, layout.ep, layout.tp * layout.cp)
    far = sent * (layout.ep - near) / max(1, layout.ep - 1)
    one = max(far / nic(cluster), (sent - far) / link(cluster)) + cluster.software.latency
    return Seconds(2 * one, 2 * one)


def launch(cluster: ClusterSpec, layout: Layout, stalls: bool = False) -> float:
    """Seconds that the host needs to launch a layer.

    On several nodes tp collectives are launched late beside pipeline messages.  In a run that
    stalls, they are launched late without a pipeline as well.
    """
    software, collectives = cluster.software, 10 if cluster.software.regather else 8
    late = (layout.pp > 1 or stalls) and cluster.nodes > 1
    busy = collectives * software.busy * (layout.tp - 1) if late else 0
    return software.launch * (4 / 3 if layout.remat == "full" else 1) + busy
