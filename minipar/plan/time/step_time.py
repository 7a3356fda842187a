"""Seconds of a step: each effect is a function; a stage is as slow as its GPU, or as its host.

    T = m max(t) + bubble · (sum(t) - max(t)) + gradients + optimizer

t are the seconds that one microbatch takes on each rank of the pipeline; m is the number of
microbatches.  `bubble` is 1 for 1F1B and 1/v for interleaved: by the schedule's own formula, or by
its table (by_table.py).

    t = max(layers on the GPU + head + loss, launching its layers) + messages to neighbours

Clusters with the software `minipar` have formulas of their own, in `plan/minipar_formulas/`.
Narayanan et al. 2021; Korthikanti et al. 2022.
"""

from typing import NamedTuple

from ...nn import GPTConfig
from ...parallel.cost import pipelines
from ...parallel.pipeline.schedule.simulate import Times
from ...parallel.registry import STATES, STRATEGIES
from ..cluster import ClusterSpec
from ..layout import PREDICTED, Layout
from .kernels import linear, loss
from .layer_time import launch, layer_parts
from .messages import neighbour, ring
from .replicas import optimizer, replicas
from .stages import StageLoads, stages_of

WEIGHTS = 6             # of a layer, each gathered by itself after ZeRO-1's optimizer


class StepTime(NamedTuple):
    """Seconds of a step, and of its parts, which add up to the step."""

    seconds: float
    parts: dict[str, float]


def step_time(cluster: ClusterSpec, model: GPTConfig, layout: Layout,
              stalls: bool = False) -> StepTime:
    """Predict a step; with `stalls`, one that loses time at each message (stalls.py)."""
    if cluster.software.is_minipar:
        from ..minipar_formulas.step import minipar_parts  # here: the page does without it
        own = minipar_parts(cluster, model, layout)
        return StepTime(sum(own.values()), own)
    stages = stages_of(cluster, model, layout)
    layer, host = layer_parts(cluster, model, layout), launch(cluster, layout, stalls)
    rows = layout.microbatch * model.context / layout.cp
    head = linear(cluster, rows, model.vocab_size / layout.tp, model.width).both
    of_loss = loss(cluster, model, rows, layout.tp)
    hop = pipeline_message(cluster, model, layout, stalls)

    def rank_parts(rank: int) -> dict[str, float]:
        """Seconds of a microbatch on a rank of the pipeline."""
        count = stages.layers[rank]
        parts = {name: count * seconds for name, seconds in layer.items()}
        parts["head and loss"] = head * stages.head[rank] + of_loss * stages.loss[rank]
        parts["waiting for the host"] = max(0.0, count * host - sum(parts.values()))
        parts["pipeline messages"] = hop * (1 if rank in (0, layout.pp - 1) else 2)
        return parts

    ranks = [rank_parts(rank) for rank in range(layout.pp)]
    times = [sum(parts.values()) for parts in ranks]
    slowest = max(times)
    parts = {name: layout.microbatches * seconds
             for name, seconds in ranks[times.index(slowest)].items()}
    parts["bubble"] = bubble_share(layout, layer) * (sum(times) - slowest)
    parts["gradients"] = gradients(cluster, layout, stages, slowest)
    parts["optimizer"] = optimizer(cluster, layout, stages)
    return StepTime(sum(parts.values()), parts)


def pipeline_message(cluster: ClusterSpec, model: GPTConfig, layout: Layout, stalls: bool) -> float:
    """Seconds of a microbatch's messages with one neighbour: activations there, gradients back."""
    if layout.pp == 1:
        return 0.0
    one = neighbour(cluster, message_bytes(model, layout)) * (1 - cluster.software.pp_overlap)
    one *= 2 * layout.stages
    return one + cluster.software.stall * stalls


def message_bytes(model: GPTConfig, layout: Layout) -> float:
    """Bytes of an activation between two stages."""
    return 2 * layout.microbatch * model.context / layout.cp * model.width / layout.tp


def bubble_share(layout: Layout, layer: dict[str, float]) -> float:
    """Idle time over the work of the other ranks on one microbatch; 1 for 1F1B."""
    if layout.pp == 1:
        return 0.0
    of_gpu = sum(layer.values())
    weight = layer["products"] / 3
    forward = (of_gpu - layer["recomputation"]) / 3
    v = layout.stages
    times = Times(forward / v, (of_gpu - forward - weight) / v, weight / v)
    known = pipelines.makespan(layout.schedule, layout.pp, layout.microbatches, times, v)
    if known is None and layout.schedule not in PREDICTED:
        from .by_table import makespan  # here: the page does without it
        known = makespan(layout.schedule, layout.pp, layout.microbatches, times)
    if known is None:
        return 1.0          # too few microbatches: no better than 1F1B
    return (known / of_gpu - layout.microbatches) / (layout.pp - 1)


def gradients(cluster: ClusterSpec, layout: Layout, stages: StageLoads, slowest: float) -> float:
    """Seconds of the data-parallel messages that nothing hides.

    DDP and ZeRO-1 send once a step.  A part of the last 1 + pp (v - 1)/v microbatches, of `slowest`
    seconds each, hides these messages, but at least a tenth of them is exposed.  The other
    strategies send in every microbatch, and all of the step's computation may hide that.  If a
    stage has two copies, these also sum the pieces that they optimize.
    """
    software, m = cluster.software, layout.microbatches
    layers, groups = max(1, *stages.layers) * stages.copies, replicas(layout, stages)
    shards, cost = layout.dp * layout.cp, STRATEGIES[layout.kind].cost
    copies = ring(cluster, stages.copies, shards * layout.tp,
                  software.message_bytes * sum(piece for _, _, _, piece in groups), 2)
    if shards == 1 or cost is None:
        return copies
    if cost.reduces_each_microbatch:
        of_layer = sum(ring(cluster, size, stride, software.weight_bytes * own / layers)
                       for own, size, stride, _ in groups)
        if cost.gathers_each_microbatch:        # exposed: the first gather, the last reduction
            sent, exposed = cost.messages(m), 2.0
        else:                                   # exposed: all weights, after the optimizer
            sent, exposed = m, layers
        return max(0.0, sent * layers * of_layer - m * slowest) + exposed * of_layer + copies
    hidden, num_bytes = software.dp_overlap, 2 * software.message_bytes
    late = 0.0
    if STATES in cost.sharded:
        hidden, num_bytes = software.zero1_overlap, software.zero1_bytes
        late = software.gather * WEIGHTS * layers * (shards - 1)
    if layout.pp > 1 and not software.overlap_beside_pp:
        hidden = 0.0
    whole = sum(ring(cluster, size, stride, num_bytes * own)
                for own, size, stride, _ in groups) + late
    window = 1 + layout.pp * (layout.stages - 1) / layout.stages           # in microbatches
    return max(whole - hidden * window * slowest, whole / 10) + copies
