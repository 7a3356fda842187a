"""The training loop, data parallel: the same on one rank, on many, and on simulated ones.

    every rank:  its rows of the batch ─▶ loss ─▶ gradients ─┐
                                                               Σ ─▶ clip ─▶ step

The batch of a step, the dropout masks and the learning rate follow from the number of the step
alone, so a run that is resumed goes on exactly as if it had not stopped.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import checkpoint as files
from ..autograd import count_targets
from ..comm import Communicator, Trace
from ..comm.collectives import gather_trace
from ..launch import UsageError, metered
from ..nn import Module
from ..optim import SGD, Adam, AdamW, Optimizer, clip_grad_norm, warmup_cosine
from ..parallel.data import all_reduce_gradients, global_count, global_loss
from ..random import training_step
from .options import REMEMBERED
from .tasks import Task, check_resume


@dataclass
class Run:
    """A training run: what it is made of, and what came of it."""

    options: argparse.Namespace
    task: Task
    model: Module
    optimizer: Optimizer
    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    trace: Trace | None = None      # of one step, all ranks; on rank 0


def make_optimizer(options: argparse.Namespace, model: Module) -> Optimizer:
    """The optimizer that the options name."""
    if options.optimizer == "sgd":
        return SGD(model.slabs, options.lr, options.momentum, options.weight_decay or 0.0)
    kind = Adam if options.optimizer == "adam" else AdamW
    return kind(model.slabs, options.lr, weight_decay=options.weight_decay)


def begin(options: argparse.Namespace, task: Task) -> Run:
    """A run from the start, or from the checkpoint that --resume names."""
    model = task.build().initialize(options.seed, np.dtype(options.dtype))
    run = Run(options, task, model, make_optimizer(options, model))
    if options.resume is not None:
        saved = load_checkpoint(options, task)
        run.first_step, run.losses = saved.description["step"], list(saved.description["losses"])
        try:
            model.load_state_dict(saved.model)
            run.optimizer.load_state_dict(saved.optimizer, run.first_step)
        except ValueError as error:
            raise UsageError(f"--resume {options.resume}: {error}") from error
    return run


def remembered(options: argparse.Namespace) -> dict:
    """The options of the run that wrote the checkpoint.  Raises UsageError if it is none."""
    return _load(options.resume).description["options"]


def load_checkpoint(options: argparse.Namespace, task: Task) -> files.Checkpoint:
    """The checkpoint that --resume names.  Raises UsageError if it does not fit."""
    saved = _load(options.resume)
    check_resume(task, saved, options)
    return saved


def _load(path: Path) -> files.Checkpoint:
    try:
        saved = files.load(path)
    except files.CheckpointError as error:
        raise UsageError(f"--resume: {error}") from error
    for name, kind in (("step", int), ("losses", list), ("options", dict), ("optimizer", str)):
        if not isinstance(saved.description.get(name), kind):
            raise UsageError(f"--resume {path}: its description has no {name}: it was not written "
                             "by minipar train")
    return saved


def save(run: Run, step: int) -> None:
    """Write a checkpoint after `step` steps; rank 0 only."""
    description = {**run.task.describe(), "step": step, "optimizer": run.options.optimizer,
                   "dtype": run.options.dtype, "seed": run.options.seed, "losses": run.losses,
                   "options": {name: getattr(run.options, name) for name in REMEMBERED}}
    files.save(run.options.out, files.Checkpoint(run.model.state_dict(),
                                                 run.optimizer.state_dict(), description))


def train(comm: Communicator, run: Run,
          progress: Callable[[int, float], None] = lambda step, loss: None) -> None:
    """Take the steps that are left; `progress(step, loss)` is called after each.

    Raises UsageError, on every rank at once, when the loss is no longer a number.
    """
    options, batches = run.options, run.task.batches.shard(comm.rank, comm.size)
    traced = min(run.first_step + 2, options.steps - 1)     # a warm one
    for step in range(run.first_step, options.steps):
        if step == traced and options.out is not None:
            comm.start_trace()
            loss = metered(lambda c, s=step: take_step(c, run, batches, s))(comm)
            run.trace = gather_trace(comm, comm.stop_trace())
        else:
            loss = take_step(comm, run, batches, step)
        run.losses.append(loss)
        progress(step, loss)
        if options.save_every and (step + 1) % options.save_every == 0 and comm.rank == 0 \
                and step + 1 < options.steps:
            save(run, step + 1)
    if options.out is not None and comm.rank == 0:
        save(run, options.steps)


def take_step(comm: Communicator, run: Run, batches, step: int) -> float:
    """One step of the optimizer on the batch of `step`; returns the loss of the whole batch."""
    options, model, optimizer = run.options, run.model, run.optimizer
    inputs, targets, samples = batches.batch(step)
    num_targets = global_count(comm, count_targets(targets))
    optimizer.zero_grad()
    with training_step(options.seed, step, samples):
        loss = model.loss(inputs, targets, num_targets)
    value = global_loss(comm, loss.data)
    if not math.isfinite(value):
        raise UsageError(f"the loss is {value} at step {step}: lower --lr {options.lr:g}, or clip "
                         "harder with --clip", status=1)
    loss.backward()
    all_reduce_gradients(model, comm)
    if options.clip:
        clip_grad_norm(model.slabs, options.clip)
    optimizer.lr = warmup_cosine(step, options.lr, options.warmup, options.steps, options.lr / 10)
    optimizer.step()
    return value


def distance_to_one_rank(comm: Communicator, options: argparse.Namespace,
                         make_task: Callable[[argparse.Namespace], Task]) -> float | None:
    """How far the first --verify steps on all ranks are from the same on one, in float64.

    The largest difference of any parameter after the last step, relative to the largest parameter;
    on rank 0.  Every rank must call it.
    """
    options = argparse.Namespace(**{**vars(options), "dtype": "float64", "steps": options.verify,
                                    "warmup": 0, "resume": None, "out": None, "save_every": 0})
    together = begin(options, make_task(options))
    train(comm, together)
    alone_comm = comm.split(comm.rank)
    if comm.rank:
        return None
    alone = begin(options, make_task(options))
    train(alone_comm, alone)
    ours, theirs = together.model.state_dict(), alone.model.state_dict()
    largest = max(np.max(np.abs(array)) for array in theirs.values())
    return max(float(np.max(np.abs(ours[name] - theirs[name]))) for name in theirs) / float(largest)
