"""The training loop: the same with every strategy, on one rank, on many, and on simulated ones.

    every rank:  its rows of the batch, in m microbatches ─▶ loss ─▶ gradients ─┐
                                                                                Σ ─▶ clip ─▶ step

Σ sums over the microbatches of all ranks.  The batch, the dropout masks and the learning rate of a
step follow from the configuration and the step's number.  So a resumed run does exactly what the
uninterrupted one would have done.  With another strategy or number of ranks it does the same
up to rounding, if both strategies compute what one process does.  A checkpoint has whole parameters
and states.  It also has arrays that differ from rank to rank: residuals, or the parameters of ranks
that train apart.  Only a run on the same mesh loads these arrays (checkpoints/rank_states.py).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..backend import Array, asarray_like
from ..comm import Communicator, Trace
from ..comm.collectives import gather_trace
from ..launcher import UsageError, metered
from ..mixed_precision import LossScaler, unscale
from ..nn import Module
from ..optim import Optimizer
from ..optim.lr_schedule import LR_SCHEDULES
from ..parallel.expert.router_bias import RouterLoad, balance_routers, forget_loads
from ..parallel.pipeline.schedule.timeline import Timeline
from ..parallel.strategy import Microbatch, Strategy
from .config import TrainConfig

if TYPE_CHECKING:       # only names of types: the loop imports no compression and no inference
    from ..data.batches import Batch
    from .setup.rank_memory import RankMemory
    from .setup.remat import RecordingPolicy
    from .setup.starting_point import Compression
    from .tasks import Task

MAX_OVERFLOWS = 10  # in a row, with no smaller loss scale to try: then the run ends


SaveAt = Callable[[int], None]          # writes a checkpoint after that number of steps


@dataclass
class TrainState:
    """One rank's part of a training run: its objects, and the losses so far."""

    config: TrainConfig
    task: "Task"
    strategy: Strategy
    optimizer: Optimizer
    memory: "RankMemory"
    num_microbatches: int               # of this rank's rows of a batch
    like: Array                         # an empty array on the device to which new arrays go
    scaler: LossScaler | None           # scales the loss where gradients would underflow
    compression: "Compression"          # steps and masks of a pruned model; empty for others
    remat_policy: "RecordingPolicy | None"  # plans what backward recomputes, with --remat
    loads: list[dict[str, RouterLoad]] = field(default_factory=list)    # of experts, by step
    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    trace: Trace | None = None          # of one step, of all ranks; only on rank 0
    pipeline_timeline: Timeline | None = None   # of that step, with pp; only on rank 0
    traced_at: tuple[float, float] = (0.0, 0.0)    # when that step began and ended, on this rank

    def plain_model(self, comm: Communicator) -> Module | None:
        """Collective.  The whole model, as one process has it, on rank 0; None elsewhere."""
        state = self.strategy.state_dict()
        if comm.rank:
            return None
        with self.memory.offloading_new_arrays():
            model = self.task.build().to_empty(np.dtype(self.config.precision.dtype))
        model.load_state_dict(state)
        return model


def train_steps(comm: Communicator, state: TrainState,
                progress: Callable[[int, float], None] = lambda step, loss: None,
                save_at: SaveAt | None = None,
                before_step: Callable[[int], None] = lambda step: None,
                observe: bool = True,
                take: Callable[[TrainState, int], float] | None = None) -> None:
    """Take the remaining steps; call before_step(step) before and progress(step, loss) after each.

    `save_at(num_steps)`, if given, writes a checkpoint: every --save-every steps, and at the end.
    With --out one step is traced for the pictures, unless `observe` is False.  `take`, if given,
    takes the steps instead of `take_step`.  Raises the UsageErrors of `check_finite`, on every
    rank at once.
    """
    run, take = state.config.run, take or take_step
    traced_step = min(state.first_step + 2, run.steps - 1) if observe and run.out else -1
    for step in range(state.first_step, run.steps):
        before_step(step)
        with state.memory.recording(step == traced_step), \
                np.errstate(over="ignore", invalid="ignore"):       # take_step reports such a loss
            loss = (observed_step(comm, state, step, take) if step == traced_step
                    else take(state, step))
        state.losses.append(loss)
        progress(step, loss)
        if save_at and run.save_every and (step + 1) % run.save_every == 0 and step + 1 < run.steps:
            save_at(step + 1)
    if save_at is not None:
        save_at(run.steps)


