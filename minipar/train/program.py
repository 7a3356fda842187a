"""`train(config)`: the whole training program, from a configuration to its result.

    checks ─▶ ranks ─▶ start_run ─▶ steps ─▶ summary, sample, pictures, comparison with one rank

`minipar train` calls it with a console; without one it is silent.
"""

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ..backend.malloc import keep_freed_memory
from ..comm import Cluster, Communicator
from ..compare_runs.difference import Difference
from ..environment import check_real_ranks, launched
from ..launcher import launch, on_first_rank
from ..nn import Module
from .check import check_machine, checked
from .checkpoints.models import load_checkpoint
from .config import TrainConfig
from .loop import TrainState, train_steps
from .recipes.side_by_side import compare_with_one_rank, recorded
from .report import ProgressBar, describe_loads, draw_pictures, print_headline
from .setup.mesh import num_ranks_of
from .setup.precision import apply_precision, describe_loss_scaling, score_note
from .setup.rank_memory import memory_errors_as_usage, process_limit
from .setup.remat import check_budget, repeated_parts
from .start import saving, start_run
from .tasks import Score, make_task


@dataclass
class TrainResult:
    """The result of a training run.  Model, score and files are on rank 0 only."""

    config: TrainConfig
    losses: list[float]                 # of every step, also of those before --resume
    model: Module | None = None         # whole, on one process
    score: Score | None = None          # on data it has not seen
    comparison: Difference | None = None    # by --verify; only rank 0 has its gaps
    files: list[Path] = field(default_factory=list)

    @property
    def distance(self) -> float | None:
        """The largest relative difference that --verify found, on rank 0; None without --verify."""
        return None if self.comparison is None else self.comparison.distance


def train(config: TrainConfig, console: Console | None = None) -> TrainResult:
    """Train as `config` says, on the ranks of mpirun or on simulated ones; print to `console`.

    Raises UsageError, where possible before the ranks start.
    """
    config = checked(config)
    num_ranks = num_ranks_of(config)
    check_machine(config)
    task = make_task(config)
    if config.run.resume is not None:
        load_checkpoint(config, task)      # finds mistakes before MPI starts
    check_budget(config, apply_precision(config, task.build()), task.batches.batch(0)[0], num_ranks)
    keep_freed_memory(config.memory.memory_limit is None)
    if launched():
        if config.run.check:
            check_real_ranks()
        return launch(lambda comm: train_rank_limited(comm, config, console))
    with process_limit(config, num_ranks):
        return launch(lambda comm: train_rank(comm, config, console), cluster=Cluster(num_ranks))


def train_rank_limited(comm: Communicator, config: TrainConfig,
                       console: Console | None) -> TrainResult:
    """`train_rank` under --memory-limit, which is set only now: MPI needs memory to start."""
    with process_limit(config, num_ranks=1):
        return train_rank(comm, config, console)


def train_rank(comm: Communicator, config: TrainConfig,
               console: Console | None = None) -> TrainResult:
    """Collective.  The whole program of one rank."""
    with memory_errors_as_usage():
        state = start_run(comm, config, make_task(config))
    with memory_errors_as_usage(state.memory.ledger):
        return finish(comm, state, console or Console(quiet=True))


def finish(comm: Communicator, state: TrainState, console: Console) -> TrainResult:
    """Collective.  Take the steps, print the results, draw the pictures, compare with one rank."""
    run, is_first = state.config.run, comm.rank == 0
    kind = "MPI" if launched() else "simulated"
    world = "one rank" if comm.size == 1 else f"{comm.size} {kind} ranks"
    if is_first:
        print_headline(state, world, console)
    with ProgressBar(comm, state, console) as progress, recorded(state, comm.rank) as take:
        train_steps(comm, state, progress, saving(comm, state), take=take)
    result = TrainResult(state.config, state.losses, state.plain_model(comm))
    if is_first:
        summarize(state, result, console)
    if run.out is not None:
        pictures = on_first_rank(comm, lambda: draw_pictures(state, world, run.out)) or []
        result.files = [*pictures, run.out / "checkpoint.npz"] if is_first else []
        for file in result.files:
            kind = "checkpoint" if file.suffix == ".npz" else "picture"
            console.print(f"{kind}: {file}", highlight=False, markup=False)
    if run.verify and comm.size == 1:
        console.print("--verify compares several ranks with one: there is only one here")
    elif run.verify:
        result.comparison = compare_with_one_rank(comm, state.config)
        if is_first and result.comparison.verdict == "equal":
            console.print(f"the same: after {run.verify} steps in float64, {world} are "
                          f"{result.distance:.1e} (relative) from one rank, in activations, "
                          "losses, gradients and parameters", highlight=False)
    return result


def summarize(state: TrainState, result: TrainResult, console: Console) -> None:
    """Print the final loss, the score, what experts, offloading and remat did, and a sample.

    Rank 0 only.
    """
    config, task = state.config, state.task
    result.score, line = task.summary(result.model)
    console.print(f"final loss {state.losses[-1]:.3f}; {line}"
                  f"{score_note(config.precision.compute)}{describe_loss_scaling(state.scaler)}",
                  highlight=False)
    if line := describe_loads(state):
        console.print(line, highlight=False)
    if summary := state.memory.summary():
        console.print(summary, highlight=False)
    if repeated := repeated_parts(config, state.remat_policy):
        console.print(repeated, markup=False, highlight=False)
    if config.run.sample:
        console.rule("a sample")
        console.print(task.sample(result.model), markup=False, highlight=False)
        console.rule()
