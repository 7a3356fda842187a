"""Seconds that gradients and gathered weights add to a step of minipar itself.

Backward polls a ring between two operations, and each poll moves the ring on by one round.  The
rank has to wait for the rounds that are left.  If k of R rounds are polled, 1 - k/R of the message
is exposed:

    DDP, ZeRO-1     buckets of 100 MiB; those of the last layers have most polls before the end
    ZeRO-2          one bucket at a time: the next bucket's first gradient waits for it
    FSDP            a unit is a layer; it is gathered while the layer before computes, and reduced
                    as in ZeRO-2
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
from .parts import StageParts, part_sizes

BUCKET = 100 * MB       # of a simulated run
# Numbers of polls, counted in simulated runs.  BETWEEN a unit's last gradient and the next unit's
# first there is one, after the sum of the residual stream.  In FORWARD, after a unit's first use by
# ln_1, they follow c_attn, c_proj, ln_2 and two layers of the MLP.  In the BACKWARD of attention's
# unit, with ep, they follow ln_2, a sum, two products of c_proj, attention, two products of c_attn,
# ln_1, and two operations on the way to the experts.
BETWEEN, FORWARD, BACKWARD = 1, 5, 10


class Ring(NamedTuple):
    """A ring of the ranks that share gradients, and the seconds of its messages.

    `experts` is True for the gradients of experts, which other ranks share.
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
        """Seconds for so many parameters, in 16 bits and in one message."""
        return message(self.cluster, self.size, self.stride, 2 * parameters, passes=passes)

    def round_of(self, parameters: float) -> float:
        """Seconds of one round of that message."""
        return self.seconds(parameters) / max(1, self.size - 1)

    def exposed(self, polls: float, passes: int = 1) -> float:
        """The share of a message that is left after some polls."""
        return max(0.0, 1 - polls / (1 + passes * (self.size - 1)))


def rings_of(cluster: ClusterSpec, layout: Layout) -> list[Ring]:
    """The ring of dp and cp, and with ep that of experts, if they have several ranks."""
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


def once_a_step(ring: Ring, model: GPTConfig, layout: Layout, stage: StageParts, backward: float,
                hides: bool) -> float:
    """Seconds that DDP or ZeRO-1 add at the end; the backward of a layer takes `backward`."""
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
    """The share of a ring's rounds for which other messages wait, at the same ports.

    The rings of all weights of a layer's experts begin together.  Then messages of tp follow, and
    an all-to-all.
    """
    is_near = ranks_in_node(ring.cluster, layout.ep, layout.tp * layout.cp) == layout.ep
    rounds = layout.ep - 1 + 5 * (layout.tp - 1) * is_near
    return min(1.0, rounds / passes / (ring.size - 1)) * (is_near == ring.is_near)


def gather_weights(ring: Ring, model: GPTConfig, layout: Layout, own: float,
                   share: float) -> float:
    """Seconds to gather new weights, bucket by bucket; a rank has this `share` of the layers."""
    more = share * len(layer_buckets(model, layout, ring.experts)) + 1
    return ring.seconds(own) + more * ring.seconds(0)


def each_microbatch(ring: Ring, model: GPTConfig, layout: Layout, stages: Sequence[StageParts],
                    layer: dict[str, LayerSeconds]) -> float:
    """Seconds that ZeRO-2 or FSDP add to each microbatch."""
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
    """(polls, seconds) that hide a unit's gather in forward, its gather in backward, its reduction.

    With ep a layer has two units, experts and attention.  The experts are gathered while attention
    computes, but in backward they are needed at once.  Attention's unit is gathered while experts
    compute, and in backward while attention does.
    """
    whole, experts = LayerSeconds(*map(sum, zip(*layer.values()))), layer["expert products"]
    backward, of_own = sum(whole[1:]), sum(whole[1:]) - sum(experts[1:])
    if layout.ep == 1:
        first = FORWARD - (experts.forward > 0)         # two polls of attention are one round
        return [(first, whole.forward), (polls, backward), (BETWEEN, backward)]
    if ring.experts:
        # polls in forward, from ln_1 on: c_attn, c_proj, ln_2, router; in backward: the router, the
        # rows' way back, the first of three weights' gradients
        return [(4, whole.forward - experts.forward), (3, experts.weights / 3), (BACKWARD, of_own)]
    # polls in forward: the experts' two layers; of the reduction, until the router's gradient: a
    # sum, adding and picking rows, a product with gates, the gates' quotient, sum, choice, softmax
    return [(2, experts.forward), (BACKWARD, of_own), (8, of_own)]
