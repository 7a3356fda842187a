"""Every strategy: a mesh, a schedule, and what the ranks with the same parameters keep of them.

    strategy = DistributedDataParallel(model, comm)                   over all ranks
    strategy = ZeRO2(model, DeviceMesh(comm, pp=2, dp=2, tp=2))       over the axes of a mesh
    optimizer = AdamW(strategy.slabs)                 what this rank optimizes
    loss = strategy.forward_backward(microbatches)    gradients of the whole batch, in the slabs
    strategy.clip_grad_norm(1.0)
    strategy.step(optimizer)                          every rank has the new parameters

    pp 0: stage 0          pp 1: stage 1          one microbatch goes from left to right (pp),
    ┌────────┬────────┐    ┌────────┬────────┐    all of a layer's pieces work on it (tp),
    │ A₀  dp0│ A₁     │ ─▶ │ B₀  dp0│ B₁     │    and ranks with different rows of the batch
    ├────────┼────────┤    ├────────┼────────┤    (dp) meet only when gradients are summed
    │ A₀  dp1│ A₁     │ ─▶ │ B₀  dp1│ B₁     │
    └────────┴────────┘    └────────┴────────┘
       tp 0     tp 1          tp 0     tp 1

One path, for any mesh:

    1  tp, ep and cp change layers inside the model       (cut_layers)
    2  pp cuts the chain of its parts into stages         (pipeline/stages.py; one stage without pp)
    3  this rank's slabs are cut into flats, over dp, cp  (flats.py; data/ddp.py)
    4  the arrays go where the strategy keeps them        (place)
    5  forward_backward                                   microbatches, one after the other, or by
                                                          the schedule (pipeline/executor.py)
         reduce_during(stage, y)                          around a stage's backward: as soon as a
           reduce(flat)                                   flat's gradient is complete
         reduce_stage(stage)                              or after it, if dx is sent first
         sync_gradients                                   at the end of the batch, or of a backward
           finish                                         reduce what is left; wait for all
    6  step: the optimizer, then parameters_changed       ZeRO: gather the parameters

This class sums no gradients over dp or cp: alone it trains on meshes without them.
`DistributedDataParallel` sums them.  It brings cut and reduce, and overrides place, reduce_during,
reduce_stage and finish.  ZeRO overrides place, make_flat, reduce, finish and parameters_changed,
norm_ranks and shared_gradients; FSDP also cut, backward and the contexts of forward and of a batch.
Ranks that train apart override forward_backward, update and the states.

No sum of gradients is divided by the number of ranks.  The loss of a microbatch is a sum over its
targets, divided by the number of targets of the whole batch, over all ranks and microbatches.  So
gradients simply add up.  (Ranks that train apart average: data/trained_apart.py.)  Targets are
counted once: on the last stage, by rank 0 of tp and cp.
Narayanan et al. 2021 (arXiv 2104.04473); Rajbhandari et al. 2020.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from .. import autograd, optim
from ..autograd import GradientSlot, Tensor
from ..backend import Array, to_float
from ..comm import Communicator
from ..comm.collectives import all_reduce, broadcast, chunk_bounds, sum_over_ranks
from ..comm.mesh import DeviceMesh
from ..comm.work import progress
from ..nn import Module, Slab
from ..nn.slab import Buffers
from ..nn.step_context import row_shares, training_step
from . import errors
from .cut_layers import check_axes, cut_layers, send_pieces
from .microbatch import Microbatch, sum_over_samples, sum_targets
from .pipeline.schedule.actions import Placement, Schedule
from .pipeline.stages import OneStage, Stages
from .wire_formats.wire import UNCOMPRESSED, Wire

if TYPE_CHECKING:
    from ..number_formats import Format
    from .context.rank_groups import ContextOptions
    from .pipeline.executor import Pipeline

NO_CONTEXT = nullcontext()          # one object, since a step of a small model enters many
ScheduleFor = Callable[[int], tuple[Schedule, Placement]]       # of a number of microbatches


class Strategy:
    """Trains `model` on the ranks of a communicator, which are dp, or of a mesh.  Collective.

    `model` is plain and initialized.  A mesh with tp needs a GPT or MLP, one with cp or ep a GPT.
    With pp the model is cut into stages, at `cuts` (see Stages).  `schedule` trains them: a name,
    by default "1f1b", with `virtual_stages` (see make_schedule), or a function of the number of
    microbatches.

    `sequence_parallel` cuts a GPT's tokens over tp between pairs of layers; `context` says how the
    ranks of cp share tokens.  With `scatter_gather` each tp rank sends a piece of the activations
    between a GPT's stages.  `wire` encodes gradients, `activation_format` activations.  (The
    gradient of a weight that stages share is summed over them in full.)

    The attribute `dp` has the ranks with different rows: those along the axes dp and replicate.
    `slabs` are what this rank optimizes: whole slabs, or its pieces of them.  Each of `flats` has
    parameters that are reduced together; this class reduces none.
    """

    reduces_each_backward = False       # True: every backward reduces; no whole gradient adds up
    # True: stages step within a batch, by the strategy's `optimizer`: no clipping, no loss scale
    steps_within_batch = False
    summed_over: tuple[str, ...] = ("dp", "cp")     # axes over which gradients are summed
    flats: Sequence = ()

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, *,
                 schedule: str | ScheduleFor | None = None, virtual_stages: int | None = None,
                 cuts: Sequence[int] | None = None, sequence_parallel: bool = False,
                 scatter_gather: bool = False, context: "ContextOptions | None" = None,
                 activation_format: "Format | None" = None, wire: Wire = UNCOMPRESSED):
        mesh = ranks if isinstance(ranks, DeviceMesh) else DeviceMesh(ranks, dp=ranks.size)
        if not all(parameter.initialized for parameter in model.parameters()):
            raise ValueError(errors.NO_VALUES_MESSAGE)
        check_axes(model, mesh, sequence_parallel, scatter_gather, context)
        self.model, self.mesh, self.comm, self.wire = model, mesh, mesh.comm, wire
        self.pp, self.cp, self.tp = (self.along(axis) for axis in ("pp", "cp", "tp"))
        self.dp = self.along("replicate", "dp")
        self.replicas = self.along("replicate", *self.summed_over)
        cut_layers(model, mesh, sequence_parallel, context, activation_format)
        self.pipeline: Pipeline | None = None
        if (schedule or virtual_stages or cuts) and "pp" not in mesh:
            raise ValueError("schedule, virtual_stages and cuts are for a pipeline: give the mesh "
                             "pp=2, or leave them out")
        self.stages = OneStage(model) if "pp" not in mesh else Stages(
            model, self.pp, self.plan_stages(schedule, virtual_stages, activation_format), cuts)
        if scatter_gather:
            send_pieces(self.stages, self.tp)
        self.start_from_rank_0()
        data = self.stages.whole_slabs[0].data
        self.like = np.empty(0, data.dtype, like=data)
        self.slabs = Buffers(self.stages.whole_slabs)
        self.is_synchronizing = True                # False inside no_sync()
        self._is_synced = False         # True from a reduction until the next gradient arrives
        self._last_poll: float | None = None
        for parameter in self.stages.used_in:
            parameter.slot.ready_hooks.append(self._on_gradient)
        self.place()

    def plan_stages(self, schedule: "str | ScheduleFor | None", virtual_stages: int | None,
                    activation_format: "Format | None") -> Placement:
        """The rank of each stage by the schedule, which `pipeline` will run."""
        from .pipeline.executor import Pipeline  # with pp only: data parallelism needs no more
        from .pipeline.schedule.registry import make_schedule
        if schedule is None or isinstance(schedule, str):
            schedule = partial(make_schedule, schedule or "1f1b", self.pp.size,
                               virtual_stages=virtual_stages)
        self.pipeline = Pipeline(self.pp, self, schedule, activation_format)
        return schedule(1)[1]

    def start_from_rank_0(self) -> None:
        """Broadcast parameters from the first rank that has them; set each slab's `norm_comm`."""
        for slab in self.stages.whole_slabs:
            ranks = self.norm_ranks(slab)
            slab.norm_comm = ranks if ranks.size > 1 else None
            broadcast(self.ranks_of(slab, "replicate", "dp", "cp"), slab.data, out=slab.data)

    def _on_gradient(self, slot: GradientSlot) -> None:
        self._is_synced = False

    # Steps 1 and 2: who has what.

    def along(self, *axes: str) -> Communicator:
        """The ranks along those of the axes that the mesh has; this rank alone if it has none."""
        here = tuple(axis for axis in axes if axis in self.mesh)
        return self.mesh[here] if here else self.mesh.alone

    def ranks_of(self, slab: Slab, *axes: str) -> Communicator:
        """The ranks along `axes` that have a slab's parameters; experts take edp in place of dp."""
        return self.along(*("edp" if axis == "dp" and slab.ep else axis for axis in axes))

    def norm_ranks(self, slab: Slab) -> Communicator:
        """The ranks to sum a norm over: those with different parameters, or different parts."""
        return self.along("pp", *["ep"] * bool(slab.ep), *["tp"] * bool(slab.tp))

    def rows(self, num_rows: int) -> range:
        """The rows of a batch that this rank is given; the ranks of pp, cp and tp get the same."""
        return range(*chunk_bounds(num_rows, self.dp.size)[self.dp.rank])

    def count_targets(self, microbatches: Sequence[Microbatch]) -> int:
        """The targets this rank counts; every target is counted on exactly one rank."""
        if self.tp.rank or self.cp.rank or not self.stages.has_last:
            return 0
        return sum(autograd.count_targets(m.targets, self.model.ignore_index) for m in microbatches)

    # Steps 3 and 4, and what else a strategy overrides.

    def place(self) -> None:
        """Move the arrays of the slabs to where they are kept, and set `slabs` and `flats`.

        Raises ValueError for a wire that the strategy has no use for.
        """
        if self.wire is not UNCOMPRESSED:
            raise errors.no_wire_error(type(self).__name__)

    def batch_context(self) -> AbstractContextManager:
        """Context of each microbatch's forward, and of its backward; with pp, of a whole batch."""
        return NO_CONTEXT

    def reduce_during(self, stage: int, y: Tensor, is_last: bool = True) -> AbstractContextManager:
        """Context of a stage's backward from `y`; `is_last`: the stage's last one in the batch.

        Call it before backward, which frees the graph of `y`.  Enter the context around backward
        or, where a schedule defers the weights' gradients, around that half alone.  Two places call
        it: `backward` here, and the RankBatch of a pipeline, which knows the last backward.  DDP
        lets the stage's ReductionQueue watch the backward, unless gradients only add up, or the
        wire has to see all of them first.
        """
        return NO_CONTEXT

    def reduce_stage(self, stage: int) -> None:
        """Begin to reduce all gradients of a stage whose last backward is over.

        A pipeline calls it, in place of `reduce_during`, where that backward's dx is sent first.
        """

    def finish(self) -> None:
        """Wait until all gradients are reduced: the batch's, or a backward's if each one reduces.

        When an override returns, no reduction is under way, and ranks along `replicate` have the
        same sums.  DDP's `finish` first reduces the flats whose reduction has not begun, in the
        order of `flats`.  A subclass that adds up whole gradients calls it.
        """

    def shared_gradients(self) -> Iterator[tuple[Communicator, Array]]:
        """The gradients of weights that several stages have, with the ranks that have them."""
        for among, slab in self.stages.shared:
            yield among, slab.complete_grad()

    def parameters_changed(self) -> None:
        """Bring changes of `slabs` to all ranks that compute with these parameters.  Collective.

        `step` calls it.  Call it after you have changed `slabs` in a different way.  With ZeRO-1
        and ZeRO-2 a rank computes with all parameters, but its slabs are a part of them.  Here
        there is nothing to do.
        """

    def rank_state(self, optimizer: optim.Optimizer) -> dict[str, Array]:
        """Arrays of this rank alone, by name, that its next step needs: here none."""
        return {}

    def load_rank_state(self, optimizer: optim.Optimizer, state: Mapping[str, np.ndarray]) -> None:
        """Take what `rank_state` gave, from a checkpoint."""

    # Step 5: a batch.

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0, step: int = 0,
                         scale: float = 1.0) -> float:
        """Compute the gradients of the whole batch; return its loss.  Collective.

        Each rank passes the same number of microbatches, with its own rows; a microbatch may have
        no target or no row.  Afterwards `slabs` hold the gradients of the batch, times `scale`,
        the loss scale.  `seed` and the number of the `step` determine the dropout masks.
        """
        num_targets = sum_targets(self.comm, self.count_targets(microbatches), len(microbatches))
        self.wire.start_batch(scale)
        loss = self.run_batch(microbatches, num_targets / scale, seed, step)
        return sum_over_ranks(self.comm, loss) / scale

    def run_batch(self, microbatches: Sequence[Microbatch], loss_divisor: float, seed: int = 0,
                  step: int = 0) -> float:
        """Forward and backward of all microbatches; return this rank's share of the loss.

        Each loss is divided by `loss_divisor`, the global number of targets / loss scale.
        """
        if self.pipeline is not None:
            self.check_fresh()
            with self.batch_context():
                loss = self.pipeline.run(microbatches, loss_divisor, seed, step)
            self.sync_gradients()
            return loss if self.tp.rank == 0 else 0.0
        loss, last = 0.0, len(microbatches) - 1
        for i, microbatch in enumerate(microbatches):
            accumulates = not self.reduces_each_backward and i < last
            with self.no_sync() if accumulates else NO_CONTEXT:
                loss += self.run_microbatch(microbatch, loss_divisor, seed, step)
        return loss

    def run_microbatch(self, microbatch: Microbatch, loss_divisor: float, seed: int = 0,
                       step: int = 0) -> float:
        """Forward and backward of one microbatch; return this rank's share of the loss."""
        if self.pipeline is not None:
            return self.run_batch([microbatch], loss_divisor, seed, step)
        with self.context_of(microbatch, loss_divisor, seed, step), self.forward_context():
            loss = self.model.loss(microbatch.inputs, microbatch.targets, loss_divisor)
        self.backward(loss)
        return to_float(loss.data) if self.tp.rank == 0 else 0.0

    @contextmanager
    def context_of(self, microbatch: Microbatch, loss_divisor: float, seed: int,
                   step: int) -> Iterator[None]:
        """Context of a forward: what dropout, routers of experts and cp need to know."""
        shares = row_shares(microbatch.targets, self.model.ignore_index, loss_divisor)
        length: AbstractContextManager = NO_CONTEXT
        if self.cp.size > 1:            # the ranks of cp have parts of sequences
            from .context.rank_groups import sequences_of  # with cp only
            length = sequences_of(microbatch.inputs.shape[1])
        with training_step(seed, step, microbatch.samples, shares=shares,
                           sum_over_samples=partial(sum_over_samples, self.replicas)), length:
            yield

    def forward_context(self) -> AbstractContextManager:
        """The context in which to compute a loss before calling `backward` with it.

        Raises ValueError with pp: a rank alone cannot compute a loss.
        """
        if len(self.stages.placement) > 1:
            raise ValueError(errors.NEEDS_ALL_STAGES_MESSAGE)
        return self.batch_context()

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of `loss`; reduce them over the ranks, unless inside `no_sync`.

        Raises ValueError with pp, and if gradients of an earlier backward would be summed again,
        since zero_grad did not clear them.
        """
        if len(self.stages.placement) > 1:
            raise ValueError(errors.NEEDS_ALL_STAGES_MESSAGE)
        self.check_fresh()
        with self.batch_context(), self.reduce_during(0, loss):
            autograd.backward(loss, poll=self.poll)
        self.sync_gradients()

    def sync_gradients(self) -> None:
        """Finish the reductions, also over stages that share weights; nothing inside `no_sync`."""
        if self.is_synchronizing:
            self.finish()
            for among, gradient in self.shared_gradients():
                all_reduce(among, gradient, out=gradient)
            self._is_synced = True

    def check_fresh(self) -> None:
        """Raise ValueError if gradients are summed already, and would be again."""
        sums = self.stages.shares or self.replicas.size > 1 and not self.reduces_each_backward
        if self._is_synced and sums and any(
                getattr(slab, "has_grad", False) or any(p.grad is not None for p in slab.parameters)
                for slab in self.slabs):
            raise errors.reduced_already_error()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context in which gradients only add up on their rank; a backward outside of it sums them.

        Raises ValueError for a strategy that cannot accumulate.
        """
        if self.reduces_each_backward:
            raise errors.accumulation_error(type(self).__name__)
        before, self.is_synchronizing = self.is_synchronizing, False
        try:
            yield
        finally:
            self.is_synchronizing = before

    def poll(self) -> None:
        """Advance pending messages; called often, such as between two operations of backward."""
        now = self.comm.now()
        if now != self._last_poll:      # a simulated clock stands still unless something happened
            self._last_poll = now
            progress(self.comm)

    # Step 6: the optimizer.

    def step(self, optimizer: optim.Optimizer) -> None:
        """Update the parameters on all ranks.  Raises ValueError if gradients are not reduced."""
        if not self._is_synced and any(p.grad is not None for p in self.stages.used_in):
            raise ValueError(errors.NOT_REDUCED_MESSAGE)
        self.update(optimizer)

    def update(self, optimizer: optim.Optimizer) -> None:
        """Update the parameters on all ranks; the gradients are known to be reduced."""
        optimizer.step()
        self.parameters_changed()

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients down to a global norm of `max_norm`; return the norm before."""
        return to_float(optim.clip_grad_norm(self.slabs, max_norm))

    def state_dict(self) -> dict[str, np.ndarray]:
        """A host copy of every parameter by its full name.  Collective."""
        return self.slabs.named([slab.data for slab in self.slabs])
