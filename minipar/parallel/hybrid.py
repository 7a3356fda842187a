"""Three ways at once: layers over pp, each layer over tp, the rows of a batch over dp.

    pp 0: stage 0          pp 1: stage 1          one microbatch goes from left to right (pp),
    ┌────────┬────────┐    ┌────────┬────────┐    all of a layer's pieces work on it (tp),
    │ A₀  dp0│ A₁     │ ─▶ │ B₀  dp0│ B₁     │    and the rows of the batch that another dp has
    ├────────┼────────┤    ├────────┼────────┤    meet these only when gradients are summed
    │ A₀  dp1│ A₁     │ ─▶ │ B₀  dp1│ B₁     │
    └────────┴────────┘    └────────┴────────┘
       tp 0     tp 1          tp 0     tp 1

Each axis is a strategy of its own and knows nothing of the others: `parallelize` changes what a
layer does, a `Pipeline` cuts the changed model into stages, and when the schedule has run, each
rank sums the gradients of its parameters over the ranks that have the same ones: those of dp.
With FSDP these have shards instead, and gather and reduce while it runs (fsdp_pipeline.py).

    g(parameter) = Σ over dp  Σ over microbatches  dL/dparameter,    L = Σ losses / targets of all

Nobody divides again.  Targets and losses are counted once: on the last stage, by tp rank 0.  The
norm of all gradients is a sum over pp, over tp where parameters are cut, and over dp where ZeRO or
FSDP has cut the sums.  Narayanan et al. 2021 (arXiv 2104.04473); Rajbhandari et al. 2020 (ZeRO).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from ..autograd import Tensor
from ..comm import Communicator
from ..comm.collectives import all_gather, broadcast, chunk_bounds
from ..comm.mesh import DeviceMesh
from ..nn import GPT, Module
from ..nn.chain import ChainPart
from ..number_formats import Format
from ..optim import Optimizer
from .conjugate import gather_from, scatter_to
from .pipeline import make_schedule
from .pipeline.executor import Pipeline
from .pipeline.fsdp_pipeline import MENDED, FullyShardedPipeline
from .pipeline.stage_shards import StageShard
from .pipeline.stage_slab import StageSlab
from .pipeline.stages import AT_ONCE
from .strategy import Microbatch, Strategy
from .tensor.apply import parallelize
from .wire import UNCOMPRESSED, Wire

AXES = ("pp", "dp", "tp")
DATA_PARALLEL = ("ddp", "zero1", "fsdp")


class Hybrid(Strategy):
    """Trains `model` on a mesh; see `make_hybrid`.  A batch is all microbatches at once.

    `pipeline` is what runs the schedule; after a batch it has `intervals` and `most_in_flight`.
    """

    def __init__(self, model: Module, mesh: DeviceMesh, schedule: str = "1f1b",
                 virtual_stages: int | None = None, cuts: Sequence[int] | None = None,
                 data_parallel: str = "ddp", sequence_parallel: bool = False,
                 scatter_gather: bool = False, wire: Wire = UNCOMPRESSED,
                 gather_wire: Wire = UNCOMPRESSED, activation_format: Format | None = None):
        super().__init__(model, mesh.comm, wire)
        self.mesh, self.pp, self.dp, self.tp = mesh, *(along(mesh, axis) for axis in AXES)
        if self.tp.size > 1:
            parallelize(model, self.tp, sequence_parallel, message_format=activation_format)
        schedule_for = partial(make_schedule, schedule, self.pp.size, virtual_stages=virtual_stages)
        kind = FullyShardedPipeline if data_parallel == "fsdp" else Pipeline
        self.pipeline = kind(model, self.pp, schedule_for, cuts, activation_format)
        if scatter_gather:
            send_pieces(self.pipeline, self.tp)
        for slab in self.pipeline.slabs:
            slab.comm = along(mesh, *(("pp", "tp") if slab.tp else ("pp",)))
            broadcast(self.dp, slab.data, out=slab.data)
        self.data_parallel, self.can_accumulate = data_parallel, self.pipeline.can_accumulate
        if data_parallel == "fsdp":
            self.pipeline.shard(self.dp, self._all_parts, wire, gather_wire)
        self.stage_slabs = self.slabs = self.pipeline.slabs
        if data_parallel == "zero1":
            self.slabs = [StageShard(slab, self.dp, self._all_parts(slab))
                          for slab in self.stage_slabs]

    def _all_parts(self, slab: StageSlab) -> Communicator:
        """The ranks that have the other parts of a slab that is cut over dp."""
        return along(self.mesh, *(AXES if slab.tp else AXES[:2]))

    def forward_context(self) -> AbstractContextManager:
        """See Strategy.  Raises ValueError where a batch is computed as a whole: with pp or fsdp.
        """
        if self.pp.size > 1 or self.data_parallel == "fsdp":
            raise ValueError(AT_ONCE if self.pp.size > 1 else MENDED)
        return super().forward_context()

    def backward(self, loss: Tensor) -> None:
        """See Strategy, and `forward`."""
        with self.forward_context():
            super().backward(loss)

    def rows(self, num_rows: int) -> range:
        """See Strategy: ranks that differ along dp are given different rows."""
        return range(*chunk_bounds(num_rows, self.dp.size)[self.dp.rank])

    def count_targets(self, microbatches: Sequence[Microbatch]) -> int:
        """See Strategy: the last stage counts, by one of its tp ranks, which all have the same."""
        return self.pipeline.count_targets(microbatches) if self.tp.rank == 0 else 0

    def run_batch(self, microbatches: Sequence[Microbatch], num_targets: float, seed: int = 0,
            step: int = 0) -> float:
        """See Strategy.  Raises ValueError if the gradients of an earlier step are still there."""
        if self._is_reduced and any(slab.has_grad for slab in self.stage_slabs):
            raise ValueError("these gradients were reduced already, and would be again: call "
                             "zero_grad() first, or add up microbatches inside no_sync()")
        with nullcontext() if self.is_synchronizing else self.pipeline.no_sync():
            loss = self.pipeline.run_batch(microbatches, num_targets, seed, step)
        self._synchronize()
        return loss if self.tp.rank == 0 else 0.0

    def run_microbatch(self, batch: Microbatch, num_targets: float, seed: int = 0,
                       step: int = 0) -> float:
        """See Strategy: a batch of one microbatch."""
        return self.run_batch([batch], num_targets, seed, step)

    def after_backward(self) -> None:
        """See Strategy: sum over dp what the schedule, and tied weights over pp, have summed."""
        for slab, shard in zip(self.stage_slabs, self.slabs):
            if self.data_parallel == "ddp":
                self.wire.all_reduce(self.dp, slab.grad, key=slab)
            elif self.data_parallel == "zero1":
                self.wire.reduce_scatter(self.dp, slab.grad, shard.counts, key=slab)
                shard.has_grad = True

    def update(self, optimizer: Optimizer) -> None:
        """See Strategy: with ZeRO-1, on this rank's piece, which all then get."""
        self.pipeline.update(optimizer)
        if self.data_parallel == "zero1":
            for slab, shard in zip(self.stage_slabs, self.slabs):
                all_gather(self.dp, shard.data, counts=shard.counts, out=slab.data)


