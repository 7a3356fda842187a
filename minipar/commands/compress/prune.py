"""`minipar prune CHECKPOINT`: a trained model with fewer weights, or fewer neurons and heads.

    minipar prune out/gpt --amount 0.8 --out out/gpt-pruned
    minipar prune out/digits --amount 0.9 --steps 300 --gradual --out out/digits-pruned
    minipar prune out/gpt --method structured --amount 0.5 --steps 100 --out out/gpt-small
    minipar prune --resume out/digits-pruned            what was interrupted goes on

With --steps the model is trained on meanwhile, or afterwards; `minipar train --resume` goes on from
what is written, on any mesh, and masks are kept.
"""

import argparse
import math
from pathlib import Path

from ...comm import Cluster, Communicator
from ...compress.footprint import ModelVersion, measure, model_bytes, sparse_versions
from ...compress.pruning.prune import METHODS, SCOPES, check_amount
from ...compress.pruning.shrink import without_masks
from ...environment import launched
from ...launcher import UsageError, launch
from ...nn import Module
from ...train import TrainState
from ...train.recipes.pruning import (
    SPARE,
    PruneConfig,
    open_run,
    prune_run,
    resume_run,
    train_on,
)
from ...train.setup.corpus import NoText
from ...train.tasks import Task
from ...units import in_bytes, time_unit
from ..tables import Column, Output, Shown, Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("checkpoint", type=Path, nargs="?", metavar="CHECKPOINT",
                        help="a checkpoint of `minipar train`, or its folder")
    parser.add_argument("--amount", type=float, metavar="A",
                        help="share of weights, or of neurons and heads, to remove (0.5)")
    parser.add_argument("--method", choices=METHODS,
                        help="what to remove: the smallest weights (default); random ones; those "
                             "on which the loss depends least, to first order; whole neurons and "
                             "heads; or 2 of every 4 inputs")
    parser.add_argument("--scope", choices=SCOPES,
                        help="share of all linear layers together, or of each (global)")
    parser.add_argument("--steps", type=int, metavar="N", help="train on for N steps (0)")
    parser.add_argument("--gradual", action="store_true",
                        help="with --steps: prune step by step meanwhile, along a cubic")
    parser.add_argument("--lr", type=float,
                        help="peak learning rate of the whole run, which ends with these steps "
                             "(as in the training)")
    parser.add_argument("--data", metavar="docs|PATH",
                        help="another text to train on, or the new place of the one before")
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="folder of the pruned checkpoint")
    parser.add_argument("--save-every", type=int, default=0, metavar="N",
                        help="with --steps: also write a checkpoint every N steps")
    parser.add_argument("--resume", type=Path, metavar="DIR",
                        help="instead of CHECKPOINT: continue the pruning in DIR as it began, and "
                             "write there if --out is not given")


def main(options: argparse.Namespace, output: Output) -> None:
    """Prune, train on if asked, write, and print the costs.  Raises UsageError."""
    config = parse_config(options)
    try:
        launch(lambda comm: run_on(comm, config, output),
               cluster=None if launched() else Cluster(1))
    except (ValueError, OSError, TypeError) as error:
        raise UsageError.of(error) from error


def parse_config(options: argparse.Namespace) -> PruneConfig:
    """The configuration of the pruning.  Raises UsageError for options that cannot work."""
    if options.resume is not None:
        check_resume(options)
        out = options.out or (options.resume if options.resume.is_dir() else options.resume.parent)
    elif options.checkpoint is None or options.out is None:
        raise UsageError("pruning needs a checkpoint and a place for the result: minipar prune "
                         "CHECKPOINT --out DIR (or --resume DIR)")
    else:
        out = options.out
    method, steps = options.method or "magnitude", options.steps or 0
    only = method in ("structured", "2:4")
    for flag, given, wrong in (("--amount", options.amount is not None, method == "2:4"),
                               ("--scope", options.scope is not None, only),
                               ("--gradual", options.gradual, only)):
        if given and wrong:
            raise UsageError(f"{flag} does not go with --method {method}: leave it out")
    for flag, value in (("--steps", steps), ("--save-every", options.save_every)):
        if value < 0:
            raise UsageError(f"{flag} {value}: give a number of at least 0")
    if options.gradual and steps < SPARE:
        raise UsageError(f"--gradual prunes while it trains: give --steps of at least {SPARE}")
    if options.lr is not None and not (0 <= options.lr < math.inf and steps):
        raise UsageError(f"--lr {options.lr:g}: give a number >= 0, and --steps" if steps
                         else "--lr is of the training: give --steps too, or leave it out")
    if options.save_every and not steps and options.resume is None:
        raise UsageError("--save-every is of the training: give --steps too, or leave it out")
    amount = 0.5 if options.amount is None else options.amount
    try:
        check_amount(amount)
    except ValueError as error:
        raise UsageError(f"--amount {amount:g}: {error}") from error
    return PruneConfig(out, options.checkpoint, options.resume, method, amount,
                       options.scope or "global", steps, options.gradual, options.lr, options.data,
                       options.save_every)


