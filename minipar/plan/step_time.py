"""Seconds of a step: each effect is a function; a stage is as slow as its GPU, or as its host.

    T = m max(t) + bubble · (sum(t) - max(t)) + gradients + optimizer

t are the seconds that one microbatch takes on each rank of the pipeline, m microbatches.  `bubble`
is 1 for 1F1B and 1/v for interleaved (the schedule's own formula).

    t = max(layers on the GPU + head + loss, launching its layers) + messages to neighbours

Narayanan et al. 2021; Korthikanti et al. 2022.
"""

from typing import NamedTuple

from ..formulas import pipelines
from ..formulas.experts import all_to_all_bytes
from ..nn import GPTConfig
from ..parallel.pipeline.schedule.simulate import Times
from ..parallel.registry import STATES, STRATEGIES
from .cluster import Cluster
from .kernels import Seconds, attention, elementwise, linear, loss
from .layout import Layout
from .messages import neighbour, ranks_in_node, ring
from .models import head_width, layer_parameters, mlp_matrices, mlp_width
from .stages import Stages, cut


WEIGHTS = 6             # of a layer, each gathered by itself after ZeRO-1's optimizer


class StepTime(NamedTuple):
    """Seconds of a step, and of its parts: they add up to it."""

    seconds: float
    parts: dict[str, float]


def step_time(c: Cluster, model: GPTConfig, e: Layout, stalls: bool = False) -> StepTime:
    """Predict a step; with `stalls`, one whose pipeline loses time at each message."""
    stages = cut(model, e.pp, e.tp, e.ep, c.software.split)
    layer, host = layer_parts(c, model, e), launch(c, e)
    of_gpu = sum(layer.values())
    rows = e.microbatch * model.context / e.cp
    head = linear(c, rows, model.vocab_size / e.tp, model.width).both
    of_loss = loss(c, model, rows, e.tp)
    hop = pipeline_message(c, model, e, stalls)
    times = []
    for rank, count in enumerate(stages.layers):
        time = count * of_gpu + head * (rank == stages.head) + of_loss * (rank == stages.loss)
        time = max(time, count * host)
        times.append(time + hop * (1 if rank in (0, e.pp - 1) else 2))
    slowest, m = max(times), e.microbatches
    idle = bubble_share(e, of_gpu, layer) * (sum(times) - slowest)
    compute = m * slowest
    parts = parts_of_slowest(stages, times, layer, head, of_loss, hop, host, m)
    own = max(stages.parameters)
    parts["bubble"] = idle
    parts["gradients"] = gradients(c, model, e, stages, slowest, compute)
    parts["optimizer"] = optimizer(c, e, own)
    return StepTime(compute + idle + parts["gradients"] + parts["optimizer"], parts)


def parts_of_slowest(stages: Stages, times: list[float], layer: dict[str, float], head: float,
                     of_loss: float, hop: float, host: float, m: int) -> dict[str, float]:
    """Seconds of all microbatches on the slowest rank, by part."""
    rank = times.index(max(times))
    count = stages.layers[rank]
    parts = {name: m * count * seconds for name, seconds in layer.items()}
    parts["head and loss"] = m * (head * (rank == stages.head) + of_loss * (rank == stages.loss))
    parts["pipeline messages"] = m * hop * (1 if rank in (0, len(times) - 1) else 2)
    parts["waiting for the host"] = max(0.0, m * times[rank] - sum(parts.values()))
    return parts


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
    rate = c.nic * c.software.nic / c.nic_shared_by
    one = max(far / rate, (sent - far) / (c.link * c.software.link)) + c.software.latency
    return Seconds(2 * one, 2 * one)


def launch(c: Cluster, e: Layout) -> float:
    """Seconds of the host to launch a layer; tp collectives are late beside pipeline messages."""
    s, collectives = c.software, 10 if c.software.regather else 8
    busy = collectives * s.busy * (e.tp - 1) if e.pp > 1 and c.nodes > 1 else 0
    return s.launch * (4 / 3 if e.remat == "full" else 1) + busy


def pipeline_message(c: Cluster, model: GPTConfig, e: Layout, stalls: bool) -> float:
    """An activation from a neighbour and its gradient, for all v stages of a rank."""
    if e.pp == 1:
        return 0.0
    one = 2 * e.v * neighbour(c, message_bytes(model, e)) * (1 - c.software.pp_overlap)
    return one + c.software.stall * stalls


