"""Seconds that gradients and gathered weights add to a step of minipar itself.

A ring goes on by one round wherever backward polls it, between two operations; the rest of its
rounds take their time when the rank waits.  So of n bytes with R rounds, k of them polled,
n (1 - k/R) are exposed:

    DDP, ZeRO-1     buckets of 100 MiB; those of the last layers have most polls before the end
    ZeRO-2          one bucket at a time: the next one's first gradient waits for it
    FSDP            units are layers: gathered while the one before computes; reduced as in ZeRO-2
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ...nn import GPTConfig
from ...parallel.data.ddp import MB, assign_buckets
from ...parallel.registry import PARAMETERS, STATES, STRATEGIES
from ..cluster import ClusterSpec
from ..layout import Layout
from ..time.messages import ranks_in_node
from .layer import LayerSeconds, layer_polls, layer_widths, message
from .parts import Stage, part_sizes

BUCKET = 100 * MB       # of a simulated run
# Polls after some work, counted in simulated runs.  From a unit's last gradient to the next unit's
# first: one, after the sum of the residual stream.  In forward, since a unit's first use by ln_1:
# c_attn, c_proj, ln_2 and two layers of the MLP.  With ep, in the backward of attention's unit:
# ln_2, a sum, two products of c_proj, attention, two of c_attn, ln_1, two on the way to experts.
BETWEEN, FORWARD, BACKWARD = 1, 5, 10


class Ring(NamedTuple):
    """The ranks that share gradients, and seconds of one of its passes over some parameters.

    `experts`: those of experts, which other ranks share.
    """

    cluster: ClusterSpec
    size: int
    stride: int
    experts: bool = False

    @property
    def is_near(self) -> bool:
        """True if all of its messages stay within a node, and take the ports that tp takes."""
        return ranks_in_node(self.cluster, self.size, self.stride) == self.size

    def seconds(self, parameters: float, passes: int = 1) -> float:
        """Of parameters in 16 bits, in one message."""
        return message(self.cluster, self.size, self.stride, 2 * parameters, passes=passes)

    def round_of(self, parameters: float) -> float:
        """Seconds of a round."""
        return self.seconds(parameters) / max(1, self.size - 1)

    def exposed(self, polls: float, passes: int = 1) -> float:
        """The share of a message that is left after some polls."""
        return max(0.0, 1 - polls / (1 + passes * (self.size - 1)))


def rings_of(cluster: ClusterSpec, layout: Layout) -> list[Ring]:
    """The ring of dp and cp, and with ep that of experts; those with several ranks."""
    rings = (Ring(cluster, layout.dp * layout.cp, layout.tp),
             Ring(cluster, layout.dp * layout.cp // layout.ep, layout.tp * layout.ep, True))
    return [ring for ring in rings[:1 + (layout.ep > 1)] if ring.size > 1]


def ring_sizes(ring: Ring, model: GPTConfig, layout: Layout) -> tuple[float, float, float]:
    """Parameters of the embedding, a layer and the head that go over a ring."""
    embed, layer, head, experts = part_sizes(model, layout.tp, layout.ep)
    return (0.0, experts, 0.0) if ring.experts else (embed, layer, head)


def layer_buckets(model: GPTConfig, layout: Layout, of_experts: bool = False) -> tuple[float, ...]:
    """Parameters of each bucket of all layers, as backward completes them."""
    widths = layer_widths(model, layout)
    weights = [widths.inner] * (1 + widths.columns) + [widths.result, widths.qkv]
    experts = [widths.experts * widths.expert] * (1 + widths.columns)
    weights = experts * (of_experts or layout.ep == 1) + weights * (not of_experts)
    return buckets_of(tuple([n * model.width ** 2 for n in weights] * model.num_layers))


@lru_cache(1000)
def buckets_of(weights: tuple[float, ...]) -> tuple[float, ...]:
    """Parameters of each bucket."""
    found = assign_buckets([2 * weight for weight in weights], [BUCKET])
    return tuple([sum([weights[i] for i in members]) for members in found])


def once_a_step(ring: Ring, model: GPTConfig, layout: Layout, stage: Stage, backward: float,
                hides: bool) -> float:
    """What DDP's or ZeRO-1's sums add after the last backward, whose layer takes `backward`."""
    passes = 1 if STATES in STRATEGIES[layout.kind].cost.sharded else 2
    embed, layer, head = ring_sizes(ring, model, layout)
    layers, ends = stage.layers, embed * stage.embed
    top = head * stage.head * (not model.tied or not ends)
    whole = ring.seconds(layers * layer + ends + top, passes)
    if not hides:
        return whole
    polls = layer_polls(ring.cluster, model, layout, ring.round_of(layer))
    left = sum(ring.exposed((i + 0.5) * sum(polls), passes) for i in range(layers))
    left = ring.seconds(left * layer + ends, passes)
    _, of_tp, of_cp, of_ep = polls
    cp_is_near = ranks_in_node(ring.cluster, layout.cp, layout.tp) == layout.cp
    waits = of_tp + of_cp if ring.is_near else 0 if cp_is_near else of_cp
    waits += of_ep / 2 * (meets(ring, layout) > 0)
    has_experts = ring.experts or layout.ep == 1 and model.experts
    queued = layers * ring.seconds(layer, passes) * meets(ring, layout, passes) if has_experts \
        else min(whole / 2, layers * waits * ring.round_of(BUCKET / 2))
    return max(left + queued, whole - layers * backward)


def meets(ring: Ring, layout: Layout, passes: int = 1) -> float:
    """The share of a ring's rounds for which other rounds wait, at the same ports.

    All weights of a layer's experts begin theirs together.  Then messages of tp follow, and an
    all-to-all.
    """
    is_near = ranks_in_node(ring.cluster, layout.ep, layout.tp * layout.cp) == layout.ep
    rounds = layout.ep - 1 + 5 * (layout.tp - 1) * is_near
    return min(1.0, rounds / passes / (ring.size - 1)) * (is_near == ring.is_near)


def gather_weights(ring: Ring, model: GPTConfig, layout: Layout, own: float,
                   share: float) -> float:
    """What the gathers of new weights take, one for each bucket; a rank has a share of the layers.
    """
    more = share * len(layer_buckets(model, layout, ring.experts)) + 1
    return ring.seconds(own) + more * ring.seconds(0)


def each_microbatch(ring: Ring, model: GPTConfig, layout: Layout, stages: Sequence[Stage],
                    layer: dict[str, LayerSeconds]) -> float:
    """What ZeRO-2 or FSDP add to each microbatch."""
    embed, own, head = ring_sizes(ring, model, layout)
    layers, whole = sum(stage.layers for stage in stages), ring.seconds(own)
    of_polls = sum(layer_polls(ring.cluster, model, layout, ring.round_of(own)))
    first, again, after = [max(ring.exposed(polls), 1 - time / whole, 0.0)
                           for polls, time in windows_of(ring, layout, layer, of_polls)]
    ends = ring.seconds(embed) + after * ring.seconds(head) * (not model.tied)
    if PARAMETERS not in STRATEGIES[layout.kind].cost.sharded:
        buckets = layer_buckets(model, layout, ring.experts)
        return layers / model.num_layers * sum(map(ring.seconds, buckets)) + ends
    met = meets(ring, layout) * ring.experts
    return layers * whole * (first + max(again, met) + max(after, met)) + ends + ring.seconds(embed)


def windows_of(ring: Ring, layout: Layout, layer: dict[str, LayerSeconds],
               polls: float) -> list[tuple[float, float]]:
    """Polls and seconds that hide a unit's gather in forward, in backward, and its reduction.

    With ep a layer has two units.  Experts are gathered beside attention, and in backward when
    they are needed at once; attention's unit beside experts, and in backward beside attention.
    """
    whole, experts = LayerSeconds(*map(sum, zip(*layer.values()))), layer["expert products"]
    backward, of_own = sum(whole[1:]), sum(whole[1:]) - sum(experts[1:])
    if layout.ep == 1:
        first = FORWARD - (experts.forward > 0)         # two polls of attention are one round
        return [(first, whole.forward), (polls, backward), (BETWEEN, backward)]
    if ring.experts:
        # forward, since ln_1: c_attn, c_proj, ln_2, router; backward: the router, the rows' way
        # back, the first of three weights' gradients
        return [(4, whole.forward - experts.forward), (3, experts.weights / 3), (BACKWARD, of_own)]
    # forward: the experts' two layers; reduction, until the router's gradient: a sum, adding and
    # picking rows, a product with gates, and the gates' quotient, sum, choice and softmax
    return [(2, experts.forward), (BACKWARD, of_own), (8, of_own)]
