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

from rich.console import Console
from rich.table import Table

from ...comm import Cluster, Communicator
from ...compress.footprint import ModelVersion, measure, model_bytes, sparse_versions
from ...compress.pruning.prune import METHODS, SCOPES, check_amount
from ...compress.pruning.shrink import without_masks
from ...environment import launched
from ...launcher import UsageError, launch
from ...nn import Module
from ...train.corpus import NoText
from ...train.loop import TrainState
from ...train.recipes.pruning import SPARE, open_run, prune_run, resume_run, train_on
from ...train.tasks import Task
from ...units import in_bytes, time_unit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("checkpoint", type=Path, nargs="?", metavar="CHECKPOINT",
                        help="what `minipar train --out` wrote: a folder, or the file in it")
    parser.add_argument("--amount", type=float, metavar="A",
                        help="the share of weights, or of neurons and heads, that goes (0.5)")
    parser.add_argument("--method", choices=METHODS,
                        help="who goes: the smallest weights (default); any; those that the loss "
                             "depends on least, to first order; whole neurons and heads; or 2 of "
                             "every 4 inputs")
    parser.add_argument("--scope", choices=SCOPES,
                        help="the share is of all linear layers together, or of each (global)")
    parser.add_argument("--steps", type=int, metavar="N", help="train on for N steps (0)")
    parser.add_argument("--gradual", action="store_true",
                        help="with --steps: prune little by little meanwhile, along a cubic")
    parser.add_argument("--lr", type=float,
                        help="peak learning rate of the whole run, which ends with these steps "
                             "(as before)")
    parser.add_argument("--data", metavar="docs|PATH",
                        help="another text to train on, or where that of the training is now")
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="where the pruned checkpoint goes")
    parser.add_argument("--save-every", type=int, default=0, metavar="N",
                        help="with --steps: also write a checkpoint every N steps")
    parser.add_argument("--resume", type=Path, metavar="DIR",
                        help="instead of CHECKPOINT: go on with the pruning there, as it began; "
                             "what is written goes there if no --out is given")


def main(options: argparse.Namespace) -> None:
    """Prune, train on if asked, write, and print what it costs.  Raises UsageError."""
    if launched() and launched().size > 1:
        raise UsageError(f"prune works on one rank, not on {launched().size}: run it without "
                         "mpirun, and `minipar train --resume` on as many as you like")
    check_options(options)
    try:
        launch(lambda comm: run_on(comm, options), cluster=None if launched() else Cluster(1))
    except (ValueError, OSError, TypeError) as error:
        raise UsageError.of(error) from error


def check_options(options: argparse.Namespace) -> None:
    """Raise UsageError for options that cannot work or do nothing; set the defaults of others."""
    if options.resume is not None:
        check_resume(options)
    elif options.checkpoint is None or options.out is None:
        raise UsageError("what is to be pruned, and where does it go? minipar prune CHECKPOINT "
                         "--out DIR (or --resume DIR)")
    options.method, options.steps = options.method or "magnitude", options.steps or 0
    only = options.method in ("structured", "2:4")
    for name, given, wrong in (("--amount", options.amount is not None, options.method == "2:4"),
                               ("--scope", options.scope is not None, only),
                               ("--gradual", options.gradual, only)):
        if given and wrong:
            raise UsageError(f"{name} does not go with --method {options.method}: leave it out")
    for name in ("steps", "save_every"):
        if getattr(options, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(options, name)}: give a number "
                             "of at least 0")
    if options.gradual and options.steps < SPARE:
        raise UsageError(f"--gradual prunes while it trains: give --steps of at least {SPARE}")
    if options.lr is not None and not (0 <= options.lr < math.inf and options.steps):
        raise UsageError(f"--lr {options.lr:g}: give a number >= 0, and --steps" if options.steps
                         else "--lr is of the training: give --steps too, or leave it out")
    if options.save_every and not options.steps and options.resume is None:
        raise UsageError("--save-every is of the training: give --steps too, or leave it out")
    options.amount = 0.5 if options.amount is None else options.amount
    try:
        check_amount(options.amount)
    except ValueError as error:
        raise UsageError(f"--amount {options.amount:g}: {error}") from error


def check_resume(options: argparse.Namespace) -> None:
    """Raise UsageError for options that contradict the pruning that goes on."""
    for name in ("amount", "method", "scope", "steps", "gradual", "lr", "checkpoint"):
        if getattr(options, name) is not None and getattr(options, name) is not False:
            what = "a CHECKPOINT" if name == "checkpoint" else f"--{name}"
            raise UsageError(f"{what} does not go with --resume: the pruning in {options.resume} "
                             "goes on as it began, leave it out")
    is_folder = options.resume.is_dir()
    options.out = options.out or (options.resume if is_folder else options.resume.parent)


def run_on(comm: Communicator, options: argparse.Namespace) -> None:
    """The whole program of its one rank."""
    console = Console(soft_wrap=True, highlight=False)
    work = (open_run if options.resume is None else resume_run)(comm, options)
    dense = without_masks(work.run.strategy.model)
    console.print(f"before: {summary(work.run.task, dense)}", markup=False)
    if options.resume is None:
        prune_run(comm, work)
    else:
        console.print(f"resumed from {options.resume} after {work.run.first_step} steps",
                      markup=False)
    train_on(comm, work, console)
    run, method = work.run, work.plan.method
    small = without_masks(run.strategy.model)
    console.print(f"after:  {summary(run.task, small)}", markup=False)
    if run.kept:
        console.print(layers(run))
    versions = {"before": ModelVersion(model_bytes(dense), dense)}
    versions |= sparse_versions(run.strategy.model, run.kept, method == "2:4") \
        if run.kept else {"smaller": ModelVersion(model_bytes(small), small)}
    if run.kept or options.resume is None:      # else what it was before is not known any more
        console.print(costs(versions, run))
    console.print(f"checkpoint: {options.out / 'checkpoint.npz'}", markup=False)


def summary(task: Task, model: Module) -> str:
    """One line on the model's score, or on why there is none: its text may be gone."""
    try:
        return task.summary(model)
    except NoText as error:
        return f"not scored: {error}"


def layers(run: TrainState) -> Table:
    """What is left of each weight."""
    table = Table("weight", title="what is kept", title_justify="left")
    for header in ("of", "kept", "share"):
        table.add_column(header, justify="right")
    for name, mask in run.kept.items():
        kept = int(mask.sum())
        note = "" if kept else "  nothing: prune less, or with --scope layer"
        table.add_row(name + note, f"{mask.size:,}", f"{kept:,}", f"{kept / mask.size:.1%}")
    return table


def costs(versions: dict[str, ModelVersion], run: TrainState) -> Table:
    """Bytes, FLOPs and time of one forward of a batch, each by itself."""
    inputs = run.task.example_inputs()
    found = measure(versions, inputs)
    before = found["before"]
    unit, scale = time_unit(max(f.seconds for f in found.values()))
    table = Table("", title=f"one forward of {len(inputs)} samples", title_justify="left")
    for header in ("parameters", "ratio", "FLOPs", "ratio", unit, "ratio"):
        table.add_column(header, justify="right")
    for name, cost in found.items():
        ratio = cost.seconds / before.seconds
        table.add_row(name, in_bytes(cost.num_bytes), f"{cost.num_bytes / before.num_bytes:.2f}",
                      f"{cost.flops:,}", f"{cost.flops / before.flops:.2f}",
                      f"{cost.seconds * scale:.3g}", f"{ratio:.2f}" + " slower" * (ratio > 1.1))
    return table