def message_bytes(model: GPTConfig, e: Layout) -> float:
    """Bytes of an activation between two stages."""
    return 2 * e.microbatch * model.context / e.cp * model.width / e.tp


def bubble_share(e: Layout, of_gpu: float, layer: dict[str, float]) -> float:
    """The idle time in units of the other ranks' work: 1 for 1F1B, by the schedule's formula."""
    if e.pp == 1:
        return 0.0
    weight = layer["products"] / 3
    forward = (of_gpu - layer["recomputation"]) / 3
    times = Times(forward / e.v, (of_gpu - forward - weight) / e.v, weight / e.v)
    known = pipelines.makespan(e.schedule, e.pp, e.microbatches, times, e.v)
    if known is None:
        return 1.0          # too few microbatches: no better than 1F1B
    return (known / of_gpu - e.microbatches) / (e.pp - 1)


def gradients(c: Cluster, model: GPTConfig, e: Layout, stages: Stages, slowest: float,
              compute: float) -> float:
    """Seconds of the data-parallel messages that nothing hides.

    ZeRO-1's gathers come after the optimizer.  Strategies that send in every microbatch hide
    messages behind all of the step's computation.
    """
    shards, s = e.dp * e.cp, c.software
    cost = STRATEGIES[e.kind].cost
    if shards == 1 or cost is None:
        return 0.0
    own, layers, m = max(stages.parameters), max(stages.layers), e.microbatches

    def pass_of(num_bytes: float) -> float:
        return ring(c, shards, e.tp, num_bytes)

    if cost.reduces_each_microbatch:
        layers = max(1, layers)
        of_layer = ring(c, shards, e.tp, s.weight_bytes * own / layers)
        hidden = cost.messages(m)
        exposed = 2                     # layers: the first gather, and the last reduction
        if not cost.gathers_each_microbatch:
            hidden, exposed = m, layers     # ZeRO-2: all weights, after the optimizer
        return max(0.0, hidden * layers * of_layer - compute) + exposed * of_layer
    sharded = STATES in cost.sharded
    whole = pass_of((s.zero1_bytes if sharded else 2 * s.message_bytes) * own)
    if sharded:
        whole += s.gather * WEIGHTS * layers * (shards - 1)
    hidden = s.zero1_overlap if sharded else s.dp_overlap
    if e.pp > 1 and not s.overlap_beside_pp:
        hidden = 0.0
    window = hidden * (1 + e.pp * (e.v - 1) / e.v) * slowest
    return max(whole - window, whole / 10)


def optimizer(c: Cluster, e: Layout, own: float) -> float:
    """Seconds of Adam: the bytes of weights, gradients and averages that it moves.

    Offloaded states come from the host's memory, and go back.
    """
    cost = STRATEGIES[e.kind].cost
    sharded = cost is not None and STATES in cost.sharded
    kept = own / (e.dp * e.cp if sharded else 1)
    time = c.software.adam_bytes * kept / (c.bandwidth * c.software.stream)
    if "optimizer" in e.offload:
        time += 2 * c.software.master_bytes * kept / c.host
    return time


class StallRange(NamedTuple):
    """Seconds of a step without and with stalls, and the share of such runs that stalled."""

    usual: float
    stalled: float
    share: float

    @property
    def seconds(self) -> float:
        """The likelier one."""
        return self.stalled if self.share > 0.5 else self.usual


def stall_range(c: Cluster, model: GPTConfig, e: Layout) -> StallRange:
    """What a layout cannot tell: a large pipeline stalls, or it does not."""
    usual, share = step_time(c, model, e).seconds, stall_share(c, model, e)
    stalled = step_time(c, model, e, stalls=True).seconds if share else usual
    return StallRange(usual, stalled, share)


def stall_share(c: Cluster, model: GPTConfig, e: Layout) -> float:
    """The share of measured pipelines of that size that stalled.

    It is the last one of the table where tp reaches over four nodes, and a third of what the table
    says for small messages, except in the largest clusters.
    """
    table = c.software.stalled
    if e.pp == 1 or not table:
        return 0.0
    if e.tp >= 4 * c.per_node:
        return table[-1][1]
    share = max((share for nodes, share in table if c.nodes >= nodes), default=0.0)
    small = message_bytes(model, e) < c.software.stalls_from and c.nodes < table[-1][0]
    return share / 3 if small else share
