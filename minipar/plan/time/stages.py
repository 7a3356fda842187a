"""Layers of each pipeline stage: stages are unequal, since the head costs as much as layers.

    even      L/p on each rank, the head on the last one
    ends      one layer less on the first and the last rank (Llama 3)
    greedy    a stage closes once its cost exceeds its share; embedding, cast and loss are parts of
              their own (nanotron)
"""

from functools import lru_cache
from typing import NamedTuple

from ...nn import GPTConfig
from ..models import (
    layer_parameters,
    mlp_parameters,
    position_parameters,
    table_parameters,
    vectors,
)


class Stages(NamedTuple):
    """Layers of each rank, the ranks of the head and of the loss, and parameters of a rank."""

    layers: list[float]
    head: int
    loss: int
    parameters: list[float]         # of one of tp · ep ranks


@lru_cache(10_000)
def cut(model: GPTConfig, pp: int, tp: int, ep: int = 1, split: str = "even") -> Stages:
    """The stages of a model."""
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
    own, norms = float(layer), vectors(model)
    if model.experts:
        own -= mlp_parameters(model) * (1 - 1 / ep)
    parameters = [count * ((own + norms.cut) / tp + norms.whole) for count in layers]
    parameters[0] += table / tp + position_parameters(model)
    parameters[head] += norms.final
    if not model.tied or pp > 1:
        parameters[head] += table / tp
    return Stages(layers, head, loss, parameters)


def greedy(num_layers: int, head: float, pp: int) -> tuple[list[int], int]:
    """Layers of each stage and the stage of the head, which costs as much as `head` layers."""
    counts, stage = [0] * pp, 0
    for done in range(1, num_layers + 1):
        counts[stage] += 1
        if stage < pp - 1 and done > (num_layers + head) * (stage + 1) / pp:
            stage += 1
    return counts, stage
