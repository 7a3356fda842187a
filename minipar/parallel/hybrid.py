"""Three ways at once: layers over pp, each layer over tp, the rows of a batch over dp.

    pp 0: stage 0          pp 1: stage 1          one microbatch goes from left to right (pp),
    ┌────────┬────────┐    ┌────────┬────────┐    all of a layer's pieces work on it (tp),
    │ A₀  dp0│ A₁     │ ─▶ │ B₀  dp0│ B₁     │    and the rows of the batch that another dp has
    ├────────┼────────┤    ├────────┼────────┤    meet these only when gradients are summed
    │ A₀  dp1│ A₁     │ ─▶ │ B₀  dp1│ B₁     │
    └────────┴────────┘    └────────┴────────┘
       tp 0     tp 1          tp 0     tp 1

Each axis is a strategy of its own; only a stage's slab (stage_slab.py) knows both pp and tp.
`parallelize` makes the layers tensor-parallel, and a `Pipeline` cuts that model into stages.  When
the schedule has run, the dp ranks of each stage, which have the same parameters, sum their
gradients.  With FSDP they have shards instead, and gather and reduce while the schedule runs
(fsdp_pipeline.py).

    g(parameter) = Σ over dp  Σ over microbatches  dL/dparameter,    L = Σ losses / targets of all

No rank divides again.  Targets and losses are counted once: on the last stage, by tp rank 0.  The
norm of all gradients is a sum over pp, over tp where parameters are cut, and over dp where ZeRO or
FSDP shards the gradients.  Narayanan et al. 2021 (arXiv 2104.04473); Rajbhandari et al. 2020.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from ..autograd import Tensor
from ..comm import Communicator, Trace
from ..comm.collectives import all_gather, broadcast, chunk_bounds
from ..comm.mesh import DeviceMesh
from ..nn import Module
from ..nn.chain import ChainPart
from ..number_formats import Format
from ..optim import Optimizer
from .conjugate import gather_from, scatter_to
from .errors import NEEDS_ALL_STAGES_MESSAGE, reduced_already
from .expert.apply import distribute_experts
from .pipeline.executor import Pipeline
from .pipeline.fsdp_pipeline import NEEDS_WHOLE_BATCH_MESSAGE, FullyShardedPipeline
from .pipeline.schedule.registry import make_schedule
from .pipeline.schedule.timeline import Timeline
from .pipeline.stage_shards import StageShard
from .pipeline.stage_slab import StageBuffer, StageSlab
from .strategy import Microbatch, Strategy
from .tensor.apply import KINDS, parallelize
from .wire import UNCOMPRESSED, Wire

AXES = ("pp", "dp", "tp")


class AllReduceOverDP:
    """ddp: the dp ranks of a stage sum its gradients, and each keeps all of them.

    Base of the other ways.  `slabs` are what this rank optimizes.  The ranks of dp_of(slab) have
    the same parameters, those of comm_of(slab) all parts of a sharded slab.
    """

    pipeline_class: type[Pipeline] = Pipeline
    refusal: str | None = None          # why a rank must not call backward without its dp ranks

    def __init__(self, pipeline: Pipeline, dp_of: Callable[[StageSlab], Communicator],
                 comm_of: Callable[[StageSlab], Communicator], wire: Wire, gather_wire: Wire):
        self.pipeline, self.dp_of, self.comm_of, self.wire = pipeline, dp_of, comm_of, wire
        self.shard(gather_wire)

    def shard(self, gather_wire: Wire) -> None:
        """Set `slabs`, cutting the pipeline's if need be."""
        self.slabs: Sequence[StageBuffer] = self.pipeline.slabs

    def reduce(self) -> None:
        """Sum over dp the gradients of a batch, which the schedule has computed."""
        for slab in self.pipeline.stage_slabs:
            self.wire.all_reduce(self.dp_of(slab), slab.grad, key=slab)

    def gather(self) -> None:
        """Give each dp rank the parameters that the optimizer has updated elsewhere."""


