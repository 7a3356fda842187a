"""Buckets."""

from ...nn import GPTConfig
from ...parallel.data.ddp import assign_buckets
from ..layout import Layout
from ..models import mlp_width
from .layer import sizes
from .parts import stages_of, stages_of_rank, part_sizes

LIMITS = (1 << 20, 100 << 20)


def layer_weights(model: GPTConfig, layout: Layout) -> list[float]:
    size, square = sizes(model, layout), model.width ** 2
    return [size.inner * square] * size.columns + [size.inner * square, size.result * square,
                                                  size.qkv * square]


def buckets_of(model: GPTConfig, layout: Layout, rank: int) -> list[float]:
    """Parameters of each bucket of a rank."""
    embed, layer, head = part_sizes(model, layout.tp)
    found = []
    for stage in (stages_of(model, layout)[i] for i in stages_of_rank(layout, rank)):
        weights = [head] * stage.head * (not model.tied) + layer_weights(model, layout) * stage.layers + [embed] * (stage.embed or model.tied and stage.head)
        found += [sum(weights[i] for i in b) for b in assign_buckets([2 * w for w in weights], [100<<20])]
    return found
