"""One training step of a layout on a simulated cluster: minipar's own code, without numbers.

    layout ─▶ classes of ranks ─▶ model, strategy, optimizer of one rank of each ─▶ SimulatedStep

Arrays have shapes and no numbers; an element has 2 bytes where the cluster computes in 16 bits.
Operations take the seconds of `device.py`, messages those of `fabric.py`.  Routers choose experts
in turn, so that all are used alike.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..backend.shape_array import ShapeArray
from ..comm.collectives import chunk_bounds
from ..comm.mesh import DeviceMesh
from ..comm.trace import Trace
from ..memory.ledger import OFFLOADED
from ..memory.remat.plans import rematerialize
from ..memory.remat.policies import plan_policy
from ..memory.remat.selective import rematerialize_attention
from ..nn import GPT, GPTConfig
from ..optim import AdamW
from ..parallel.context.rank_groups import ContextOptions
from ..parallel.pipeline.schedule.timeline import Interval
from ..parallel.registry import STRATEGIES, make_strategy
from ..parallel.strategy import Microbatch, Strategy
from ..plan.cluster import ClusterSpec
from ..plan.layout import Layout, layout_fault
from .device import Device, DeviceMeter
from .fabric import Fabric
from .folded import FoldedCluster, FoldedCommunicator, FoldedMesh
from .microbatches import WindowLedger, are_steady, share_work
from .offloading import OFFLOADS, make_adamw, offload_activations
from .rank_classes import find_classes
from .rank_log import RankLog

MOST_RANKS = 2048       # at most so many are simulated: each has a model of its own
AXES = ("pp", "dp", "ep", "cp", "tp")


@dataclass
class RankStep:
    """What one rank did in a step: its times, its log, and its memory.

    `memory` has the bytes at its peak by kind, `on_host` the most bytes in the host's memory.
    """

    start: float
    end: float
    log: RankLog
    memory: dict[str, int]
    on_host: int
    intervals: list[Interval]


@dataclass
class SimulatedStep:
    """A simulated step: what the simulated ranks did, and which of them stands for each rank."""

    cluster: ClusterSpec
    model: GPTConfig
    layout: Layout
    stands_for: list[int]
    ranks: dict[int, RankStep]
    trace: Trace = field(default_factory=Trace)

    @cached_property
    def num_ranks_of(self) -> Counter[int]:
        """How many ranks each simulated one stands for."""
        return Counter(self.stands_for)

    @property
    def seconds(self) -> float:
        """Seconds from the first rank's beginning to the last rank's end."""
        return max(rank.end for rank in self.ranks.values()) - min(
            rank.start for rank in self.ranks.values())


def simulate_step(cluster: ClusterSpec, model: GPTConfig, layout: Layout, *,
                  traced: Iterable[int] = (), fold: bool = True, repeat: bool = True,
                  bucket_mb: float = 100.0,
                  slow_ranks: Mapping[int, float] | None = None,
                  slow_links: Mapping[tuple[int, int], float] | None = None) -> SimulatedStep:
    """Simulate a step.  Raises ValueError for a layout that cannot run.

    `slow_ranks` maps ranks, and `slow_links` pairs of them, to the factor by which each is slower.
    Without `fold`, or where ranks share cores, every rank is simulated.  Without `repeat` every
    microbatch is computed.  The ranks that stand for those in `traced` keep a trace.
    """
    check_layout(layout, model, cluster.num_gpus)
    fabric = Fabric(cluster, slow_links)
    slow = slow_ranks or {}
    fold &= not fabric.shares_cores             # else ranks of a class take turns
    stands_for = classes(fabric, model, layout, slow) if fold else [*range(cluster.num_gpus)]
    if len({*stands_for}) > MOST_RANKS:
        raise ValueError(f"{len({*stands_for}):,} ranks differ, and at most {MOST_RANKS:,} can be "
                         "simulated: take fewer GPUs, or leave out what makes ranks differ")
    if missing := [rank for rank in {*traced, *slow} if not 0 <= rank < cluster.num_gpus]:
        raise ValueError(f"there is no rank {missing[0]}: the cluster has 0 … "
                         f"{cluster.num_gpus - 1}")
    world = FoldedCluster(stands_for, fabric, {stands_for[rank] for rank in traced})
    run = StepProgram(cluster, model, layout, slow, repeat, bucket_mb)
    results, _ = world.run(run.main)
    if not are_steady(world.logs.values()):
        return simulate_step(cluster, model, layout, traced=traced, fold=fold, repeat=False,
                             bucket_mb=bucket_mb, slow_ranks=slow_ranks, slow_links=slow_links)
    ranks = {rank.world_rank: results[rank.world_rank] for rank in world.ranks}
    return SimulatedStep(cluster, model, layout, stands_for, ranks, of_step(world.trace, ranks))


def of_step(trace: Trace, ranks: Mapping[int, RankStep]) -> Trace:
    """The events of a trace since each rank began the step, without those of a step before it."""
    return Trace([message for message in trace.messages if message[4] >= ranks[message[0]].start],
                 [span for span in trace.spans if span[2] >= ranks[span[0]].start])


def check_layout(layout: Layout, model: GPTConfig, num_gpus: int) -> None:
    """Raise ValueError for a layout that cannot run."""
    for name in layout.offload.split(",") if layout.offload else ():
        if name not in OFFLOADS:
            raise ValueError(f"--offload {layout.offload}: a simulated step offloads "
                             f"{' and '.join(OFFLOADS)}, with a comma between them, not {name!r}")
    if fault := layout_fault(replace(layout, offload=""), model, num_gpus):
        raise ValueError(fault)
    experts = model.experts
    if experts and experts.capacity_factor is not None and experts.drop == "probability":
        raise ValueError("a simulated step has no probabilities by which experts drop tokens: "
                         "set experts.drop to choice or token")


def classes(fabric: Fabric, model: GPTConfig, layout: Layout,
            slow: Mapping[int, float]) -> list[int]:
    """For each rank the one that stands for it (rank_classes.py)."""
    shape = {"pp": layout.pp, "edp": layout.dp // layout.ep, "ep": layout.ep, "cp": layout.cp,
             "tp": layout.tp}
    places = np.indices(tuple(shape.values())).reshape(len(shape), -1).T.tolist()
    tokens = [stop - start for start, stop in chunk_bounds(model.vocab_size, layout.tp)]
    uneven = model.experts and (layout.microbatch * model.context // layout.cp * model.experts.top_k
                                % model.experts.num_experts)
    program = [(pp, ep if uneven else 0, cp, tokens[tp], slow.get(rank, 1.0))
               for rank, (pp, _, ep, cp, tp) in enumerate(places)]
    per_node = fabric.cluster.per_node

    def kind(source: np.ndarray, dest: np.ndarray) -> np.ndarray:
        kinds = np.array(source // per_node != dest // per_node, dtype=int)
        for number, (pair, _) in enumerate(sorted(fabric.slow.items()), 2):
            kinds = np.where((source == pair[0]) & (dest == pair[1]), number, kinds)
        return kinds
    return find_classes(shape, program, kind, [*((axis,) for axis in shape), ("edp", "ep"),
                                               ("edp", "cp"), ("edp", "ep", "cp")])


def mesh_sizes(layout: Layout) -> dict[str, int]:
    """The sizes of the mesh's axes: those with several ranks, and dp."""
    sizes = {axis: getattr(layout, axis) for axis in AXES}
    return {axis: size for axis, size in sizes.items() if size > 1 or axis == "dp"}


