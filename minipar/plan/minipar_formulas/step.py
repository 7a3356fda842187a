"""Seconds of a step of minipar itself, by part.

    stage ─▶ F, I, W ─▶ the schedule's table, with messages ─▶ ends of all ranks
                                         + reductions of gradients ─▶ the norm, where all ranks wait
                                         + optimizer, gathers
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ...nn import GPTConfig
from ...parallel.pipeline.schedule.dependencies import OPS, cells, needs, rank_of
from ...parallel.pipeline.schedule.registry import SCHEDULES
from ...parallel.pipeline.schedule.simulate import Times, simulate
from ...parallel.registry import PARAMETERS, STATES, STRATEGIES
from ..cluster import ClusterSpec
from ..layout import Layout
from ..models import table_parameters
from ..time import messages
from ..time.by_table import simulated
from ..time.kernels import loss, product, stream
from ..time.replicas import optimizer
from ..time.stages import StageLoads
from .layer import LayerSeconds, layer_seconds, layer_widths, message, shared_vector, vectors_of
from .parts import StageParts, refuse, shared_by, stages_of, stages_of_rank, table_of
from .reductions import each_microbatch, gather_weights, once_a_step, rings_of


def minipar_parts(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> dict[str, float]:
    """Seconds of the step by part, on its slowest rank."""
    refuse(cluster, model)
    layer, stages = layer_seconds(cluster, model, layout), stages_of(model, layout)
    ends = end_seconds(cluster, model, layout)
    times = tuple([stage_times(layer, ends, stage) for stage in stages])
    here = [stages_of_rank(layout, rank) for rank in range(layout.pp)]
    work = [sum(sum(times[stage]) for stage in each) for each in here]
    slowest = here[work.index(max(work))]
    m = layout.microbatches
    if SCHEDULES[layout.schedule].two_ways and layout.pp > 1:
        m /= 2                          # each of its stages computes half of them
    layers = m * sum(stages[stage].layers for stage in slowest)
    parts = {name: layers * (each.forward + each.inputs + each.weights)
             for name, each in layer.items()}
    parts["recomputation"] = layers * sum(each.again for each in layer.values())
    parts["head and loss"] = m * max(work) - sum(parts.values())
    done = timeline_ends(cluster, model, layout, times)
    parts["bubble"] = max(done) - sum(parts.values())
    parts["gradients"] = gradients(cluster, model, layout, done, layer) - max(done)
    sharded = STRATEGIES[layout.kind].cost.sharded
    if STATES in sharded and PARAMETERS not in sharded:
        most = max(stage.layers for stage in stages) / model.num_layers
        parts["gradients"] += sum(
            gather_weights(ring, model, layout, max(shared_by(model, layout, ring.size)), most)
            for ring in rings_of(cluster, layout))
    own, others = shared_by(model, layout), shared_by(model, layout, layout.dp * layout.cp)
    parts["optimizer"] = optimizer(cluster, layout, StageLoads([], [], [], own, [
        a - b for a, b in zip(own, others)]))
    return parts


def gradients(cluster: ClusterSpec, model: GPTConfig, layout: Layout, done: Sequence[float],
              layer: dict[str, LayerSeconds]) -> float:
    """The time when all gradients are summed; `done` has the end of each rank's last backward."""
    cost, rings = STRATEGIES[layout.kind].cost, rings_of(cluster, layout)
    stages, summed = stages_of(model, layout), max(done)
    here = [stages_of_rank(layout, rank) for rank in range(layout.pp)]
    backward = sum(each.again + each.inputs + each.weights for each in layer.values())
    if cost.reduces_each_microbatch:
        summed += layout.microbatches * max(sum(each_microbatch(
            ring, model, layout, [stages[i] for i in each], layer) for ring in rings)
            for each in here)
    else:
        summed = max(end + sum(once_a_step(ring, model, layout, stages[min(each)], backward,
                                           0 in each) for ring in rings)
                     for end, each in zip(done, here))
    if model.tied and all(not {0, len(stages) - 1} <= {*each} for each in here):
        stride = layout.dp * layout.cp * layout.tp * (layout.pp - 1)
        summed += message(cluster, 2, stride, 2 * table_parameters(model) / layout.tp, passes=2)
    return summed


