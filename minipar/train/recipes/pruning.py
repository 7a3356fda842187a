"""The training run behind `minipar prune`: fewer weights, or fewer units, and more steps.

    checkpoint ─▶ run ─▶ masks, or a smaller model ─▶ steps ─▶ checkpoint

While it lasts, the description of its checkpoints has an entry "pruning", a Pruning, from which it
goes on when it was interrupted.
"""

import argparse
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from ...comm import Communicator
from ...compress.pruning.masks import Masks, prunable_weights
from ...compress.pruning.prune import n_of_m, prune
from ...compress.pruning.saliency import Scores, calibrate, magnitude, random, taylor
from ...compress.pruning.schedules import GradualPruning
from ...compress.pruning.serialization import KIND
from ...compress.pruning.shrink import shrink, without_masks
from ...compress.pruning.structured import unit_masks
from ...launcher import UsageError
from ...nn import Module
from ..checkpoint_schema import describe_model, sizes_as_options, training_options
from ..flags import check
from ..loop import TrainState, begin, save, take_step
from ..model_checkpoints import read_description
from ..report import ProgressBar
from ..tasks import make_task

SPARE = 3               # the last third of --gradual's steps prunes no more
NUM_CUTS = 20           # at most, of --gradual
CALIBRATION = 8         # batches that gradients are taken of
# On one rank, in full precision, without a new warm-up; afterwards the options are as before.
HERE = {"strategy": "ddp", "accumulate": 1, "warmup": 0, "precision": "fp32", "loss_scale": None,
        "reduce_dtype": "fp32", "remat": "none"}


@dataclass(frozen=True)
class Pruning:
    """A plan for a run from `first_step` to `last_step`, with a peak learning rate `lr`.

    `initial` is the share of weights that was gone before.
    """

    method: str
    amount: float
    scope: str
    gradual: bool
    first_step: int
    last_step: int
    lr: float
    initial: float = 0.0

    @property
    def step(self) -> dict[str, object]:
        """The entry of this pruning in a checkpoint's list of compressions."""
        said = {"kind": KIND, "method": self.method}
        if self.method != "2:4":
            said["amount"] = self.amount
        return said if self.method in ("2:4", "structured") else {**said, "scope": self.scope}


@dataclass
class Work:
    """A run that is being pruned; `before` are the options it had, and will have again."""

    run: TrainState
    plan: Pruning
    before: argparse.Namespace

    def keep(self, comm: Communicator, step: int) -> None:
        """Write the run: for `minipar train --resume`, and on the way for `prune --resume`."""
        run, plan = self.run, self.plan
        options = argparse.Namespace(**{
            **vars(run.options), **{name: getattr(self.before, name) for name in HERE},
            "steps": max(1, plan.last_step)})
        kept = run.masks.local_masks() if run.masks else run.kept
        save(comm, replace(run, options=options, kept=kept), step,
             {"pruning": asdict(plan)} if step < plan.last_step else None)


def open_run(comm: Communicator, options: argparse.Namespace) -> Work:
    """The run that wrote the checkpoint, to go on for --steps more on one rank.

    Raises UsageError for what cannot be pruned, or would be replaced.
    """
    source = options.checkpoint
    if any(step["kind"] != KIND for step in read_description(source).get("compression") or []):
        raise UsageError(f"{source} is quantized, which comes after pruning: prune the model that "
                         "it was made from, then quantize")
    if options.out.resolve() == (source if source.is_dir() else source.parent).resolve():
        raise UsageError(f"--out {options.out} is where the checkpoint is, which would be "
                         "replaced: give another folder")
    description = read_description(source, to_train=True)
    before, first = training_options(description), description["step"]
    return begin_work(comm, options, source, before, Pruning(
        options.method, options.amount, options.scope or "global", options.gradual, first,
        first + options.steps, before.lr if options.lr is None else options.lr))


def resume_run(comm: Communicator, options: argparse.Namespace) -> Work:
    """A pruning that was interrupted, as it was at its last checkpoint.  Raises UsageError."""
    description = read_description(options.resume, to_train=True)
    told = description.get("pruning")
    if told is None:
        raise UsageError(f"--resume {options.resume}: no pruning was interrupted there: `minipar "
                         "train --resume` trains the model on, and keeps its masks")
    plan = Pruning(**{field.name: told[field.name] for field in fields(Pruning)})
    return begin_work(comm, options, options.resume, training_options(description), plan)


def begin_work(comm: Communicator, options: argparse.Namespace, source: Path,
               before: argparse.Namespace, plan: Pruning) -> Work:
    """The run of the checkpoint at `source`, until the last step of `plan`."""
    made = argparse.Namespace(**{
        **vars(before), **HERE, "resume": source, "out": options.out, "lr": plan.lr,
        "steps": max(plan.last_step, plan.first_step + 1), "save_every": options.save_every,
        "data": options.data or before.data})
    check(made)
    return Work(begin(comm, made, make_task(made)), plan, before)


