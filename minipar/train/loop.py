"""The training loop: the same with every strategy, on one rank, on many, and on simulated ones.

    every rank:  its rows of the batch, in m parts ─▶ loss ─▶ gradients ─┐
                                                                           Σ ─▶ clip ─▶ step

The batch of a step, the dropout masks and the learning rate follow from the number of the step
alone, so a run that is resumed goes on exactly as if it had not stopped: also with another strategy
and on another number of ranks, since a checkpoint holds whole parameters and whole states.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .. import checkpoint as files
from ..backend import Array, asarray_like
from ..comm import Communicator, Trace
from ..comm.collectives import gather_trace
from ..compress.load import check_size, compression_steps
from ..compress.pruning.masks import Masks
from ..compress.pruning.serialization import compact
from ..launcher import UsageError, metered, on_first_rank
from ..nn import Module
from ..optim import NO_DECAY_FOR_VECTORS, SGD, Adam, AdamW, Optimizer, warmup_cosine
from ..parallel.pipeline import Timeline
from ..parallel.strategy import Microbatch, Strategy
from ..precision import LossScaler, unscale
from .flags import REMEMBERED
from .model_checkpoints import load_checkpoint
from .setup.device import device_array
from .setup.memory import Memory, explained
from .setup.precision import ALONE, make_scaler, narrow_messages, narrow_model
from .setup.remat import rematerialized, wider
from .setup.strategy import num_microbatches, pipeline_of, strategy_of
from .tasks import Task


@dataclass
class TrainState:
    """A training run: what it is made of, and what came of it."""

    options: argparse.Namespace
    task: Task
    strategy: Strategy
    optimizer: Optimizer
    memory: Memory
    array: Array                        # an empty one, where this rank computes
    scaler: LossScaler | None           # of the loss, where gradients would be too small
    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    trace: Trace | None = None          # of one step, all ranks; on rank 0
    masks: Masks | None = None          # of a pruned model, on this rank
    kept: dict[str, np.ndarray] = field(default_factory=dict)   # … and whole, by name
    compression: list[dict] = field(default_factory=list)       # what was done to the model
    pipeline: Timeline | None = None    # of its schedule, if there is one; on rank 0
    traced: tuple[float, float] = (0.0, 0.0)    # when that step began and ended, on this rank

    def plain_model(self, comm: Communicator) -> Module | None:
        """The model as one process has it, on rank 0; every rank must call it."""
        state = self.strategy.state_dict()
        if comm.rank:
            return None
        with self.memory.building():
            model = self.task.build().to_empty(np.dtype(self.options.dtype))
        model.load_state_dict(state)
        return model


def make_optimizer(options: argparse.Namespace, strategy: Strategy) -> Optimizer:
    """The optimizer that the options name, for what this rank optimizes."""
    slabs, groups = strategy.slabs, () if options.decay_all else (NO_DECAY_FOR_VECTORS,)
    if options.optimizer == "sgd":
        return SGD(slabs, options.lr, options.momentum, options.weight_decay or 0.0, groups=groups)
    kind = Adam if options.optimizer == "adam" else AdamW
    return kind(slabs, options.lr, weight_decay=options.weight_decay, groups=groups)


def begin(comm: Communicator, options: argparse.Namespace, task: Task,
          found: tuple[files.Checkpoint, dict[str, np.ndarray]] | None = None) -> TrainState:
    """A run from the start, or from the checkpoint, with its masks, that was `found` at --resume.
    """
    memory = Memory(options, comm)
    if found is None and options.resume is not None:
        found = load_checkpoint(options, task)
    saved, kept = found or (None, {})
    array = device_array(options, comm)
    with explained(memory.ledger), memory.recording(), memory.building():
        model = narrow_model(options, task.build())
        try:
            if saved is None:
                model.initialize(options.seed, np.dtype(options.dtype), array)
            else:
                check_size(model, saved.model)
                model.to_empty(np.dtype(options.dtype), array)
                model.load_state_dict(saved.model)
            masks = Masks(model, kept) if kept else None
            strategy = strategy_of(options, rematerialized(options, model, comm), comm)
            narrow_messages(options, strategy)
            run = TrainState(options, task, strategy, make_optimizer(options, strategy), memory,
                             array, make_scaler(options), masks=masks, kept=kept)
            if saved is not None:
                run.first_step = saved.description["step"]
                run.losses = list(saved.description["losses"])
                run.compression = compression_steps(saved)
                known = saved.description
                if known.get("optimizer") is not None:      # a model from Python may have none
                    updates = known.get("updates")
                    run.optimizer.load_state_dict(
                        saved.optimizer, run.first_step if updates is None else updates)
                if run.scaler and known.get("scaler") \
                        and known["options"].get("loss_scale") == options.loss_scale:
                    run.scaler.load_state_dict(known["scaler"])
        except ValueError as error:
            if saved is None:
                raise
            raise UsageError(f"--resume {options.resume}: {error}") from error
    memory.watch(model)
    return run


def save(comm: Communicator, run: TrainState, step: int, also: dict[str, Any] | None = None,
         others: dict[str, np.ndarray] | None = None) -> None:
    """Write a checkpoint after `step` steps: rank 0 writes, but every rank must call it.

    Its description says `also` this; `others` are further arrays, by kind/name.
    """
    model, states = run.strategy.state_dict(), run.optimizer.state_dict()

    def write() -> None:
        description = {**run.task.describe(), "step": step, "optimizer": run.options.optimizer,
                       "updates": run.optimizer.num_steps,
                       "scaler": run.scaler and run.scaler.state_dict(),
                       "dtype": run.options.dtype, "seed": run.options.seed, "losses": run.losses,
                       "options": {name: getattr(run.options, name) for name in REMEMBERED}}
        if run.compression:
            description["compression"] = run.compression
        whole = files.Checkpoint(model, states, description | (also or {}), others or {})
        files.save(run.options.out, compact(whole, run.kept))
    on_first_rank(comm, write)


def train(comm: Communicator, run: TrainState,
          progress: Callable[[int, float], None] = lambda step, loss: None,
          keep: Callable[[int], None] | None = None) -> None:
    """Take the steps that are left; `progress(step, loss)` is called after each.

    `keep(step)` writes a checkpoint, if not `save`; with --save-every on the way, and in the end.
    Raises UsageError, on every rank at once, when the loss is no longer a number.
    """
    options = run.options
    if keep is None and options.out is not None:
        keep = partial(save, comm, run)
    traced = min(run.first_step + 2, options.steps - 1)     # a warm one
    for step in range(run.first_step, options.steps):
        observed = step == traced and options.out is not None
        with run.memory.recording(observed):
            loss = observed_step(comm, run, step) if observed else take_step(run, step)
        run.losses.append(loss)
        progress(step, loss)
        if options.save_every and (step + 1) % options.save_every == 0 \
                and step + 1 < options.steps:
            keep(step + 1)
    if keep is not None:
        keep(options.steps)


def take_step(run: TrainState, step: int) -> float:
    """One step of the optimizer on the batch of `step`; returns the loss of the whole batch."""
    options, strategy, optimizer = run.options, run.strategy, run.optimizer
    optimizer.zero_grad()
    scale = run.scaler.scale if run.scaler else 1.0
    with run.memory.step():
        loss = strategy.forward_backward(microbatches(run, step), options.seed, step, scale)
    is_finite = math.isfinite(loss)
    if not is_finite and not (run.scaler and run.scaler.can_shrink):
        scaled = f" with loss scale {scale:g}" if run.scaler else ""
        raise UsageError(f"the loss is {loss} at step {step}{scaled}: lower --lr {options.lr:g}, "
                         "or clip harder with --clip", status=1)
    if run.scaler:
        is_finite = unscale(strategy, scale) and is_finite      # asked on all ranks, in any case
        run.scaler.update(not is_finite)
        if not is_finite:
            return loss                     # all ranks skip this step
    if options.clip:
        strategy.clip_grad_norm(options.clip)
    optimizer.lr = warmup_cosine(step, options.lr, options.warmup, options.steps, options.lr / 10)
    strategy.step(optimizer)
    return loss


def microbatches(run: TrainState, step: int) -> list[Microbatch]:
    """This rank's rows of the batch of `step`, in as many parts as the options say."""
    batch = run.task.batches.batch(step)
    mine = batch.select(run.strategy.rows(len(batch.samples)))
    return [Microbatch(asarray_like(inputs, run.array), asarray_like(targets, run.array), samples)
            for inputs, targets, samples in mine.split(num_microbatches(run.options))]


