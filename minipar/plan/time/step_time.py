"""Seconds of a step: each effect is a function; a stage is as slow as its GPU, or as its host.

    T = m max(t) + bubble · (sum(t) - max(t)) + gradients + optimizer

t are the seconds that one microbatch takes on each rank of the pipeline, m microbatches.  `bubble`
is 1 for 1F1B and 1/v for interleaved: by the schedule's own formula, or by its table (by_table.py).

    t = max(layers on the GPU + head + loss, launching its layers) + messages to neighbours

Narayanan et al. 2021; Korthikanti et al. 2022.
"""

from typing import NamedTuple

from ...formulas import pipelines
from ...nn import GPTConfig
from ...parallel.pipeline.schedule.simulate import Times
from ...parallel.registry import STATES, STRATEGIES
from ..cluster import Cluster
from ..layout import PREDICTED, Layout
from .kernels import linear, loss
from .layer_time import launch, layer_parts
from .messages import neighbour, ring
from .stages import Stages, stages_of

WEIGHTS = 6             # of a layer, each gathered by itself after ZeRO-1's optimizer


class StepTime(NamedTuple):
    """Seconds of a step, and of its parts: they add up to it."""

    seconds: float
    parts: dict[str, float]


def step_time(c: Cluster, model: GPTConfig, e: Layout, stalls: bool = False) -> StepTime:
    """Predict a step; with `stalls`, one that loses time at each message (stalls.py)."""
    stages = stages_of(c, model, e)
    layer, host = layer_parts(c, model, e), launch(c, e, stalls)
    rows = e.microbatch * model.context / e.cp
    head = linear(c, rows, model.vocab_size / e.tp, model.width).both
    of_loss, hop = loss(c, model, rows, e.tp), pipeline_message(c, model, e, stalls)

    def rank_parts(rank: int) -> dict[str, float]:
        """Seconds of a microbatch on a rank of the pipeline."""
        count = stages.layers[rank]
        parts = {name: count * seconds for name, seconds in layer.items()}
        parts["head and loss"] = head * stages.head[rank] + of_loss * stages.loss[rank]
        parts["waiting for the host"] = max(0.0, count * host - sum(parts.values()))
        parts["pipeline messages"] = hop * (1 if rank in (0, e.pp - 1) else 2)
        return parts

    ranks = [rank_parts(rank) for rank in range(e.pp)]
    times = [sum(parts.values()) for parts in ranks]
    slowest = max(times)
    parts = {name: e.microbatches * seconds
             for name, seconds in ranks[times.index(slowest)].items()}
    parts["bubble"] = bubble_share(e, layer) * (sum(times) - slowest)
    parts["gradients"] = gradients(c, e, stages, slowest)
    parts["optimizer"] = optimizer(c, e, max(stages.parameters))
    return StepTime(sum(parts.values()), parts)


def pipeline_message(c: Cluster, model: GPTConfig, e: Layout, stalls: bool) -> float:
    """An activation from a neighbour and its gradient, for all stages of a rank."""
    if e.pp == 1:
        return 0.0
    one = 2 * e.stages * neighbour(c, message_bytes(model, e)) * (1 - c.software.pp_overlap)
    return one + c.software.stall * stalls


def message_bytes(model: GPTConfig, e: Layout) -> float:
    """Bytes of an activation between two stages."""
    return 2 * e.microbatch * model.context / e.cp * model.width / e.tp


def bubble_share(e: Layout, layer: dict[str, float]) -> float:
    """The idle time in units of the other ranks' work: 1 for 1F1B, by the schedule's formula."""
    if e.pp == 1:
        return 0.0
    of_gpu = sum(layer.values())
    weight = layer["products"] / 3
    forward = (of_gpu - layer["recomputation"]) / 3
    v = e.stages
    times = Times(forward / v, (of_gpu - forward - weight) / v, weight / v)
    known = pipelines.makespan(e.schedule, e.pp, e.microbatches, times, v)
    if known is None and e.schedule not in PREDICTED:
        from .by_table import makespan  # here: a page has formulas alone
        known = makespan(e.schedule, e.pp, e.microbatches, times)
    if known is None:
        return 1.0          # too few microbatches: no better than 1F1B
    return (known / of_gpu - e.microbatches) / (e.pp - 1)


def gradients(c: Cluster, e: Layout, stages: Stages, slowest: float) -> float:
    """Seconds of the data-parallel messages that nothing hides.

    DDP and ZeRO-1 send once a step: a part of the last microbatch, of `slowest` seconds, may hide
    it.  The other strategies send in every microbatch, behind all of the step's computation.  Two
    copies of a stage add up the pieces that they have.
    """
    s, own, layers, m = (c.software, max(stages.parameters),
                         max(1, *stages.layers) * stages.copies, e.microbatches)
    shards, cost = e.dp * e.cp, STRATEGIES[e.kind].cost
    piece = own / (shards if cost is not None and STATES in cost.sharded else 1)
    copies = ring(c, stages.copies, shards * e.tp, s.message_bytes * piece, 2)
    if shards == 1 or cost is None:
        return copies
    if cost.reduces_each_microbatch:
        of_layer = ring(c, shards, e.tp, s.weight_bytes * own / layers)
        if cost.gathers_each_microbatch:        # exposed: the first gather, the last reduction
            sent, exposed = cost.messages(m), 2.0
        else:                                   # exposed: all weights, after the optimizer
            sent, exposed = m, layers
        return max(0.0, sent * layers * of_layer - m * slowest) + exposed * of_layer + copies
    hidden, num_bytes = s.dp_overlap, 2 * s.message_bytes
    late = 0.0
    if STATES in cost.sharded:
        hidden, num_bytes = s.zero1_overlap, s.zero1_bytes
        late = s.gather * WEIGHTS * layers * (shards - 1)
    if e.pp > 1 and not s.overlap_beside_pp:
        hidden = 0.0
    whole = ring(c, shards, e.tp, num_bytes * own) + late
    window = 1 + e.pp * (e.stages - 1) / e.stages           # in microbatches
    return max(whole - hidden * window * slowest, whole / 10) + copies


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