class ShardedStatesOverDP(AllReduceOverDP):
    """zero1: each dp rank optimizes one piece of a slab, and all gather the parameters."""

    slabs: list[StageShard]

    def shard(self, gather_wire: Wire) -> None:
        """Cut each slab into pieces."""
        slabs = self.pipeline.stage_slabs
        self.slabs = [StageShard(slab, self.dp_of(slab), self.comm_of(slab)) for slab in slabs]

    def reduce(self) -> None:
        """Sum this rank's piece of the gradients over dp."""
        for slab, shard in zip(self.pipeline.stage_slabs, self.slabs):
            self.wire.reduce_scatter(shard.dp, slab.grad, shard.counts, key=slab)
            shard.has_grad = True

    def gather(self) -> None:
        """Gather the pieces of the parameters."""
        for slab, shard in zip(self.pipeline.stage_slabs, self.slabs):
            all_gather(shard.dp, shard.data, counts=shard.counts, out=slab.data)


class FullyShardedOverDP(AllReduceOverDP):
    """fsdp: each dp rank keeps shards, which the pipeline gathers and reduces as it runs."""

    pipeline_class = FullyShardedPipeline
    pipeline: FullyShardedPipeline
    refusal = NEEDS_WHOLE_BATCH_MESSAGE

    def shard(self, gather_wire: Wire) -> None:
        """Cut the parameters of the pipeline into shards."""
        self.pipeline.shard(self.dp_of, self.comm_of, self.wire, gather_wire)
        self.slabs = self.pipeline.slabs

    def reduce(self) -> None:
        """Do nothing: the gradients were reduced during the schedule."""


class Hybrid(Strategy):
    """A strategy for the axes pp, dp and tp of `mesh`, as far as it has them; see `make_hybrid`.

    Over pp `model` is cut into stages, at `cuts` (see Staged), and trained by `schedule` (see
    make_schedule).  Over tp `parallelize` splits layers, with `sequence_parallel` if it is a GPT.
    Over dp gradients are summed, in the way of the class `over_dp`; over ep experts are cut.

    With `scatter_gather` each tp rank sends a piece of the activations between a GPT's stages.
    `wire` encodes gradients over dp, `gather_wire` the weights that fsdp gathers, and
    `activation_format` the activations.  The gradient of a tied embedding is summed over its stages
    in full.  `pipeline` runs the schedule; after a batch it has `intervals` and `most_in_flight`.
    """

    def __init__(self, model: Module, mesh: DeviceMesh, schedule: str = "1f1b",
                 over_dp: type[AllReduceOverDP] = AllReduceOverDP,
                 virtual_stages: int | None = None, cuts: Sequence[int] | None = None,
                 sequence_parallel: bool = False, scatter_gather: bool = False,
                 wire: Wire = UNCOMPRESSED, gather_wire: Wire = UNCOMPRESSED,
                 activation_format: Format | None = None):
        check_axes(model, mesh, sequence_parallel, scatter_gather)
        super().__init__(model, mesh.comm, wire)
        self.mesh = mesh
        self.pp, self.dp, self.tp = (along(mesh, axis) for axis in AXES)
        self.edp, self.counts_tokens = along(mesh, "edp"), self.tp.rank == 0
        if self.tp.size > 1:
            parallelize(model, self.tp, sequence_parallel, message_format=activation_format)
        if "ep" in mesh:
            distribute_experts(model, mesh["ep"])
        schedule_for = partial(make_schedule, schedule, self.pp.size, virtual_stages=virtual_stages)
        self.pipeline = over_dp.pipeline_class(model, self.pp, schedule_for, cuts,
                                               activation_format)
        if scatter_gather:
            send_pieces(self.pipeline, self.tp)
        self.pipeline.replicas = self.dp
        for slab in self.pipeline.stage_slabs:
            slab.comm = along(mesh, "pp", *["ep"] * bool(slab.ep), *["tp"] * bool(slab.tp))
            broadcast(self._replicas_of(slab), slab.data, out=slab.data)
        self.can_accumulate = self.pipeline.can_accumulate
        self.over_dp = over_dp(self.pipeline, self._replicas_of, self._all_parts, wire, gather_wire)
        self.slabs = self.over_dp.slabs

    def _replicas_of(self, slab: StageSlab) -> Communicator:
        """The ranks that have the same parameters."""
        return self.edp if slab.ep else self.dp

    def _all_parts(self, slab: StageSlab) -> Communicator:
        """The ranks that have the other parts of a slab that is cut over dp."""
        return along(self.mesh, *(AXES if slab.tp else ("pp", "dp")))

    def forward_context(self) -> AbstractContextManager:
        """Context for a loss; raises ValueError with pp or fsdp, which need the whole batch."""
        refusal = NEEDS_ALL_STAGES_MESSAGE if self.pp.size > 1 else self.over_dp.refusal
        if refusal:
            raise ValueError(refusal)
        return super().forward_context()

    def backward(self, loss: Tensor) -> None:
        """Compute and reduce the gradients of `loss`; see `forward_context`."""
        with self.forward_context():
            super().backward(loss)

    def rows(self, num_rows: int) -> range:
        """The rows of this rank's place along dp; its pp and tp ranks process the same ones."""
        return range(*chunk_bounds(num_rows, self.dp.size)[self.dp.rank])

    def count_targets(self, microbatches: Sequence[Microbatch]) -> int:
        """The number of targets on tp rank 0 of the last stage, and 0 on the other ranks."""
        return self.pipeline.count_targets(microbatches) if self.tp.rank == 0 else 0

    def run_batch(self, microbatches: Sequence[Microbatch], loss_divisor: float, seed: int = 0,
                  step: int = 0) -> float:
        """Run the schedule and reduce; raises ValueError unless earlier gradients were zeroed."""
        if self._is_reduced and any(slab.has_grad for slab in self.pipeline.slabs):
            raise reduced_already()
        with nullcontext() if self.is_synchronizing else self.pipeline.no_sync():
            loss = self.pipeline.run_batch(microbatches, loss_divisor, seed, step)
        self._finish_reductions()
        return loss if self.tp.rank == 0 else 0.0

    def run_microbatch(self, batch: Microbatch, loss_divisor: float, seed: int = 0,
                       step: int = 0) -> float:
        """Forward and backward of a batch of one microbatch; this rank's share of the loss."""
        return self.run_batch([batch], loss_divisor, seed, step)

    def after_backward(self) -> None:
        """Reduce the gradients over dp; the schedule has summed those of tied weights over pp."""
        self.over_dp.reduce()

    def timeline(self, trace: Trace | None = None) -> Timeline | None:
        """The timeline of rank 0's pipeline in the last batch; None without pp.  Collective."""
        return self.pipeline.timeline(trace) if self.pp.size > 1 else None

    def update(self, optimizer: Optimizer) -> None:
        """Step, and let the dp ranks gather the parameters that others have updated."""
        self.pipeline.update(optimizer)
        self.over_dp.gather()