def observed_step(comm: Communicator, run: TrainState, step: int) -> float:
    """`take_step`, with the messages, computations and memory of it kept for the pictures."""
    begun = comm.now()
    comm.start_trace()
    loss = metered(lambda comm: take_step(run, step))(comm)
    trace, run.traced = comm.stop_trace(), (begun, comm.now())
    run.trace, run.pipeline = gather_trace(comm, trace), pipeline_of(run.strategy, trace)
    return loss


def distance_to_one_rank(comm: Communicator, options: argparse.Namespace,
                         make_task: Callable[[argparse.Namespace], Task]) -> float | None:
    """How far the first --verify steps on all ranks are from the same on one, in float64.

    The largest difference of any parameter after the last step, relative to the largest parameter;
    on rank 0.  Every rank must call it.
    """
    options = argparse.Namespace(**{**vars(options), "dtype": "float64", "steps": options.verify,
                                    "warmup": 0, "resume": None, "out": None, "save_every": 0,
                                    "memory_limit": None, **ALONE, "remat": wider(options)})
    together = begin(comm, options, make_task(options))
    train(comm, together)
    ours = together.strategy.state_dict()
    alone_comm = comm.split(comm.rank)
    if comm.rank:
        return None
    options = argparse.Namespace(**{**vars(options), "strategy": "ddp", "accumulate": 1,
                                    "hybrid_shard": None, "mesh": None, "microbatches": None,
                                    "offload": "", "remat": "none"})
    alone = begin(alone_comm, options, make_task(options))
    train(alone_comm, alone)
    theirs = alone.strategy.state_dict()
    largest = max(np.max(np.abs(array)) for array in theirs.values())
    return max(float(np.max(np.abs(ours[name] - theirs[name]))) for name in theirs) / float(largest)
