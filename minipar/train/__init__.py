"""`minipar train`: a GPT or an MLP, over all ranks there are, with any strategy."""

import argparse

import numpy as np
from rich.console import Console

from ..backend.malloc import keep_freed_memory
from ..comm import Cluster, Communicator
from ..environment import launched
from ..launcher import UsageError, launch, on_first_rank
from . import flags as choices
from .loop import TrainState, begin, distance_to_one_rank, train
from .model_checkpoints import load_checkpoint, remembered, save_model
from .report import ProgressBar, draw, introduce
from .setup.memory import explained, process_limit
from .setup.precision import narrow_model, of_score, outcome
from .setup.remat import check_budget, plans_of
from .tasks import make_task

add_arguments = choices.add_arguments
__all__ = ["add_arguments", "main", "remembered", "run_on", "save_model"]


def main(options: argparse.Namespace) -> None:
    """Train as `options` say.  Raises UsageError for what can be known before the ranks start."""
    choices.check(options)
    num_ranks = choices.choose_world(options)
    task = make_task(options)
    if options.resume is not None:
        load_checkpoint(options, task)      # a mistake is found now, before MPI starts
    check_budget(options, narrow_model(options, task.build()), task.batches.batch(0)[0], num_ranks)
    keep_freed_memory(options.memory_limit is None)
    if launched():
        launch(lambda comm: limited(comm, options))
        return
    with process_limit(options, num_ranks):
        launch(lambda comm: run_on(comm, options), cluster=Cluster(num_ranks))


def limited(comm: Communicator, options: argparse.Namespace) -> None:
    """One rank under MPI, which has the memory it needs by now: without, it would crash."""
    with process_limit(options, num_ranks=1):
        run_on(comm, options)


def run_on(comm: Communicator, options: argparse.Namespace) -> None:
    """The whole program of one rank."""
    console = Console(stderr=False, soft_wrap=True)
    try:
        with explained():
            run = begin(comm, options, make_task(options))
    except ValueError as error:
        raise UsageError(f"this model cannot be made here ({error}): choose smaller sizes") \
            from error
    with explained(run.memory.ledger):
        finish(comm, run, console)


def finish(comm: Communicator, run: TrainState, console: Console) -> None:
    """Train, and show what came of it."""
    options = run.options
    kind = "MPI" if launched() else "simulated"
    world = "one rank" if comm.size == 1 else f"{comm.size} {kind} ranks"
    if comm.rank == 0:
        introduce(run, world, console)
    with ProgressBar(comm, run, console) as progress, np.errstate(over="ignore", invalid="ignore"):
        train(comm, run, progress)          # which reports a loss that is no number itself
    model = run.plain_model(comm)
    if comm.rank == 0:
        console.print(f"final loss {run.losses[-1]:.3f}; {run.task.summary(model)}"
                      f"{of_score(options.precision)}{outcome(run.scaler)}",
                      highlight=False)
        if summary := run.memory.summary():
            console.print(summary, highlight=False)
        if plans := plans_of(options, run.strategy.model):
            console.print(plans, markup=False, highlight=False)
        if options.sample:
            console.rule("a sample")
            console.print(run.task.sample(model), markup=False, highlight=False)
            console.rule()
    if options.out is not None:
        for picture in on_first_rank(comm, lambda: draw(run, world, options.out)) or []:
            console.print(f"picture: {picture}", highlight=False, markup=False)
        if comm.rank == 0:
            console.print(f"checkpoint: {options.out / 'checkpoint.npz'}", highlight=False,
                          markup=False)
    if options.verify and comm.size == 1:
        console.print("--verify compares several ranks with one: there is only one here")
    elif options.verify:
        distance = distance_to_one_rank(comm, options, make_task)
        if distance is not None:
            verdict = "the same" if distance < 1e-10 else "NOT the same"
            console.print(f"{verdict}: after {options.verify} steps in float64, {world} are "
                          f"{distance:.1e} (relative) from one rank", highlight=False)
