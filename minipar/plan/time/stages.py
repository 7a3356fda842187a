"""Layers of each pipeline stage: stages are unequal, since the head costs as much as layers.

    even      L/p on each rank, the head on the last one
    ends      one layer less on the first and the last rank (Llama 3)
    greedy    a stage closes once its cost exceeds its share; embedding, cast and loss are parts of
              their own (nanotron)

Where a schedule says which ranks have a stage, stages have equal numbers of layers:

    v         rank r has stages r and 2p-1-r: the first and the last one are on rank 0
    two ways  rank r has stages r and p-1-r, each for half of the microbatches
"""

from functools import lru_cache
from typing import NamedTuple

from ...nn import GPTConfig
from ...parallel.pipeline.schedule.registry import SCHEDULES
from ..cluster import ClusterSpec
from ..layout import Layout
from ..models import (
    layer_parameters,
    position_parameters,
    rank_parameters,
    table_parameters,
    vectors,
)


class StageLoads(NamedTuple):
    """The parts of a model on each rank of the pipeline."""

    layers: list[float]             # that a microbatch passes on the rank
    head: list[float]               # share of the microbatches whose head it computes …
    loss: list[float]               # … and whose loss
    parameters: list[float]         # of one of tp · ep ranks …
    experts: list[float]            # … those of experts among them
    copies: int = 1                 # of each stage, on different ranks


def stages_of(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> StageLoads:
    """The stages of a layout: as its schedule needs them, else as the cluster's software cuts."""
    entry, split = SCHEDULES[layout.schedule], cluster.software.split
    if layout.pp > 1 and entry.two_ways:
        split = "two ways"
    elif layout.pp > 1 and entry.num_stages > 1 and not entry.any_stages:
        split = "v"
    return cut(model, layout.pp, layout.tp, layout.ep, split)


@lru_cache(10_000)
def cut(model: GPTConfig, pp: int, tp: int, ep: int = 1, split: str = "even") -> StageLoads:
    """The stages of a model on pp ranks, cut as `split` says."""
    num_layers = model.num_layers
    layer, table = layer_parameters(model), table_parameters(model)
    layers, head, loss = [num_layers / pp] * pp, pp - 1, pp - 1
    if split == "ends" and pp > 1:
        layers = [(num_layers + 2) / pp] * pp
        layers[0] -= 1
        layers[-1] -= 1
    elif split == "greedy":
        counts, head = greedy(num_layers, table / layer, pp)
        layers, loss = [*map(float, counts)], min(head + 2, pp - 1)
    elif split == "v":
        head = loss = 0
    own, of_experts = rank_parameters(model, tp, ep)
    experts = [count * of_experts for count in layers]
    parameters = [count * (own + of_experts) for count in layers]
    parameters[0] += table / tp + position_parameters(model)
    parameters[head] += vectors(model).final
    if not model.tied or head:          # else the first stage has it already
        parameters[head] += table / tp
    made = StageLoads(layers, only(head, pp), only(loss, pp), parameters, experts)
    if split != "two ways":
        return made
    down, up = only(pp - 1, pp), only(0, pp)
    ends = [(a + b) / 2 for a, b in zip(down, up)]
    shared = [model.tied * (a + b) * table / tp for a, b in zip(down, up)]
    both = [a + b - c for a, b, c in zip(parameters, parameters[::-1], shared)]
    return StageLoads(layers, ends, ends, both, [2 * each for each in experts], copies=2)


def only(rank: int, pp: int) -> list[float]:
    """1 on that rank, 0 on the others."""
    return [float(r == rank) for r in range(pp)]


def greedy(num_layers: int, head: float, pp: int) -> tuple[list[int], int]:
    """Layers of each stage and the stage of the head, which costs as much as `head` layers."""
    counts, stage = [0] * pp, 0
    for done in range(1, num_layers + 1):
        counts[stage] += 1
        if stage < pp - 1 and done > (num_layers + head) * (stage + 1) / pp:
            stage += 1
    return counts, stage
