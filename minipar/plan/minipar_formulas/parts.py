"""The chain of a model's parts, and minipar's own cut of it into the stages of a pipeline.

    embed │ h.0 │ h.1 │ … │ head        cut by parameters; the head is a part of its own

`pipeline/cut_points.py` decides the cut, and the schedule decides which rank has a stage.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ...nn import GPTConfig
from ...parallel.pipeline.cut_points import cut_evenly
from ...parallel.pipeline.schedule.actions import Placement, Schedule, stages_on
from ...parallel.pipeline.schedule.registry import SCHEDULES
from ...parallel.registry import STRATEGIES
from ..cluster import MINIPAR, ClusterSpec
from ..layout import Layout
from ..models import position_parameters, rank_parameters, table_parameters, vectors
from ..time.by_table import table


def refuse(cluster: ClusterSpec, model: GPTConfig) -> None:
    """Raise ValueError for what these formulas do not cover."""
    what = ("experts in some layers" if model.experts and model.experts.every > 1 else
            "fp32" if cluster.dtype == "fp32" else
            "unfused attention" if cluster.software.flash is None else "")
    if what:
        raise ValueError(f"the software {MINIPAR} has no formulas for {what}: choose another one "
                         f"of {cluster.name}, or `minipar simulate`")


def queue_note(layout: Layout) -> str:
    """A sentence on messages that wait for each other's ports, or ""."""
    cost = STRATEGIES[layout.kind].cost
    if cost.reduces_each_microbatch and layout.dp * layout.cp > 1 < layout.pp * layout.tp:
        what = f"{layout.kind} beside a pipeline or tp"
    elif layout.pp > 1 and SCHEDULES[layout.schedule].two_ways:
        what = f"{layout.schedule}, whose stages have two copies,"
    elif layout.ep > 1 < layout.cp:
        what = "experts beside cp"
    else:
        return ""
    return (f"Messages of {what} wait for each other's ports, which these formulas do not know: "
            "seconds may be up to 9 % off.  `minipar simulate` knows them.")


class StageParts(NamedTuple):
    """The parts of one stage: the embedding or not, some layers, the head or not."""

    embed: bool
    layers: int
    head: bool


@lru_cache(1000)
def part_sizes(model: GPTConfig, tp: int, ep: int = 1) -> tuple[float, float, float, float]:
    """Parameters of (the embedding, a layer, the head, a layer's experts) on one of tp ranks.

    With ep the layer is counted without its experts, since other ranks have copies of them.
    Otherwise they are counted with the layer, and the last number is 0.
    """
    table, (layer, experts) = table_parameters(model) / tp, rank_parameters(model, tp, ep)
    layer, experts = (layer + experts, 0.0) if ep == 1 else (layer, experts)
    return table + position_parameters(model), layer, table + vectors(model).final, experts


@lru_cache(1000)
def cut(model: GPTConfig, number: int) -> list[StageParts]:
    """The model cut into that many stages, by the parameters of all ranks together."""
    embed, layer, head, _ = part_sizes(model, 1)
    last = model.num_layers + 1
    bounds = [0, *cut_evenly([embed, *[layer] * model.num_layers, head], number), last + 1]
    return [StageParts(start == 0, min(stop, last) - max(start, 1), stop > last)
            for start, stop in pairwise(bounds)]


def stages_of(model: GPTConfig, layout: Layout) -> list[StageParts]:
    """All stages of a layout."""
    return cut(model, 1 if layout.pp == 1 else len(placement_of(layout)))


@lru_cache(1000)
def placement_of(layout: Layout) -> Placement:
    """The rank of each stage."""
    entry = SCHEDULES[layout.schedule]
    if entry.two_ways:
        return entry.two_ways(layout.pp, layout.microbatches)
    return entry.placement(layout.pp, layout.stages)


def table_of(layout: Layout, num_microbatches: int) -> tuple[Schedule, Placement]:
    """The layout's schedule for that many microbatches, and the placement of its stages."""
    stages = layout.stages if SCHEDULES[layout.schedule].any_stages else None
    return table(layout.schedule, layout.pp, num_microbatches, stages)


@lru_cache(10_000)
def stages_of_rank(layout: Layout, rank: int) -> list[int]:
    """The stages of a rank of the pipeline."""
    return [0] if layout.pp == 1 else stages_on(placement_of(layout), rank)


@lru_cache(10_000)
def rank_sizes(model: GPTConfig, layout: Layout, rank: int) -> list[tuple[float, int]]:
    """Parameters of the parts of a rank, in order, and how many ranks share each.

    A layer's experts are a part of their own; a tied table is counted once on a rank.
    """
    embed, layer, head, experts = part_sizes(model, layout.tp, layout.ep)
    shards = layout.dp * layout.cp
    of_layer = [(layer, shards), (experts, shards // layout.ep)][:2 if layout.ep > 1 else 1]
    found: list[tuple[float, int]] = []
    for stage in (stages_of(model, layout)[i] for i in stages_of_rank(layout, rank)):
        found += [(embed, shards)] * stage.embed + of_layer * stage.layers
        if stage.head:
            is_known = model.tied and (embed, shards) in found
            found.append((vectors(model).final if is_known else head, shards))
    return found


def shared_by(model: GPTConfig, layout: Layout, number: int = 0) -> list[float]:
    """Parameters of each rank of the pipeline: all, or those that `number` ranks share."""
    return [sum(size for size, shards in rank_sizes(model, layout, rank)
                if number in (0, shards)) for rank in range(layout.pp)]
