"""Every data-parallel strategy by its name, in one table, and the function that makes one.

    strategy = make_strategy("zero1", model, comm)                       over all ranks
    strategy = make_strategy("zero1", model, DeviceMesh(comm, dp=2, tp=2))
    strategy = make_strategy("ddp", model, DeviceMesh(comm, pp=4), schedule="1f1b")

The choices of `minipar train`, the costs of `formulas/data_parallel.py`, the tests and the page of
compositions follow from the table.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..comm import Communicator
from ..comm.mesh import DeviceMesh
from ..nn import Module
from ..nn.module import ModuleList
from .data.classic_data_parallel import DataParallel
from .data.ddp import DistributedDataParallel
from .hybrid.data_axis import AllReduceOverDP, FullyShardedOverDP, ShardedStatesOverDP
from .hybrid.hybrid import Hybrid
from .strategy import Strategy
from .wire import UNCOMPRESSED
from .zero.fsdp import FullyShardedDataParallel, fully_shard
from .zero.zero1 import ZeRO1
from .zero.zero2 import ZeRO2
from .zero.zero3 import ZeRO3

STATES, GRADIENTS, PARAMETERS = "optimizer states", "gradients", "parameters"


class PaperCost(NamedTuple):
    """The cost of a strategy by its paper, as three facts from which the formulas follow.

    An all-reduce of Ψ gradients is a reduce-scatter and an all-gather, of Ψ(p-1)/p elements each.
    Every strategy does both: once for a batch, or again for each microbatch.
    """

    sharded: tuple[str, ...] = ()               # kinds of memory of which a rank keeps 1/p
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
    """One strategy: `make(model, comm, **options)` makes it; `options` names what `make` takes.

    `cost` is the strategy's cost by its paper, None without one.  `over_dp` is the class that
    reduces gradients over the dp ranks of a mesh with pp, cp or tp (`hybrid/data_axis.py`).  It is
    None for a strategy that does not go with these axes.
    """

    title: str
    make: Callable[..., Strategy]
    options: tuple[str, ...] = ("wire",)
    cost: PaperCost | None = PaperCost()
    over_dp: type[AllReduceOverDP] | None = None


def blocks(model: Module) -> Iterator[Module]:
    """The members of the model's lists that have parameters: a GPT's blocks, an MLP's layers."""
    return (member for _, module in model.named_modules() if isinstance(module, ModuleList)
            for member in module if member.parameters())


def shard_by_block(model: Module, comm: Communicator, hybrid_shard: int | None = None,
                   **options: Any) -> FullyShardedDataParallel:
    """Apply `fully_shard` to every block, then to the model; return the strategy.

    `hybrid_shard`: shard over this many neighbouring ranks, and replicate over the others.
    """
    if hybrid_shard is not None:
        if hybrid_shard < 1 or comm.size % hybrid_shard:
            raise ValueError(f"{comm.size} ranks cannot be cut into groups of {hybrid_shard}: "
                             f"choose a divisor of {comm.size}")
        mesh = DeviceMesh(comm, replicate=-1, shard=hybrid_shard, order=("replicate", "shard"))
        options |= {"shard": mesh["shard"], "replicate": mesh["replicate"]}
    for part in list(blocks(model)):
        fully_shard(part, comm, **options)
    return fully_shard(model, comm, **options)


EVERYTHING_SHARDED = PaperCost((STATES, GRADIENTS, PARAMETERS), reduces_each_microbatch=True,
                               gathers_each_microbatch=True)
