"""Four ways at once: layers over pp, each layer over tp, rows of a batch over dp, tokens over cp.

    pp 0: stage 0          pp 1: stage 1          one microbatch goes from left to right (pp),
    ┌────────┬────────┐    ┌────────┬────────┐    all of a layer's pieces work on it (tp),
    │ A₀  dp0│ A₁     │ ─▶ │ B₀  dp0│ B₁     │    and the rows of the batch that another dp has
    ├────────┼────────┤    ├────────┼────────┤    meet these only when gradients are summed
    │ A₀  dp1│ A₁     │ ─▶ │ B₀  dp1│ B₁     │
    └────────┴────────┘    └────────┴────────┘
       tp 0     tp 1          tp 0     tp 1

Each axis is a strategy of its own; only a stage's slab (stage_slab.py) knows both pp and tp.
`parallelize` makes the layers tensor-parallel, `parallelize_context` spreads the tokens over cp,
and a `Pipeline` cuts that model into stages.  The dp and cp ranks of a stage have the same
parameters; they sum their gradients when the schedule has run.  Below, "over dp" means over both.

FSDP differs: its dp ranks have shards of the parameters, which they gather, and whose gradients
they reduce, while the schedule runs (fsdp_pipeline.py).  Experts differ, too: dp is cut into ep and
edp.  Each ep rank has different experts; ranks along edp have the same, and sum their gradients.

    g(parameter) = Σ over dp, cp  Σ over microbatches  dL/dparameter,  L = Σ losses / targets of all

No rank divides again.  Targets are counted once: on the last stage, by rank 0 of tp and cp; each
cp rank has the losses of its tokens.  The norm of all gradients is a sum over pp, over tp where
parameters are cut, and over dp where ZeRO or FSDP shards them.  Narayanan et al. 2021 (arXiv
2104.04473); Rajbhandari et al. 2020.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from ...autograd import Tensor
from ...comm import Communicator, Trace
from ...comm.collectives import broadcast, chunk_bounds
from ...comm.mesh import DeviceMesh
from ...nn import Module
from ...nn.chain import ChainPart
from ...number_formats import Format
from ...optim import Optimizer
from ..conjugate import gather_from, scatter_to
from ..context.layout import ContextOptions, ContextSplit, sequences_of
from ..context.parallelize_context import parallelize_context
from ..errors import NEEDS_ALL_STAGES_MESSAGE, reduced_already_error
from ..expert.distribute_experts import distribute_experts
from ..pipeline.executor import Pipeline
from ..pipeline.schedule.registry import make_schedule
from ..pipeline.schedule.timeline import Timeline
from ..pipeline.stage_slab import StageSlab
from ..strategy import Microbatch, Strategy
from ..tensor.parallelize import TENSOR_PARALLEL, parallelize
from ..wire import UNCOMPRESSED, Wire
from .data_axis import AllReduceOverDP

AXES = ("pp", "dp", "cp", "tp")


class Hybrid(Strategy):
    """A strategy for the axes of `mesh`, of pp, dp, cp and tp; see `make_hybrid`.

    Over pp `model` is cut into stages, at `cuts` (see Staged), and trained by `schedule` (see
    make_schedule).  Over tp `parallelize` splits layers, with `sequence_parallel` if it is a GPT.
    Over cp the tokens of a GPT are spread, as `context` says; over ep its experts.  The class
    `over_dp` (data_axis.py) sums gradients over dp and cp.

    With `scatter_gather` each tp rank sends a piece of the activations between a GPT's stages.
    `wire` encodes gradients over dp, `gather_wire` the weights that fsdp gathers, and
    `activation_format` the activations.  The gradient of a tied embedding is summed over its stages
    in full.  `pipeline` runs the schedule; after a batch it has `intervals` and `most_in_flight`.
    """

    def __init__(self, model: Module, mesh: DeviceMesh, schedule: str = "1f1b",
                 over_dp: type[AllReduceOverDP] = AllReduceOverDP,
                 virtual_stages: int | None = None, cuts: Sequence[int] | None = None,
                 sequence_parallel: bool = False, scatter_gather: bool = False,
                 context: ContextOptions | None = None,
                 wire: Wire = UNCOMPRESSED, gather_wire: Wire = UNCOMPRESSED,
                 activation_format: Format | None = None):
        check_axes(model, mesh, sequence_parallel, scatter_gather, context)
        super().__init__(model, mesh.comm, wire)
        self.mesh = mesh
        self.pp, self.dp, self.cp, self.tp = (along(mesh, axis) for axis in AXES)
        self.replicas, self.expert_replicas = along(mesh, "dp", "cp"), along(mesh, "edp", "cp")
        self.counts_loads = self.tp.rank == 0
        if self.tp.size > 1:
            parallelize(model, self.tp, sequence_parallel, message_format=activation_format)
        if "ep" in mesh:
            distribute_experts(model, mesh["ep"])
        if self.cp.size > 1:
            parallelize_context(model, ContextSplit(self.cp, context, activation_format))
        schedule_for = partial(make_schedule, schedule, self.pp.size, virtual_stages=virtual_stages)
        self.pipeline = over_dp.pipeline_class(model, self.pp, schedule_for, cuts,
                                               activation_format)
        if self.cp.size > 1:
            self.pipeline.microbatch_context = \
                lambda microbatch: sequences_of(microbatch.inputs.shape[1])
        if scatter_gather:
            send_pieces(self.pipeline, self.tp)
        self.pipeline.replicas = self.replicas
        for slab in self.pipeline.stage_slabs:
            slab.comm = along(mesh, "pp", *["ep"] * bool(slab.ep), *["tp"] * bool(slab.tp))
            broadcast(self._replicas_of(slab), slab.data, out=slab.data)
        self.can_accumulate = self.pipeline.can_accumulate
        self.over_dp = over_dp(self.pipeline, self._replicas_of, self._all_parts_of, wire,
                               gather_wire)
        self.slabs = self.over_dp.slabs

    def _replicas_of(self, slab: StageSlab) -> Communicator:
        """The ranks that have the same parameters."""
        return self.expert_replicas if slab.ep else self.replicas

    def _all_parts_of(self, slab: StageSlab) -> Communicator:
        """The ranks that have the other parts of a slab that is cut over dp and cp."""
        return along(self.mesh, *(AXES if slab.tp else ("pp", "dp", "cp")))

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
        """The rows of this rank's place along dp; its pp, cp and tp ranks are given the same."""
        return range(*chunk_bounds(num_rows, self.dp.size)[self.dp.rank])

    def count_targets(self, microbatches: Sequence[Microbatch]) -> int:
        """The number of targets on rank 0 of tp and cp of the last stage, 0 on the other ranks."""
        counts = self.tp.rank == self.cp.rank == 0
        return self.pipeline.count_targets(microbatches) if counts else 0

    def run_batch(self, microbatches: Sequence[Microbatch], loss_divisor: float, seed: int = 0,
                  step: int = 0) -> float:
        """Run the schedule and reduce; raises ValueError unless earlier gradients were zeroed."""
        if self._is_reduced and any(slab.has_grad for slab in self.pipeline.slabs):
            raise reduced_already_error()
        with nullcontext() if self.is_synchronizing else self.pipeline.no_sync():
            loss = self.pipeline.run_batch(microbatches, loss_divisor, seed, step)
        self._finish_reductions()
        return loss if self.tp.rank == 0 else 0.0

    def run_microbatch(self, microbatch: Microbatch, loss_divisor: float, seed: int = 0,
                       step: int = 0) -> float:
        """Forward and backward of one microbatch, as a batch; this rank's share of the loss."""
        return self.run_batch([microbatch], loss_divisor, seed, step)

    def after_backward(self) -> None:
        """Reduce the gradients over dp; the schedule has summed those of tied weights over pp."""
        self.over_dp.reduce()

    def timeline(self, trace: Trace | None = None) -> Timeline | None:
        """The timeline of rank 0's pipeline in the last batch; None without pp.  Collective."""
        return self.pipeline.timeline(trace) if self.pp.size > 1 else None

    def update(self, optimizer: Optimizer) -> None:
        """Step, and let the dp ranks gather the parameters that others have updated."""
        self.pipeline.update(optimizer)
        self.gather()

    def gather(self) -> None:
        """Give the dp ranks the parameters that are in the slabs of others."""
        self.over_dp.gather()


