"""Every strategy by its name, in one table, and the function that makes one.

    strategy = make_strategy("zero1", model, comm)                       over all ranks
    strategy = make_strategy("zero1", model, DeviceMesh(comm, dp=2, tp=2))
    strategy = make_strategy("ddp", model, DeviceMesh(comm, pp=4), schedule="1f1b")
    strategy = make_strategy("FILE.py:CLASS", model, comm)            of one's own

The choices of `minipar train`, the costs of `cost/data_parallel.py`, the tests and the page of
compositions follow from the table.  A strategy of your own is one file; with an entry in the table
it has a name like the others.
"""

from functools import cache
from importlib import import_module
from runpy import run_path
from typing import Any, NamedTuple

from ..comm import Communicator
from ..comm.mesh import DeviceMesh
from ..nn import Module
from .data import apart_by_copies as by_copies
from .data.classic_data_parallel import DataParallel
from .data.ddp import DistributedDataParallel
from .data.delayed_averaging import DelayedAveraging
from .data.diloco import DiLoCo
from .data.elastic_averaging import ElasticAveraging
from .data.gossip import Gossip
from .data.local_sgd import LocalSGD
from .pipeline.late_weights.pipedream import PipeDream
from .pipeline.late_weights.pipedream_by_versions import PipeDreamByVersions
from .pipeline.late_weights.two_bw import TwoBW
from .pipeline.terapipe import TeraPipe, WholeSequences
from .strategy import Strategy
from .zero.fsdp import FullyShardedDataParallel, ZeRO3
from .zero.zero1 import ZeRO1
from .zero.zero2 import ZeRO2

STATES, GRADIENTS, PARAMETERS = "optimizer states", "gradients", "parameters"


class PaperCost(NamedTuple):
    """The cost of a strategy by its paper, as three facts from which the formulas follow.

    An all-reduce of Ψ gradients is a reduce-scatter and an all-gather, of Ψ(p-1)/p elements each.
    Each of these strategies does both, once for a batch or once for each microbatch.  FSDP gathers
    twice for a microbatch, unless it keeps the weights.
    """

    sharded: tuple[str, ...] = ()               # kinds of memory that the ranks share: 1/p each
    reduces_each_microbatch: bool = False
    gathers_each_microbatch: bool = False       # for forward, and again for backward

    def messages(self, num_microbatches: int, kept: bool = False) -> int:
        """Elements that a rank sends in a step, in units of Ψ(p-1)/p.

        `kept`: weights stay gathered from forward to backward.
        """
        reduced = num_microbatches if self.reduces_each_microbatch else 1
        gathered = num_microbatches * (1 if kept else 2) if self.gathers_each_microbatch else 1
        return reduced + gathered


class StrategyEntry(NamedTuple):
    """One strategy: `kind(model, ranks, **options)` makes it.

    `options` are the names of its own options.  Every strategy also takes those of `Strategy`
    (MESH_OPTIONS on a mesh with the axes that they are for).  `cost` is the cost by the strategy's
    paper, or None.  `specification` is the strategy on one rank that gives the same results: plain
    training, or what the strategy's file says.
    """

    title: str
    kind: type[Strategy]
    options: tuple[str, ...] = ()
    cost: PaperCost | None = PaperCost()
    specification: type[Strategy] = Strategy


BUCKETS = ("bucket_mb", "first_bucket_mb")
SHARDED_BUCKETS = (*BUCKETS, "whole_parameters")
GATHERS = ("gather_wire", "hybrid_shard", "reshard_after_forward")
EVERYTHING_SHARDED = PaperCost((STATES, GRADIENTS, PARAMETERS), reduces_each_microbatch=True,
                               gathers_each_microbatch=True)
# "dp" is the class DataParallel, as in PyTorch Lightning; other strategies use the axis dp too.
STRATEGIES = {
    "dp": StrategyEntry("rank 0 drives the others (PyTorch's classic DataParallel)", DataParallel,
                        cost=None),
    "ddp": StrategyEntry("gradients summed in buckets (DistributedDataParallel)",
                         DistributedDataParallel, BUCKETS),
    "zero1": StrategyEntry("optimizer states sharded (ZeRO-1)", ZeRO1, SHARDED_BUCKETS,
                           PaperCost((STATES,))),
    "zero2": StrategyEntry("optimizer states and gradients sharded (ZeRO-2)", ZeRO2,
                           SHARDED_BUCKETS,
                           PaperCost((STATES, GRADIENTS), reduces_each_microbatch=True)),
    "zero3": StrategyEntry("everything sharded, each weight gathered by itself (ZeRO-3)", ZeRO3,
                           GATHERS, EVERYTHING_SHARDED),
    "fsdp": StrategyEntry("everything sharded, weights gathered by block (fully_shard)",
                          FullyShardedDataParallel, (*GATHERS, "prefetch", "units",
                                                     "whole_parameters"), EVERYTHING_SHARDED),
    "local_sgd": StrategyEntry("each rank alone, parameters averaged every k steps (local SGD)",
                               LocalSGD, (*BUCKETS, "every", "local_states", "average_first"),
                               cost=None, specification=by_copies.LocalSGDByCopies),
    "diloco": StrategyEntry("each rank alone, an outer step on the mean every k steps (DiLoCo)",
                            DiLoCo, (*BUCKETS, "every", "outer_lr", "outer_momentum", "fragments",
                                     "delay", "mix"),
                            cost=None, specification=by_copies.DiLoCoByCopies),
    "gossip": StrategyEntry("each rank alone, mixed with two neighbours in every step (gossip)",
                            Gossip, BUCKETS, cost=None, specification=by_copies.GossipByCopies),
    "elastic": StrategyEntry("each rank alone, on a spring to a centre (elastic averaging)",
                             ElasticAveraging, (*BUCKETS, "every", "pull"), cost=None,
                             specification=by_copies.ElasticByCopies),
    "delayed": StrategyEntry("each rank by its own gradients, averaged some steps later (DGA)",
                             DelayedAveraging, (*BUCKETS, "delay"), cost=None,
                             specification=by_copies.DelayedByCopies),
    "pipedream": StrategyEntry("a pipeline whose stages step after each microbatch (PipeDream)",
                               PipeDream, ("vertical_sync",), cost=None,
                               specification=PipeDreamByVersions),
    "terapipe": StrategyEntry("a pipeline of slices of tokens (TeraPipe)", TeraPipe,
                              ("num_slices",), cost=None, specification=WholeSequences),
    "two_bw": StrategyEntry("a pipeline without flush, one step late, two versions (2BW)",
                            TwoBW, ("microbatches_per_step",), cost=None,
                            specification=PipeDreamByVersions),
}
COMMON = ("wire",)
PIPELINE_OPTIONS = ("schedule", "virtual_stages", "cuts")
# options of `Strategy`, on a mesh with the axes that give them something to do
MESH_OPTIONS = (*PIPELINE_OPTIONS, "scatter_gather", "sequence_parallel", "context",
                "activation_format")