def stage_times(layer: dict[str, LayerSeconds], ends: tuple[LayerSeconds, LayerSeconds],
                stage: StageParts) -> Times:
    """F, I and W of a stage and microbatch."""
    works = [(stage.embed, ends[0]), (stage.head, ends[1]),
             *((stage.layers, each) for each in layer.values())]
    return Times(sum(count * each.forward for count, each in works),
                 sum(count * (each.again + each.inputs) for count, each in works),
                 sum(count * each.weights for count, each in works))


@lru_cache(10_000)
def end_seconds(cluster: ClusterSpec, model: GPTConfig,
             layout: Layout) -> tuple[LayerSeconds, LayerSeconds]:
    """The embedding's and the head's seconds of a microbatch."""
    rows, d, tp = layout.microbatch * model.context / layout.cp, model.width, layout.tp
    widths = layer_widths(model, layout)
    unit = 2 * rows * d * cluster.software.unfused / stream(cluster)
    vocabulary = model.vocab_size / tp
    table_bytes = 2 * vocabulary * d * cluster.software.unfused / stream(cluster)
    one = message(cluster, tp, 1, 2 * rows * d, cluster.software.tp_overlap,
                  1 if widths.gathers else 2)
    embed = LayerSeconds(2 * unit + one + (model.rope is None) * 3 * unit / widths.shared, 0.0,
                         one * (widths.gathers > 0), unit + table_bytes)
    head = LayerSeconds(product(cluster, rows, vocabulary, d) + 2 * unit / widths.shared
                        + loss(cluster, model, rows, tp) + one * (widths.gathers > 0), 0.0,
                        product(cluster, rows, d, vocabulary) + 3 * unit / widths.shared + one,
                        product(cluster, d, vocabulary, rows)
                        + (vectors_of(model) - 2 * model.bias) / 2
                        * shared_vector(cluster, model, layout))
    return embed, head


def timeline_ends(cluster: ClusterSpec, model: GPTConfig, layout: Layout,
                  times: tuple[Times, ...]) -> list[float]:
    """The times when the ranks of a pipeline end their last backward."""
    if layout.pp == 1:
        return [layout.microbatches * sum(times[0])]
    software, m = cluster.software, layout.microbatches
    stride = layout.dp * layout.cp * layout.tp
    near = stride * layout.pp <= cluster.per_node
    rate = (messages.link(cluster) if near else messages.nic(cluster)) / (1 - software.pp_overlap)
    rows = layout.microbatch * model.context / layout.cp
    hop = software.latency * (1 - software.pp_overlap)
    hop += 2 * rows * model.width / layer_widths(model, layout).shared / rate
    few, pipeline = simulated(layout.pp, m), replace(
        Layout(), pp=layout.pp, v=layout.v, schedule=layout.schedule)
    ends = row_ends(pipeline, few, times, hop)
    if few == m:
        return ends
    period = 2 * layout.pp
    less = row_ends(pipeline, few - period, times, hop)
    later = (max(ends) - max(less)) * (m - few) / period
    return [end + later for end in ends]


@lru_cache(10_000)
def row_ends(layout: Layout, m: int, times: Sequence[Times], hop: float) -> list[float]:
    """When the ranks end m microbatches, by the schedule's own table; a message takes `hop`.

    These are the ends of `simulate`, without its timeline: a search asks thousands of times.
    """
    seconds = [{kind: each.of(kind) for kind in OPS} for each in times]
    ends, done = [0.0] * layout.pp, {}
    for rank, cell, inputs in cells_in_order(layout, m):
        now = ends[rank]
        for op, is_message in inputs:
            now = max(now, done[op] + hop if is_message else done[op])
        for action in cell:
            now += seconds[action.stage][action.kind]
        for kind, stage, i in cell:
            for op in OPS[kind]:
                done[op, stage, i] = now
        ends[rank] = now
    return ends


@lru_cache(64)
def cells_in_order(layout: Layout, m: int) -> list[tuple]:
    """All (rank, cell, [(input, whether a message brings it), …]), each after its inputs."""
    schedule, placement = table_of(layout, m)
    rows, left, found = [iter(cells(row)) for row in schedule], [0] * layout.pp, []
    for rank, *_ in simulate(schedule, placement=placement).intervals:
        if not left[rank]:              # the first action of a cell
            cell = next(rows[rank])
            left[rank] = len(cell)
            found.append((rank, cell, [(op, rank_of(placement, *op[1:]) != rank)
                                       for action in cell for op in needs(action, len(placement))]))
        left[rank] -= 1
    return found