def along(mesh: DeviceMesh, *axes: str) -> Communicator:
    """The ranks along those of the axes that the mesh has; this rank alone if it has none."""
    here = tuple(axis for axis in axes if axis in mesh)
    found = mesh[here] if here else mesh.comm.split(mesh.comm.rank)
    assert found is not None        # every rank gave split a color
    return found


def send_pieces(pipeline: Pipeline, tp: Communicator) -> None:
    """Let each tp rank send 1/t of the activation, which those of the next stage gather.

    Backward does the same with gradients.  Narayanan et al. 2021, section 4.1 ("scatter/gather").
    """
    for stage, parts in enumerate(pipeline.stages):
        if stage:
            parts.insert(0, ChainPart("gather", lambda x: gather_from(x, tp, -1), [], False))
        if stage + 1 < pipeline.num_stages:
            parts.append(ChainPart("scatter", lambda y: scatter_to(y, tp, -1), [], False))


def check_axes(model: Module, mesh: DeviceMesh, sequence_parallel: bool,
               scatter_gather: bool, context: ContextOptions | None) -> None:
    """Raise ValueError for axes that do not exist, and for options that do not go with the axes."""
    others = [axis for axis in mesh.axes if axis not in AXES]
    if others:
        raise ValueError(f"a hybrid mesh has the axes pp, dp, cp and tp, not {', '.join(others)}")
    if sequence_parallel and mesh.shape.get("tp", 1) == 1:
        raise ValueError("sequence_parallel splits tokens over the ranks of tp, and here tp "
                         "has only one: leave it off, or give the mesh tp=2")
    if context is not None and mesh.shape.get("cp", 1) == 1:
        raise ValueError("context says how the ranks of cp share tokens, and here cp has only one: "
                         "leave it out, or give the mesh cp=2")
    cut = [mesh.shape.get(axis, 1) > 1 for axis in ("pp", "tp")]
    kind = TENSOR_PARALLEL.get(type(model))
    whole = kind is not None and kind.parts_end_whole and not sequence_parallel
    if scatter_gather and not (all(cut) and whole):
        raise ValueError("scatter_gather is for a GPT over pp and tp without sequence_parallel: "
                         "elsewhere ranks have nothing in common to send in pieces; leave it off")
