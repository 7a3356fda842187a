"""Seconds of a step of minipar itself, by part.

    stage ─▶ F, I, W ─▶ the schedule's table, with messages ─▶ ends of all ranks
                                         + what gradients add on each ─▶ the norm: all have waited
                                         + optimizer, gathers
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from ...nn import GPTConfig
from ...parallel.pipeline.schedule.dependencies import OPS, Op, cells, needs, rank_of, sent
from ...parallel.pipeline.schedule.simulate import Times
from ...parallel.registry import PARAMETERS, STATES, STRATEGIES
from ..cluster import Cluster
from ..layout import Layout
from ..models import table_parameters
from ..time import messages
from ..time.by_table import simulated
from ..time.kernels import loss, product, stream
from .layer import Work, layer_work, message, shared_vector, sizes, vectors_of
from .parts import rank_sizes, refuse, stages_of, stages_of_rank, table_of
from .reductions import each_microbatch, layer_buckets, once_a_step, ring_of


def own_parts(cluster: Cluster, model: GPTConfig, layout: Layout) -> dict[str, float]:
    """Seconds of the step by part, on its slowest rank."""
    refuse(cluster, model)
    layer, m = layer_work(cluster, model, layout), layout.microbatches
    ends = end_work(cluster, model, layout)
    stages = stages_of(model, layout)
    times = [stage_times(layer, ends, stage.embed, stage.layers, stage.head) for stage in stages]
    here = [stages_of_rank(layout, rank) for rank in range(layout.pp)]
    work = [sum(sum(times[stage]) for stage in each) for each in here]
    slowest = work.index(max(work))
    copies = 2 if layout.pp > 1 and len(here[0]) * layout.pp > len(stages) else 1
    parts = {}
    for name, each in layer.items():
        layers = sum(stages[stage].layers for stage in here[slowest]) / copies
        parts[name] = m * layers * (each.forward + each.inputs + each.weights)
    parts["recomputation"] = m * layers * sum(each.again for each in layer.values())
    parts["head and loss"] = m * work[slowest] / copies - sum(parts.values())
    done = timeline_ends(cluster, model, layout, tuple(times))
    parts["bubble"] = max(done) - sum(parts.values())
    backward = sum(each.again + each.inputs + each.weights for each in layer.values())
    ring, cost = ring_of(cluster, layout), STRATEGIES[layout.kind].cost
    reduced = max(done)
    if ring.size > 1 and cost is not None:
        if cost.reduces_each_microbatch:
            forward = sum(each.forward for each in layer.values())
            reduced += m * max(each_microbatch(ring, model, layout, [stages[i] for i in each],
                                               forward, backward) for each in here)
        else:
            reduced = max(done[rank] + once_a_step(
                ring, model, layout, [stages[min(here[rank])]], backward, 0 in here[rank])
                for rank in range(layout.pp))
    if model.tied and layout.pp > 1 and not any(0 in each and len(stages) - 1 in each
                                                for each in here):
        reduced += message(cluster, 2, layout.dp * layout.tp * layout.cp * (layout.pp - 1),
                           2 * table_parameters(model) / layout.tp, passes=2)
    parts["gradients"] = reduced - max(done)
    own = max(sum(rank_sizes(model, layout, rank)) for rank in range(layout.pp))
    sharded = cost.sharded if cost is not None else ()
    kept = own / ring.size if STATES in sharded else own
    parts["optimizer"] = cluster.software.adam_bytes * kept / stream(cluster)
    if "optimizer" in layout.offload:
        parts["optimizer"] += 2 * cluster.software.master_bytes * kept / cluster.host
    if STATES in sharded and PARAMETERS not in sharded and ring.size > 1:
        buckets = len(layer_buckets(model, layout)) / model.num_layers * max(
            stage.layers for stage in stages) + 2
        parts["gradients"] += ring.seconds(own) + (buckets - 1) * ring.seconds(0)
    return parts


def stage_times(layer: dict[str, Work], ends: tuple[Work, Work], embed: bool, layers: int,
                head: bool) -> Times:
    """F, I and W of a stage and microbatch."""
    forward = again = inputs = weights = 0.0
    for count, each in [(embed, ends[0]), (head, ends[1]), *((layers, w) for w in layer.values())]:
        forward += count * each.forward
        again += count * each.again
        inputs += count * each.inputs
        weights += count * each.weights
    return Times(forward, again + inputs, weights)


@lru_cache(10_000)
def end_work(cluster: Cluster, model: GPTConfig, layout: Layout) -> tuple[Work, Work]:
    """The embedding's and the head's seconds of a microbatch."""
    rows, d, tp = layout.microbatch * model.context / layout.cp, model.width, layout.tp
    size = sizes(model, layout)
    unit = 2 * rows * d * cluster.software.unfused / stream(cluster)
    vocabulary = model.vocab_size / tp
    table_bytes = 2 * vocabulary * d * cluster.software.unfused / stream(cluster)
    one = message(cluster, tp, 1, 2 * rows * d, cluster.software.tp_overlap,
                  1 if size.gathers else 2)
    embed = Work(2 * unit + one + (model.rope is None) * 3 * unit / size.shared, 0.0,
                 one * (size.gathers > 0), unit + table_bytes)
    head = Work(product(cluster, rows, vocabulary, d) + 2 * unit / size.shared
                + loss(cluster, model, rows, tp) + one * (size.gathers > 0), 0.0,
                product(cluster, rows, d, vocabulary) + 3 * unit / size.shared + one,
                product(cluster, d, vocabulary, rows) + (vectors_of(model) - 2 * model.bias) / 2
                * shared_vector(cluster, model, layout))
    return embed, head


def timeline_ends(cluster: Cluster, model: GPTConfig, layout: Layout,
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
    hop += 2 * rows * model.width / sizes(model, layout).shared / rate
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
    """When the ranks end m microbatches, by the schedule's own table; a message takes `hop`."""
    rows, num_ops = program(layout, m)
    arrived: list[float | None] = [None] * num_ops
    waiting: dict[int, int] = {}                # the rank that waits for an op
    clocks, places = [0.0] * layout.pp, [0] * layout.pp
    ready = [*range(layout.pp)]
    seconds = [{kind: each.of(kind) for kind in OPS} for each in times]
    while ready:
        rank = ready.pop()
        row, now, place = rows[rank], clocks[rank], places[rank]
        for needed, actions, outs in row[place:]:
            if missing := [op for op in needed if arrived[op] is None]:
                waiting[missing[0]] = rank
                break
            now = max([now, *[arrived[op] for op in needed]]) + sum(
                [seconds[stage][kind] for stage, kind in actions])
            for op in outs:
                arrived[op] = now + hop
                if op in waiting:
                    ready.append(waiting.pop(op))
            place += 1
        clocks[rank], places[rank] = now, place
    return clocks


@lru_cache(64)
def program(layout: Layout, m: int) -> tuple[list[list[tuple]], int]:
    """Each rank's cells: ops of other ranks that they need, stages and kinds, ops that they send.

    And the number of ops, which are numbered.
    """
    schedule, placement = table_of(layout, m)
    number: dict[tuple, int] = {}

    def far(ops: Iterable[Op], rank: int) -> list[int]:
        return [number.setdefault((*op,), len(number)) for op in ops
                if rank_of(placement, *op[1:]) != rank]
    rows = []
    for rank, row in enumerate(schedule):
        made = []
        for cell in cells(row):
            out = [message for action in cell if (message := sent(action, len(placement)))]
            made.append((
                far([op for action in cell for op in needs(action, len(placement))], rank),
                [(stage, kind) for kind, stage, _ in cell],
                [number.setdefault((*op,), len(number)) for op, _ in out]))
        rows.append(made)
    return rows, len(number)