def along(mesh: DeviceMesh, *axes: str) -> Communicator:
    """The ranks along those of the axes that the mesh has; this rank alone if it has none."""
    here = tuple(axis for axis in axes if axis in mesh)
    found = mesh[here] if here else mesh.comm.split(mesh.comm.rank)
    assert found is not None        # every rank gave split a color
    return found


def send_pieces(pipeline: Pipeline, tp: Communicator) -> None:
    """Let each tp rank send 1/t of the activation, and the tp ranks of the next stage gather it.

    Backward does the same with gradients.  Narayanan et al. 2021, section 4.1 ("scatter/gather").
    """
    for stage, parts in enumerate(pipeline.stages):
        if stage:
            parts.insert(0, ChainPart("gather", lambda x: gather_from(x, tp, -1), [], False))
        if stage + 1 < pipeline.num_stages:
            parts.append(ChainPart("scatter", lambda y: scatter_to(y, tp, -1), [], False))


def check_axes(model: Module, mesh: DeviceMesh, sequence_parallel: bool,
               scatter_gather: bool) -> None:
    """Raise ValueError for axes that do not exist, and for options that do not go with the axes."""
    others = [axis for axis in mesh.axes if axis not in AXES]
    if others:
        raise ValueError(f"a mesh for this has the axes pp, dp and tp, not {', '.join(others)}")
    if sequence_parallel and mesh.shape.get("tp", 1) == 1:
        raise ValueError("sequence_parallel splits tokens over the ranks of tp, and here tp "
                         "has only one: leave it off, or give the mesh tp=2")
    cut = [mesh.shape.get(axis, 1) > 1 for axis in ("pp", "tp")]
    kind = KINDS.get(type(model))
    whole = kind is not None and kind.parts_end_whole and not sequence_parallel
    if scatter_gather and not (all(cut) and whole):
        raise ValueError("scatter_gather is for a GPT over pp and tp without sequence_parallel: "
                         "elsewhere ranks have nothing in common to send in pieces; leave it off")