def along(mesh: DeviceMesh, *axes: str) -> Communicator:
    """The ranks along those of the axes that the mesh has: perhaps this one alone."""
    here = tuple(axis for axis in axes if axis in mesh.shape)
    return mesh[here] if here else mesh.comm.split(mesh.comm.rank)


def send_pieces(pipeline: Pipeline, tp: Communicator) -> None:
    """Let each tp rank send its piece, 1/t, of what all of them have, and the next stage gather.

    The same in backward: split and all-gather are each other's.  Narayanan et al. 2021, section
    4.1 ("scatter/gather").
    """
    for stage, parts in enumerate(pipeline.stages):
        if stage:
            parts.insert(0, ChainPart("gather", lambda x: gather_from(x, tp, -1), [], False))
        if stage + 1 < pipeline.num_stages:
            parts.append(ChainPart("scatter", lambda y: scatter_to(y, tp, -1), [], False))


def make_hybrid(model: Module, mesh: DeviceMesh, schedule: str = "1f1b",
                virtual_stages: int | None = None, cuts: Sequence[int] | None = None,
                data_parallel: str = "ddp", sequence_parallel: bool = False,
                scatter_gather: bool = False, wire: Wire = UNCOMPRESSED,
                gather_wire: Wire = UNCOMPRESSED,
                activation_format: Format | None = None) -> Hybrid:
    """A strategy for the axes pp, dp and tp of `mesh`, those that it has, on which all ranks agree.

    `model` is a plain GPT or MLP with its numbers.  Over pp it is cut into stages, at `cuts` (see
    Staged), and trained by `schedule` (see make_schedule); over tp by `parallelize`, with
    `sequence_parallel` if it is a GPT; over dp gradients are summed, and with "zero1" the states of
    the optimizer are sharded, with "fsdp" parameters and gradients too.  With `scatter_gather` each
    tp rank sends a piece of what a GPT's stages exchange, and gathers; under sequence parallelism
    it has only a piece in any case.  `wire` encodes gradients over dp (a tied embedding's sum over
    stages stays as it is), `gather_wire` the weights that fsdp gathers; activations travel as codes
    of `activation_format`.  Raises ValueError for what does not exist or does not go together.
    """
    others = [axis for axis in mesh.axes if axis not in AXES]
    if others:
        raise ValueError(f"a mesh for this has the axes pp, dp and tp, not {', '.join(others)}")
    if data_parallel not in DATA_PARALLEL:
        raise ValueError(f"{data_parallel} does not go with pp or tp: choose fsdp, which shards "
                         "gradients and parameters too, or ddp or zero1")
    if gather_wire is not UNCOMPRESSED and data_parallel != "fsdp":
        raise ValueError(f"{data_parallel} gathers no units of weights: choose fsdp")
    if sequence_parallel and mesh.shape.get("tp", 1) == 1:
        raise ValueError("sequence_parallel splits tokens over the ranks of tp, of which there is "
                         "only one: leave it off, or give the mesh tp=2")
    cut = [mesh.shape.get(axis, 1) > 1 for axis in ("pp", "tp")]
    if scatter_gather and (sequence_parallel or not all(cut) or not isinstance(model, GPT)):
        raise ValueError("scatter_gather is for a GPT over pp and tp without sequence_parallel: "
                         "elsewhere ranks have nothing in common to send in pieces; leave it off")
    return Hybrid(model, mesh, schedule, virtual_stages, cuts, data_parallel, sequence_parallel,
                  scatter_gather, wire, gather_wire, activation_format)
