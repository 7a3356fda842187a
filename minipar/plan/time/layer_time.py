"""Seconds of one layer and microbatch on one GPU, by part; and of the host that launches it."""

from ...formulas.experts import all_to_all_bytes
from ...nn import GPTConfig
from ..cluster import Cluster
from ..layout import Layout
from ..models import head_width, layer_parameters, mlp_matrices, mlp_width
from .kernels import Seconds, attention, elementwise, linear
from .messages import nic, ranks_in_node, ring


def layer_parts(c: Cluster, model: GPTConfig, e: Layout) -> dict[str, float]:
    """Seconds of one layer and microbatch on the GPU, forward and backward, by part."""
    rows = e.microbatch * model.context / e.cp
    parts = {"products": products(c, model, e, rows),
             "attention": attention(c, model, rows, e.tp),
             "element-wise": elementwise(c, model, rows, e.tp, e.sp)}
    sent = {"tp messages": tensor_messages(c, model, e, rows),
            "cp messages": context_messages(c, model, e, rows),
            "ep messages": expert_messages(c, model, e, rows)}
    again = 0.0
    if e.remat == "full":
        again = sum(part.forward for part in [*parts.values(), *sent.values()])
    elif e.remat == "selective" and c.software.flash is None:
        again = parts["attention"].forward
    found = {name: part.both for name, part in (parts | sent).items()}
    found["element-wise"] += (c.software.sum_bytes * layer_parameters(model, active=True) / e.tp
                              / (c.bandwidth * c.software.stream))
    return found | {"recomputation": again}


def products(c: Cluster, model: GPTConfig, e: Layout, rows: float) -> Seconds:
    """Seconds of the products of one layer."""
    width, d = model.width, head_width(model)
    heads, kv_heads = model.num_heads, model.num_kv_heads or model.num_heads
    whole = linear(c, rows, (heads + 2 * kv_heads) * d / e.tp, width).plus(
        linear(c, rows, width, heads * d / e.tp))
    experts, columns = model.experts, mlp_matrices(model) - 1
    if experts is None:
        wide = mlp_width(model) / e.tp
        return whole.plus(linear(c, rows, columns * wide, width)).plus(
            linear(c, rows, width, wide))
    wide = (experts.width or mlp_width(model)) / e.tp
    local = experts.num_experts / e.ep
    each = rows * experts.top_k / local
    for count, tokens in ((local, each), (experts.num_shared, rows)):
        one = linear(c, tokens, columns * wide, width).plus(linear(c, tokens, width, wide))
        whole = whole.plus(Seconds(count * one.forward, count * one.backward))
    return whole


def tensor_messages(c: Cluster, model: GPTConfig, e: Layout, rows: float) -> Seconds:
    """Two all-reduces of a layer in each direction, or as many gathers and scatters.

    With sequence parallelism backward may gather its inputs again: 6 passes instead of 4.
    """
    if e.tp == 1:
        return Seconds(0, 0)
    s = c.software
    one = ring(c, e.tp, 1, 2 * rows * model.width) * (1 - s.tp_overlap)
    one += s.cross * max(e.tp / c.per_node - 1, 0)
    return Seconds(4 * one, (6 if e.sp and s.regather else 4) * one)


def context_messages(c: Cluster, model: GPTConfig, e: Layout, rows: float) -> Seconds:
    """Keys and values of all cp ranks are gathered; backward once more, and it scatters gradients.
    """
    if e.cp == 1:
        return Seconds(0, 0)
    kv_width = (model.num_kv_heads or model.num_heads) * head_width(model) / e.tp
    one = ring(c, e.cp, e.tp, 2 * 2 * rows * e.cp * kv_width)
    return Seconds(one, 2 * one)


def expert_messages(c: Cluster, model: GPTConfig, e: Layout, rows: float) -> Seconds:
    """Two all-to-alls in each direction (formulas/experts.py)."""
    if e.ep == 1:
        return Seconds(0, 0)
    sent, stride = all_to_all_bytes(model, round(rows), e.ep, 2) / e.tp, e.tp * e.cp
    near = ranks_in_node(c, e.ep, stride)
    far = sent * (e.ep - near) / max(1, e.ep - 1)
    one = max(far / nic(c), (sent - far) / (c.link * c.software.link)) + c.software.latency
    return Seconds(2 * one, 2 * one)


def launch(c: Cluster, e: Layout, stalls: bool = False) -> float:
    """Seconds of the host to launch a layer.

    tp collectives are late beside pipeline messages; in a run that stalls, without them, too.
    """
    s, collectives = c.software, 10 if c.software.regather else 8
    busy = collectives * s.busy * (e.tp - 1) if (e.pp > 1 or stalls) and c.nodes > 1 else 0
    return s.launch * (4 / 3 if e.remat == "full" else 1) + busy