def strategies_with(option: str) -> list[str]:
    """The strategies whose keyword arguments include `option`, such as "bucket_mb"."""
    return [name for name, entry in STRATEGIES.items()
            if option in entry.options or option in COMMON]


def entry_of(name: str) -> StrategyEntry:
    """The entry of a strategy by name, or of the class at an address: FILE.py:CLASS.

    Raises ValueError for an unknown name, or an address without such a class.
    """
    if ":" in name:
        return load_entry(name)
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}: choose from {', '.join(STRATEGIES)}, or give "
                         "FILE.py:CLASS")
    return STRATEGIES[name]


@cache
def load_entry(address: str) -> StrategyEntry:
    """The entry of a class in a file, or module: its base's options and specification, no cost."""
    file, _, name = address.rpartition(":")
    try:
        names = run_path(file) if file.endswith(".py") else vars(import_module(file))
    except (OSError, ImportError, SyntaxError) as error:
        raise ValueError(f"{address}: {error}: give FILE.py:CLASS, a class that can be loaded") \
            from error
    kind = names.get(name)
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise ValueError(f"{address} is no strategy: give a subclass of minipar's "
                         f"{Strategy.__name__}")
    bases = {entry.kind: entry for entry in STRATEGIES.values()}
    base = next((bases[each] for each in kind.__mro__ if each in bases), None)
    return StrategyEntry(address, kind, base.options if base else (),
                         specification=base.specification if base else Strategy, cost=None)


def make_strategy(name: str, model: Module, ranks: Communicator | DeviceMesh,
                  **options: Any) -> Strategy:
    """The strategy of that name, or address, over the ranks of a communicator or of a mesh.

    `hybrid_shard=k` is short for a mesh that shards over groups of k neighbours: dp=k, and
    `replicate` across the groups.  Raises ValueError for an unknown name, and for an option that is
    unknown or does not fit.
    """
    entry = entry_of(name)
    for option in options.keys() - {*entry.options, *COMMON, *MESH_OPTIONS}:
        others = " or ".join(strategies_with(option)) or "no strategy"
        raise ValueError(f"{option} goes with {others}, not with {name}")
    for option in PIPELINE_OPTIONS:
        if options.get(option) and not (isinstance(ranks, DeviceMesh) and "pp" in ranks):
            raise ValueError(f"{option} goes with a mesh with pp: give DeviceMesh(comm, …) such an "
                             "axis, or leave it out")
    shard = options.pop("hybrid_shard", None)
    return entry.kind(model, ranks if shard is None else cut_dp(ranks, shard), **options)


def cut_dp(ranks: Communicator | DeviceMesh, shard: int) -> DeviceMesh:
    """The mesh with dp cut into groups of `shard` neighbours; `replicate` runs across the groups.

    Raises ValueError unless `shard` divides dp, and for a mesh with `replicate`.
    """
    mesh = ranks if isinstance(ranks, DeviceMesh) else DeviceMesh(ranks, dp=ranks.size)
    dp = mesh.shape.get("dp", 1)
    if "replicate" in mesh:
        raise ValueError("hybrid_shard cuts dp into replicate and dp, and the mesh has replicate "
                         f"already: leave hybrid_shard={shard} out")
    if shard < 1 or dp % shard:
        raise ValueError(f"{dp} ranks cannot be cut into groups of {shard}: "
                         f"choose a divisor of {dp}")
    if "dp" not in mesh:
        return mesh
    dp_at = mesh.axes.index("dp")
    order = [*mesh.axes[:dp_at], "replicate", *mesh.axes[dp_at:]]
    sizes = mesh.shape | {"replicate": dp // shard, "dp": shard}
    return DeviceMesh(mesh.comm, order=order, ep=mesh.ep if "ep" in mesh else None, **sizes)