def prune_run(comm: Communicator, work: Work) -> None:
    """Prune the run, or put it on a smaller model; what goes little by little goes later."""
    if work.plan.method == "structured":
        work.run = smaller_run(comm, work.run, work.plan.amount)
    else:
        mask_run(work)
    work.run.compression = [*work.run.compression, work.plan.step]


def mask_run(work: Work) -> None:
    """Put masks on the model of a run; without those that go little by little."""
    run, plan, model = work.run, work.plan, work.run.strategy.model
    if run.masks is None:
        run.masks = Masks(model, {name: np.ones(p.shape, bool)
                                  for name, p in prunable_weights(model).items()})
    masks, gone = run.masks, run.masks.sparsity()
    if plan.method != "2:4" and plan.amount < gone:
        raise UsageError(f"--amount {plan.amount:g}: {gone:.1%} of the weights are gone "
                         "already, ask for more")
    if plan.method == "2:4":
        masks.update({name: n_of_m(values) & masks.local_masks()[name]
                      for name, values in magnitude(masks.parameters).items()})
    elif plan.gradual:
        work.plan = replace(plan, initial=gone)
    else:
        masks.update(prune(model, scores(run, plan, masks.parameters), plan.amount, plan.scope,
                           masks))


def gradual(run: TrainState, plan: Pruning) -> GradualPruning:
    """Prunes the run's model step by step, from where it is."""
    num_steps = plan.last_step - plan.first_step
    length = num_steps - num_steps // SPARE
    made = GradualPruning(run.strategy.model, run.masks, plan.amount, plan.first_step, length,
                   -(-length // NUM_CUTS), plan.scope, initial=plan.initial,
                   score=lambda parameters: scores(run, plan, parameters))
    made.finished = run.first_step > plan.first_step + length
    return made


def scores(run: TrainState, plan: Pruning, parameters: dict) -> Scores:
    """By the method's name; gradients are those of the first batches."""
    if plan.method == "magnitude":
        return magnitude(parameters)
    if plan.method == "random":
        return random(parameters, run.options.seed)
    model = run.strategy.model
    calibrate(model, [run.task.batches.batch(plan.first_step + i)[:2] for i in range(CALIBRATION)])
    found = taylor(parameters)
    model.zero_grad()
    return found


def smaller_run(comm: Communicator, run: TrainState, amount: float) -> TrainState:
    """The run, of a model without the `amount` of its neurons and heads."""
    model = without_masks(run.strategy.model)
    Masks(model, unit_masks(model, amount))
    states: dict[str, dict] = defaultdict(dict)
    for key, array in run.optimizer.state_dict().items():
        state, _, name = key.partition("/")
        states[state][name] = array
    everywhere = {name: np.ones(p.shape, bool) for name, p in model.named_parameters()}
    small, cut = shrink(model, everywhere | run.kept, *states.values())
    if small.num_parameters() == model.num_parameters():
        raise UsageError(f"--amount {amount:g} of so few neurons and heads is none: ask for more, "
                         "or train a wider model")
    options = argparse.Namespace(**{**vars(run.options), **sizes_of(small), "resume": None})
    made = begin(comm, options, make_task(options))
    made.strategy.model.load_state_dict(small.state_dict())
    made.first_step, made.losses = run.first_step, run.losses
    made.compression = run.compression
    made.optimizer.load_state_dict({f"{state}/{name}": array for state, arrays in
                                    zip(states, cut[1:]) for name, array in arrays.items()},
                                   run.optimizer.num_steps)
    if run.kept:
        made.kept = {name: cut[0][name] for name in run.kept}
        made.masks = Masks(made.strategy.model, made.kept)
    return made


def sizes_of(model: Module) -> dict[str, object]:
    """The options of `minipar train` that make such a model."""
    return sizes_as_options(describe_model(model))


def train_on(comm: Communicator, work: Work, console: Console) -> None:
    """Take the steps that are left, each after a little pruning if it is gradual; write the run."""
    run, plan, every = work.run, work.plan, work.run.options.save_every
    cut = gradual(run, plan) if plan.gradual else None
    with bar(comm, work, console) as progress, np.errstate(over="ignore", invalid="ignore"):
        for step in range(run.first_step, plan.last_step):
            if cut is not None:
                cut.step(step)
            loss = take_step(run, step)
            run.losses.append(loss)
            progress(step, loss)
            if every and (step + 1) % every == 0 and step + 1 < plan.last_step:
                work.keep(comm, step + 1)
    if run.masks:
        run.kept = run.masks.local_masks()
        run.masks.zero_masked()
    work.keep(comm, plan.last_step)


def bar(comm: Communicator, work: Work, console: Console) -> AbstractContextManager:
    """The progress bar, which needs data; none where no step is left."""
    is_left = work.run.first_step < work.plan.last_step
    return ProgressBar(comm, work.run, console) if is_left else nullcontext()