def check_resume(options: argparse.Namespace) -> None:
    """Raise UsageError for options that contradict the pruning that goes on."""
    for name in ("amount", "method", "scope", "steps", "gradual", "lr", "checkpoint"):
        if getattr(options, name) is not None and getattr(options, name) is not False:
            what = "a CHECKPOINT" if name == "checkpoint" else f"--{name}"
            raise UsageError(f"{what} does not go with --resume: the pruning in {options.resume} "
                             "goes on as it began, leave it out")


def run_on(comm: Communicator, config: PruneConfig, output: Output) -> None:
    """The whole program of its one rank."""
    run = (open_run if config.resume is None else resume_run)(comm, config)
    task, dense = run.state.task, without_masks(run.state.strategy.model)
    output.text(f"before: {summary(task, dense)}")
    if config.resume is None:
        prune_run(comm, run)
    else:
        output.text(f"resumed from {config.resume} after {run.state.first_step} steps")
    train_on(comm, run, output.console)
    state, kept = run.state, run.state.compression.kept
    small = without_masks(state.strategy.model)
    output.text(f"after:  {summary(state.task, small)}")
    if kept:
        output.table(layers(state))
    versions = {"before": ModelVersion(model_bytes(dense), dense)}
    versions |= sparse_versions(state.strategy.model, kept, run.plan.method == "2:4") \
        if kept else {"smaller": ModelVersion(model_bytes(small), small)}
    if kept or config.resume is None:       # else the model before is not known any more
        output.table(costs(versions, state))
    output.text(f"checkpoint: {config.out / 'checkpoint.npz'}")


def summary(task: Task, model: Module) -> str:
    """One line on the model's score, or on why there is none: its text may be gone."""
    try:
        return task.summary(model)[1]
    except NoText as error:
        return f"not scored: {error}"


def layers(state: TrainState) -> Table:
    """The shares of the weights that are kept."""
    table = Table.of("what is kept", "weight", "of", "kept", "share")
    for name, mask in state.compression.kept.items():
        kept = int(mask.sum())
        note = "" if kept else "  nothing: prune less, or with --scope layer"
        table.add(name + note, mask.size, kept, Shown(kept / mask.size, f"{kept / mask.size:.1%}"))
    return table


def costs(versions: dict[str, ModelVersion], state: TrainState) -> Table:
    """Bytes, FLOPs and time of one forward of a batch, each by itself."""
    inputs = state.task.example_inputs()
    found = measure(versions, inputs)
    before = found["before"]
    unit, scale = time_unit(max(f.seconds for f in found.values()))
    table = Table.of(f"one forward of {len(inputs)} samples", "model", Column("parameters", "B"),
                     "ratio", "FLOPs", "ratio", Column(unit, "s"), "ratio")
    for name, cost in found.items():
        in_size, in_flops, in_time = (cost.num_bytes / before.num_bytes, cost.flops / before.flops,
                                      cost.seconds / before.seconds)
        table.add(name, Shown(cost.num_bytes, in_bytes(cost.num_bytes)),
                  Shown(in_size, f"{in_size:.2f}"), cost.flops,
                  Shown(in_flops, f"{in_flops:.2f}"),
                  Shown(cost.seconds, f"{cost.seconds * scale:.3g}"),
                  Shown(in_time, f"{in_time:.2f}" + " slower" * (in_time > 1.1)))
    return table