def make_parallel(layout: Layout, model: GPT, mesh: DeviceMesh,
                  bucket_mb: float = 100.0) -> Strategy:
    """The strategy of a layout, on simulated or real ranks."""
    options: dict[str, Any] = {}
    if layout.pp > 1:
        options |= {"schedule": layout.schedule,
                    "virtual_stages": layout.v if layout.v > 1 else None}
    if layout.sp and layout.tp > 1:
        options["sequence_parallel"] = True
    if layout.cp > 1:
        options["context"] = ContextOptions("all_gather")
    if "bucket_mb" in STRATEGIES[layout.kind].options:
        options["bucket_mb"] = bucket_mb
    return make_strategy(layout.kind, model, mesh, **options)


def take_step(strategy: Strategy, optimizer: AdamW, batch: list[Microbatch]) -> None:
    """Take a step, as the training loop does."""
    optimizer.zero_grad()
    strategy.forward_backward(batch)
    strategy.clip_grad_norm(1.0)
    strategy.step(optimizer)


@dataclass
class StepProgram:
    """What all ranks simulate; `main` is the program of each."""

    cluster: ClusterSpec
    model: GPTConfig
    layout: Layout
    slow: Mapping[int, float]
    repeat: bool
    bucket_mb: float

    def main(self, comm: FoldedCommunicator) -> RankStep:
        """Make the model, the strategy and the optimizer of a rank; take one step or two."""
        experts = self.model.experts
        device = Device(self.cluster, self.model, self.layout.tp, self.is_flash,
                        experts.num_experts // self.layout.ep if experts else 0)
        factor = self.slow.get(comm.world_rank, 1.0)
        ledger = WindowLedger()
        with ledger.recording():
            strategy = self.make_strategy(comm)
            optimizer = make_adamw(strategy.slabs, self.dtype, "optimizer" in self.layout.offload)
            moves = "activations" in self.layout.offload
            if self.repeat and not moves:       # copies of one microbatch go on in the next
                share_work(strategy, comm, ledger)
            self.pay_for_loss(strategy, comm, device, factor)
            meter = DeviceMeter(device, lambda name, seconds, flops: comm.spend(
                name, seconds * factor, flops))
            batch = self.microbatches()
            steps = [batch]
            # FSDP can gather ahead from the second step on; ZeRO-2 takes two steps as well
            if strategy.reduces_each_backward:
                steps.insert(0, batch[:1] if strategy.pipeline is None else batch)
            for each in steps:
                ledger.forget_peaks()
                comm.log.forget()
                start = comm.now()
                offload = offload_activations(comm, strategy.model) if moves else None
                with meter.running(), offload.recording() if offload else nullcontext():
                    take_step(strategy, optimizer, each)
        intervals = strategy.pipeline.intervals if strategy.pipeline else []
        memory = {kind: size for kind, size in ledger.at_peak.items() if kind != OFFLOADED}
        return RankStep(start, comm.now(), comm.log, memory, ledger.peak_of[OFFLOADED], intervals)

    @property
    def dtype(self) -> Any:
        """The dtype of weights and activations."""
        return np.float32 if self.cluster.dtype == "fp32" else np.float16

    @property
    def is_flash(self) -> bool:
        """True if attention keeps no probabilities.  (With full remat a recomputed block does.)"""
        return self.cluster.software.flash is not None and self.layout.remat != "full"

    def make_strategy(self, comm: FoldedCommunicator) -> Strategy:
        """The strategy of the layout, with its model."""
        layout, model = self.layout, GPT(self.model)
        model.initialize(dtype=self.dtype, array=ShapeArray((), self.dtype))
        if self.is_flash or layout.remat == "selective":
            rematerialize_attention(model)
        elif layout.remat != "none":
            rematerialize(model, plan_policy(layout.remat))
        return make_parallel(layout, model, FoldedMesh(comm, **mesh_sizes(layout)), self.bucket_mb)

    def pay_for_loss(self, strategy: Strategy, comm: FoldedCommunicator, device: Device,
                     factor: float) -> None:
        """Let the loss take its seconds, which the meter does not see where tp cuts it."""
        def around(forward: Any, logits: Any, *arguments: Any) -> Any:
            rows = logits.shape[0] * logits.shape[1]
            comm.spend("loss both", device.loss_seconds(rows) * factor)
            return forward(logits, *arguments)
        strategy.model.cross_entropy.around(around)

    def microbatches(self) -> list[Microbatch]:
        """The microbatches of a rank, all alike."""
        layout = self.layout
        ids = np.zeros((layout.microbatch, self.model.context), np.int64)
        return [Microbatch(ids, ids, np.arange(layout.microbatch))] * layout.microbatches
