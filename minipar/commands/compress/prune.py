"""`minipar prune CHECKPOINT`: a trained model with fewer weights, or fewer neurons and heads.

    minipar prune out/gpt --amount 0.8 --out out/gpt-pruned
    minipar prune out/digits --amount 0.9 --steps 300 --gradual --out out/digits-pruned
    minipar prune out/gpt --method structured --amount 0.5 --steps 100 --out out/gpt-small
    minipar prune --resume out/digits-pruned            an interrupted pruning goes on

With --steps the training goes on after the pruning, or with --gradual during it.  `minipar
train --resume` goes on from the checkpoint, on any mesh, and keeps the masks.
"""

from ...comm import Cluster, Communicator
from ...compress.footprint import ModelVersion, measure, model_bytes, sparse_versions
from ...compress.pruning.shrink import without_masks
from ...environment import launched
from ...launcher import errors_as_usage, launch
from ...nn import Module
from ...train import TrainState
from ...train.recipes.pruning import (
    PruneConfig,
    check_options,
    open_run,
    prune_run,
    resume_run,
    train_on,
)
from ...train.setup.corpus import NoText
from ...train.tasks import Task
from ...units import in_bytes, time_unit
from ..tables import Column, Output, Shown, Table

Options = PruneConfig


def main(options: Options, output: Output) -> None:
    """Prune, train on if asked, write, and print the costs.  Raises UsageError."""
    check_options(options)
    launch(lambda comm: run_on(comm, options, output), cluster=None if launched() else Cluster(1))


def run_on(comm: Communicator, options: Options, output: Output) -> None:
    """The whole program, on one rank."""
    with errors_as_usage():
        run = (open_run if options.resume is None else resume_run)(comm, options)
        dense = without_masks(run.state.strategy.model)
    output.text(f"before: {summary(run.state.task, dense)}")
    if options.resume is None:
        with errors_as_usage():
            prune_run(comm, run)
    else:
        output.text(f"resumed from {options.resume} after {run.state.first_step} steps")
    train_on(comm, run, output.console)
    state, kept = run.state, run.state.compression.kept
    small = without_masks(state.strategy.model)
    output.text(f"after:  {summary(state.task, small)}")
    if kept:
        output.table(layers(state))
    versions = {"before": ModelVersion(model_bytes(dense), dense)}
    versions |= sparse_versions(state.strategy.model, kept, run.plan.method == "2:4") \
        if kept else {"smaller": ModelVersion(model_bytes(small), small)}
    if kept or options.resume is None:      # else the model before the pruning is no longer known
        output.table(costs(versions, state))
    output.text(f"checkpoint: {options.folder / 'checkpoint.npz'}")


def summary(task: Task, model: Module) -> str:
    """One line on the model's score, or on why there is none: its text may be gone."""
    try:
        return task.summary(model)[1]
    except NoText as error:
        return f"not scored: {error}"


def layers(state: TrainState) -> Table:
    """The number and the share of the weights that each mask keeps."""
    table = Table.of("what is kept", "weight", "of", "kept", "share")
    for name, mask in state.compression.kept.items():
        kept = int(mask.sum())
        note = "" if kept else "  nothing: prune less, or with --scope layer"
        table.add(name + note, mask.size, kept, Shown(kept / mask.size, f"{kept / mask.size:.1%}"))
    return table


def costs(versions: dict[str, ModelVersion], state: TrainState) -> Table:
    """Bytes of each version of the model; FLOPs and seconds of its forward of one batch."""
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
