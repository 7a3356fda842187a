"""Bytes of the fullest rank, by kind: states, activations in flight, logits.

    states          elements by the strategy's formula (parallel/cost/data_parallel.py), times
                    the bytes of the framework's formats
    activations     of a layer and microbatch, times layers and microbatches in flight (the
                    schedule's formula)
    logits          on the rank of the head: in 16 bits, and in float32 with softmax and gradient

Rajbhandari et al. 2020, section 3; Korthikanti et al. 2022, table 2.
"""

from functools import lru_cache

from ..nn import GPTConfig
from ..parallel.cost.activations import layer_activations
from ..parallel.cost.data_parallel import memory_per_rank
from .cluster import ClusterSpec
from .layout import PREDICTED, Layout, in_flight
from .models import active_ratio, mlp_matrices, mlp_width
from .time.stages import StageLoads, stages_of

LOGITS = 14             # bytes of a logit: bfloat16; float32 logits, softmax, gradient
GIB = 2**30


def memory(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> dict[str, float]:
    """Bytes by kind on the rank that needs most.

    Ranks with the head or the loss are tried.  So is the first of the ranks with equally many
    layers: it has the most microbatches in flight.  If a schedule has no formula, all ranks are
    tried.  Clusters of minipar (`is_minipar`) have formulas of their own.
    """
    if cluster.software.is_minipar:
        from .minipar_formulas.memory import minipar_memory  # here: the page does without it
        return minipar_memory(cluster, model, layout)
    stages = stages_of(cluster, model, layout)
    first = {stages.layers.index(count) for count in {*stages.layers}}
    ranks = [rank_memory(cluster, model, layout, stages, rank) for rank in range(layout.pp)
             if rank in first or stages.head[rank] or stages.loss[rank]
             or layout.schedule not in PREDICTED]
    return max(ranks, key=lambda kinds: sum(kinds.values()))


def total(cluster: ClusterSpec, kinds: dict[str, float]) -> float:
    """The bytes that the device reports: those of all kinds, and of a run without a model."""
    return cluster.software.memory_base + sum(kinds.values())


def rank_memory(cluster: ClusterSpec, model: GPTConfig, layout: Layout, stages: StageLoads,
                rank: int) -> dict[str, float]:
    """Bytes by kind on a rank of the pipeline."""
    software, rows = cluster.software, layout.microbatch * model.context / layout.cp
    layers, shards = round(stages.layers[rank] * stages.copies), layout.dp * layout.cp
    experts = round(stages.experts[rank])
    others = elements(layout.kind, round(stages.parameters[rank]) - experts, layers, shards)
    of_experts = elements(layout.kind, experts, layers, shards // layout.ep)
    parameters, gradients, states, gathered = [a + b for a, b in zip(others, of_experts)]
    if "optimizer" in layout.offload:
        states = 0
    passed = stages.layers[rank] / layout.stages * in_flight(layout, rank)
    kinds = {"parameters": software.weight_bytes * parameters,
             "gradients": software.gradient_bytes * gradients,
             "optimizer states": software.master_bytes * states,
             "gathered weights": software.weight_bytes * gathered,
             "activations": passed * layer_bytes(cluster, model, layout, layout.remat)}
    if layout.remat == "full":
        kinds["recomputed layer"] = layer_bytes(cluster, model, layout, "none")
    if software.activations == "minipar":
        kinds["activations"] += 8 * rows * (rank == 0)      # the token ids
        if stages.head[rank]:
            width, vocabulary = model.width, model.vocab_size / layout.tp
            kinds["logits"] = 4 * rows * (2 * width + 1 + vocabulary)
        return kinds
    kinds["activations"] += software.kept * 4 * rows * model.width
    if stages.head[rank] or stages.loss[rank]:
        kinds["logits"] = rows * LOGITS * model.vocab_size / layout.tp
    return kinds


@lru_cache(100_000)
def elements(kind: str, own: int, layers: int, shards: int) -> tuple[int, int, int, int]:
    """Numbers of parameters, gradients, optimizer states and gathered weights on a rank.

    Units are layers, as in FSDP.
    """
    units = [own // max(1, layers)] * max(1, layers)
    units[0] += own - sum(units)
    found = memory_per_rank(kind, units, shards, itemsize=1, num_states=1, uses=range(len(units)))
    return (found["parameters"], found["gradients"], found["optimizer states"],
            found["communication"])


def layer_bytes(cluster: ClusterSpec, model: GPTConfig, layout: Layout, remat: str) -> float:
    """Bytes that a layer keeps of a microbatch for backward, on one rank.

    Software with activations="minipar" has those of parallel/cost/activations.py.  For others,
    bytes of a token in 16 bits:

        Llama-like      16 for each width, 8 for each width of the MLP
        GPT-like        34 for each width, with dropout's masks; attention that is not fused keeps
                        5 more for each head and other token
        remat full      2 for each width

    tp cuts all but 10 for each width; with sequence parallelism it cuts these as well.
    """
    if cluster.software.activations == "minipar":
        cut = "sequence" if layout.sp and layout.tp > 1 else "tensor"
        return sum(layer_activations(model, layout.microbatch, layout.tp, cut, remat,
                                     cp=layout.cp).values())
    rows, h = layout.microbatch * model.context / layout.cp, model.width
    shared = layout.tp if layout.sp else 1
    if remat == "full":
        return cluster.software.kept * rows * 2 * h / shared
    if mlp_matrices(model) == 3:
        cut = 6 * h + 8 * mlp_width(model) * active_ratio(model)
    else:
        fused = cluster.software.flash is not None or remat == "selective"
        cut = 24 * h + (0 if fused else 5 * model.num_heads * model.context / layout.cp)
    whole = 10 * h / shared
    if layout.sp and layout.pp == 1 and cluster.software.keeps_gathered:
        whole += 4 * h * (1 - 1 / layout.tp)         # of attention and of the MLP
    return cluster.software.kept * rows * (whole + cut / layout.tp)
