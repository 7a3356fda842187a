"""Bytes of the fullest rank of minipar itself, by kind.

    the head's backward begins      what all microbatches in flight keep, logits included; and the
                                    gradient of the logits, or of the head's weight
    a layer's backward begins       what they keep without the head's part; gradients on their way;
                                    with full recomputation, the arrays of one block

The fullest rank needs the larger of these sums.  ZeRO-2 adds gradients that are not cut yet.  FSDP
adds them and two gathered units; a unit is a layer, or its experts.
"""

from dataclasses import replace
from functools import lru_cache

from ...nn import GPTConfig
from ...parallel.pipeline.schedule.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from ...parallel.pipeline.schedule.registry import SCHEDULES
from ...parallel.registry import GRADIENTS, PARAMETERS, STATES, STRATEGIES
from ..cluster import ClusterSpec
from ..layout import Layout, in_flight
from ..time.by_table import simulated
from .layer import deferred_units, kept_units, layer_widths, passing_units
from .parts import part_sizes, rank_sizes, refuse, stages_of, stages_of_rank, table_of
from .reductions import layer_buckets

FIRST_IS_FULLEST = ("1f1b", "gpipe", "interleaved")


def minipar_memory(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> dict[str, float]:
    """Bytes by kind on the rank that needs most."""
    refuse(cluster, model)
    seen, ranks = set(), []
    for rank in range(layout.pp):       # of ranks with equal stages the first has most in flight
        stages = tuple([stages_of(model, layout)[i] for i in stages_of_rank(layout, rank)])
        if stages not in seen or layout.schedule not in FIRST_IS_FULLEST:
            ranks.append(rank_bytes(cluster, model, layout, rank))
        seen.add(stages)
    return max(ranks, key=lambda kinds: sum(kinds.values()))


def rank_bytes(cluster: ClusterSpec, model: GPTConfig, layout: Layout,
               rank: int) -> dict[str, float]:
    """Bytes by kind on a rank of the pipeline."""
    software, parts = cluster.software, rank_sizes(model, layout, rank)
    own, piece = sum(size for size, _ in parts), sum(size / shards for size, shards in parts)
    sharded = STRATEGIES[layout.kind].cost.sharded
    kinds = {name: each * (piece if name in sharded else own) for name, each in (
        (PARAMETERS, software.weight_bytes), (GRADIENTS, software.gradient_bytes),
        (STATES, software.master_bytes))}
    if "optimizer" in layout.offload:
        kinds[STATES] = 0
    unit = 2.0 * layout.microbatch * model.context / layout.cp * model.width
    kept, passing, whole, gathered = max(at_peaks(model, layout, rank, sharded, unit), key=sum)
    return kinds | {GRADIENTS: kinds[GRADIENTS] + whole, "gathered weights": gathered,
                    "activations": kept, "passing arrays": passing}


def at_peaks(model: GPTConfig, layout: Layout, rank: int, sharded: tuple[str, ...],
             unit: float) -> list[tuple[float, float, float, float]]:
    """Bytes (kept, passing, of whole gradients, gathered) at the times that may be the peak."""
    here = [stages_of(model, layout)[stage] for stage in stages_of_rank(layout, rank)]
    has_head = any(stage.head for stage in here)
    _, layer, head, experts = (2 * size for size in part_sizes(model, layout.tp, layout.ep))
    # neither the strategy nor offloaded states change what is kept
    kept = most_kept(model, replace(layout, kind="ddp", offload=""), rank) * unit
    of_head, logits = head_units(model, layout)
    parts = [2 * size for size, shards in rank_sizes(model, layout, rank) if shards > 1]
    largest, both = 0.0, [0.0, 0.0]
    if GRADIENTS in sharded:
        largest = layer + experts if PARAMETERS in sharded or model.experts else 2 * max(
            layer_buckets(model, layout))
    if PARAMETERS in sharded:
        both = [max([a + b for a, b in zip(parts, parts[1:])], default=sum(parts)), head + layer]
    has_layers = any(stage.layers for stage in here)
    less, passing = has_head * (of_head + logits), has_layers * passing_units(model, layout)
    found = [(kept - less * unit, passing * unit, largest, both[0])]
    if has_head:
        whole = head if GRADIENTS in sharded else 0.0
        found += [(kept, logits * unit, 0.0, both[1]), (kept, head, whole, both[1])]
    return found if has_layers or not has_head else found[1:]


def head_units(model: GPTConfig, layout: Layout) -> tuple[float, float]:
    """(what the head keeps of a microbatch without its logits, the logits), in tokens · width."""
    return 1 / layer_widths(model, layout).shared + 1, model.vocab_size / layout.tp / model.width


@lru_cache(10_000)
def most_kept(model: GPTConfig, layout: Layout, rank: int) -> float:
    """The most that microbatches in flight keep on a rank, in tokens · width."""
    stages, layer = stages_of(model, layout), kept_units(model, layout)
    of_head = sum(head_units(model, layout))
    kept = [stage.layers * layer + stage.head * of_head for stage in stages]
    here = stages_of_rank(layout, rank)
    if len(here) == 1 and not layout.schedule.startswith("zb"):
        return in_flight(layout, rank) * kept[here[0]]
    deferred = deferred_units(model, layout)
    now = most = 0.0
    m = layout.microbatches             # fewer show the most, unless all of them are in flight
    m = m if SCHEDULES[layout.schedule].keeps_all else simulated(layout.pp, m)
    for kind, i, _ in table_of(layout, m)[0][rank]:
        later = stages[i].layers * deferred + stages[i].head * of_head
        now += kept[i] if kind == FORWARD else later - kept[i] if kind == INPUT else 0
        most = max(most, now)
        now -= kept[i] if kind == BACKWARD else later if kind == WEIGHT else 0
    return most