BUCKETS = ("wire", "bucket_mb", "first_bucket_mb")
# "dp" is the class DataParallel, as in PyTorch Lightning; the axis dp of a mesh is any of them.
STRATEGIES = {
    "dp": StrategyEntry("rank 0 drives the others (PyTorch's classic DataParallel)", DataParallel,
                        cost=None),
    "ddp": StrategyEntry("gradients summed in buckets (DistributedDataParallel)",
                         DistributedDataParallel, (*BUCKETS, "comm_hook"),
                         over_dp=AllReduceOverDP),
    "zero1": StrategyEntry("optimizer states sharded (ZeRO-1)", ZeRO1, BUCKETS,
                           PaperCost((STATES,)), ShardedStatesOverDP),
    "zero2": StrategyEntry("optimizer states and gradients sharded (ZeRO-2)", ZeRO2, BUCKETS,
                           PaperCost((STATES, GRADIENTS), reduces_each_microbatch=True)),
    "zero3": StrategyEntry("everything sharded, each weight gathered by itself (ZeRO-3)", ZeRO3,
                           cost=EVERYTHING_SHARDED),
    "fsdp": StrategyEntry(
        "everything sharded, weights gathered by block (fully_shard)", shard_by_block,
        ("wire", "gather_wire", "hybrid_shard", "reshard_after_forward", "prefetch"),
        EVERYTHING_SHARDED, FullyShardedOverDP),
}
HYBRID_STRATEGIES = tuple(name for name, entry in STRATEGIES.items() if entry.over_dp)
HYBRID_OPTIONS = ("schedule", "virtual_stages", "cuts", "sequence_parallel", "scatter_gather",
                  "context", "wire", "gather_wire", "activation_format")


def strategies_with(option: str) -> list[str]:
    """The strategies whose keyword arguments include `option`, such as "bucket_mb"."""
    return [name for name, entry in STRATEGIES.items() if option in entry.options]


def gathers_no_units_error(name: str) -> ValueError:
    """The error of a strategy that is given a `gather_wire` and has no use for it."""
    return ValueError(f"{name} gathers no units of weights: choose "
                      + " or ".join(strategies_with("gather_wire")))


def make_strategy(name: str, model: Module, ranks: Communicator | DeviceMesh,
                  **options: Any) -> Strategy:
    """The strategy of that name over the ranks of a communicator, or over the axes of a mesh.

    On a mesh with pp, cp or tp the strategy is a Hybrid, whose dp ranks work by `name`: one of
    HYBRID_STRATEGIES.  It takes the options of `make_hybrid`; every other strategy takes those of
    its entry in `STRATEGIES`.  Raises ValueError for an unknown name, and for an option that is
    unknown or does not fit.
    """
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}: choose from {', '.join(STRATEGIES)}")
    if isinstance(ranks, DeviceMesh) and (set(ranks.axes) != {"dp"} or "ep" in ranks):
        for option in options.keys() - set(HYBRID_OPTIONS):
            raise ValueError(f"{option} does not go with pp, cp, tp or ep: leave it out")
        return make_hybrid(model, ranks, data_parallel=name, **options)
    entry = STRATEGIES[name]
    for option in options.keys() - set(entry.options):
        if option == "gather_wire":
            raise gathers_no_units_error(name)
        others = " or ".join(strategies_with(option)) or "a mesh with pp, cp or tp"
        raise ValueError(f"{option} goes with {others}, not with {name}")
    return entry.make(model, ranks.comm if isinstance(ranks, DeviceMesh) else ranks, **options)


def make_hybrid(model: Module, mesh: DeviceMesh, schedule: str = "1f1b", *,
                data_parallel: str = "ddp", **options: Any) -> Hybrid:
    """A strategy for the axes of `mesh`, of pp, dp, cp and tp.  Collective.

    `model` is a plain GPT or MLP, initialized; over cp a GPT.  The dp ranks work by the strategy
    `data_parallel`, one of HYBRID_STRATEGIES.  Options are those of Hybrid.
    Raises ValueError for options that do not exist or do not go together.
    """
    entry = STRATEGIES.get(data_parallel)
    if entry is None or entry.over_dp is None:
        raise ValueError(f"{data_parallel} does not go with pp, cp, tp or ep: choose "
                         + " or ".join(HYBRID_STRATEGIES))
    if options.get("gather_wire", UNCOMPRESSED) is not UNCOMPRESSED \
            and "gather_wire" not in entry.options:
        raise gathers_no_units_error(data_parallel)
    return Hybrid(model, mesh, schedule, entry.over_dp, **options)
