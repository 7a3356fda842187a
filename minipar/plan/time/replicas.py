"""Ranks that have the same parameters, and how many of these each rank optimizes.

    of experts      dp · cp / ep ranks have the same parameters
    all others      dp · cp ranks

Rajbhandari et al. 2022 (DeepSpeed-MoE), section 5.
"""

from ...parallel.registry import STATES, STRATEGIES
from ..cluster import ClusterSpec
from ..layout import Layout
from .kernels import stream
from .stages import StageLoads


def replicas(layout: Layout, stages: StageLoads) -> list[tuple[float, int, int, float]]:
    """[(parameters, ranks that have them, stride of these, parameters that a rank optimizes), …].

    The first entry is of the largest stage without its experts, the second of its experts, if any.
    """
    own, shards, cost = max(stages.parameters), layout.dp * layout.cp, STRATEGIES[layout.kind].cost
    sharded = cost is not None and STATES in cost.sharded
    experts = stages.experts[stages.parameters.index(own)]
    groups = [(own - experts, shards, layout.tp),
              (experts, shards // layout.ep, layout.tp * layout.ep)][:2 if experts else 1]
    return [(n, size, stride, n / size if sharded else n) for n, size, stride in groups]


def optimizer(cluster: ClusterSpec, layout: Layout, stages: StageLoads) -> float:
    """Seconds of Adam: the bytes of weights, gradients and averages that it moves.

    Offloaded states come from the host's memory, and go back.
    """
    kept = sum(piece for _, _, _, piece in replicas(layout, stages))
    time = cluster.software.adam_bytes * kept / stream(cluster)
    if "optimizer" in layout.offload:
        time += 2 * cluster.software.master_bytes * kept / cluster.host
    return time