def take_step(state: TrainState, step: int) -> float:
    """Take one step on the batch of `step`, or skip it after an overflow; return the loss."""
    loss = compute_gradients(state, step)
    if check_finite(state, loss, step):
        update_parameters(state, step)
    else:                                               # an overflow: all ranks skip this step
        forget_loads(state.strategy)
    return loss


def compute_gradients(state: TrainState, step: int) -> float:
    """Leave the gradients of the batch of `step` in the strategy's flat arrays; return the loss."""
    return gradients_of(state, step, microbatches(state, step))


def gradients_of(state: TrainState, step: int, batch: Sequence[Microbatch]) -> float:
    """`compute_gradients` for given microbatches: this rank's part of a batch.

    It also sets the learning rate of `step`.
    """
    state.optimizer.zero_grad()
    chosen = state.config.optimizer
    state.optimizer.lr = LR_SCHEDULES[chosen.lr_schedule](
        step, chosen.lr, chosen.warmup, state.config.run.steps, floor=chosen.lr / 10)
    with state.memory.offloading_activations():
        return state.strategy.forward_backward(batch, state.config.run.seed, step,
                                               state.scaler.scale if state.scaler else 1.0)


def update_parameters(state: TrainState, step: int) -> float | None:
    """Clip the gradients; update the biases of routers; step the optimizer.

    Returns the norm of the gradients before clipping, or None without clipping.
    """
    chosen, strategy = state.config.optimizer, state.strategy
    norm = strategy.clip_grad_norm(chosen.clip) if chosen.clip else None
    state.loads.append(balance_routers(strategy))
    strategy.step(state.optimizer)
    return norm


def check_finite(state: TrainState, loss: float, step: int) -> bool:
    """Unscale the gradients and adapt the loss scale; False if the loss or a gradient overflowed.

    Without a loss scale it looks at the loss only.  Raises UsageError if the loss is not finite and
    no smaller scale can help.  Raises it also after MAX_OVERFLOWS steps in a row whose gradients
    overflow although no smaller scale can help.
    """
    scaler, is_finite = state.scaler, math.isfinite(loss)
    scale = scaler.scale if scaler else 1.0
    if not is_finite and not (scaler and scaler.can_shrink):
        scaled = f" with loss scale {scale:g}" if scaler else ""
        raise UsageError(f"the loss is {loss} at step {step}{scaled}: lower --lr (it is "
                         f"{state.config.optimizer.lr:g}), or clip harder with --clip", status=1)
    if scaler:
        is_finite = unscale(state.strategy, scale) and is_finite    # collective: all ranks call it
        scaler.update(not is_finite)
        if scaler.num_stuck == MAX_OVERFLOWS:
            raise always_overflows_error(scaler, step, scale)
    return is_finite


def always_overflows_error(scaler: LossScaler, step: int, scale: float) -> UsageError:
    """The error of a run that skips step after step, because its gradients overflow."""
    is_fixed = scaler.backoff == 1
    advice = "choose a smaller --loss-scale" if is_fixed else "lower --lr, or use --precision bf16"
    return UsageError(f"the gradients of {MAX_OVERFLOWS} steps in a row overflowed, the last at "
                      f"step {step} with loss scale {scale:g}: {advice}", status=1)


def microbatches(state: TrainState, step: int) -> list[Microbatch]:
    """This rank's rows of the batch of `step`, cut into the configured number of microbatches."""
    batch = state.task.batches.batch(step)
    mine = batch.select(state.strategy.rows(len(batch.samples)))
    return on_device(state, mine.split(state.num_microbatches))


def on_device(state: TrainState, batches: "Sequence[Batch | Microbatch]") -> list[Microbatch]:
    """The microbatches on this rank's device."""
    return [Microbatch(asarray_like(inputs, state.like), asarray_like(targets, state.like), samples)
            for inputs, targets, samples in batches]


def observed_step(comm: Communicator, state: TrainState, step: int,
                  take: Callable[[TrainState, int], float]) -> float:
    """`take` a step, keeping its messages and computations in `state` for the pictures."""
    start = comm.now()
    comm.start_trace()
    loss = metered(lambda comm: take(state, step))(comm)
    trace, state.traced_at = comm.stop_trace(), (start, comm.now())
    state.trace = gather_trace(comm, trace)
    pipeline = state.strategy.pipeline
    state.pipeline_timeline = pipeline.timeline(trace) if pipeline else None
    return loss
