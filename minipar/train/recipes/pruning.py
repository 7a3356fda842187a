"""The training run behind `minipar prune`: fewer weights, or fewer units, and more steps.

    checkpoint ─▶ run ─▶ masks, or a smaller model ─▶ steps ─▶ checkpoint

Until the run ends, the description of its checkpoints has an entry "pruning", with the fields of a
Pruning.  `minipar prune --resume` continues from it.
"""

from collections import defaultdict
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from ...comm import Communicator
from ...compress.pruning.masks import Masks, prunable_weights
from ...compress.pruning.prune import METHODS, SCOPES, check_amount, prune
from ...compress.pruning.saliency import Scores, calibrate, magnitude, random, taylor
from ...compress.pruning.serialization import KIND
from ...compress.pruning.shrink import shrink, without_masks
from ...compress.pruning.sparsity_schedule import GradualPruning
from ...compress.pruning.structured import unit_masks
from ...compress.pruning.two_of_four import n_of_m
from ...launcher import UsageError, errors_as_usage
from ..check import check_folder, checked
from ..checkpoints.models import read_description, refuse_same_folder
from ..checkpoints.resume import save
from ..checkpoints.schema import config_of, describe_config, describe_model, sizes_as_options
from ..config import TrainConfig
from ..loop import TrainState, train_steps
from ..option import Beside, TrainingOptions, checkpoint, option, other_text
from ..report import ProgressBar
from ..setup.precision import FULL_PRECISION
from ..setup.starting_point import Compression
from ..start import start_run
from ..tasks import make_task

SPARE = 3                   # --gradual prunes in all but the last third of its steps
MAX_CUTS = 20               # of --gradual: it prunes at most this often
CALIBRATION_BATCHES = 8     # whose gradients give the scores of "taylor"
# A pruning runs on one rank, in full precision, without a new warm-up.  Its checkpoints have the
# options of the run before it.
ON_ONE_RANK = {"strategy": "ddp", "accumulate": 1, "warmup": 0, "remat": "none", **FULL_PRECISION}


BEGAN = Beside("resume", "", "was chosen when the pruning began")
UNITS, PATTERN = (Beside("method", name, "is for weights that go one by one")
                  for name in ("structured", "2:4"))
TRAINS = Beside("steps", str(SPARE), "is of the training")


@dataclass(frozen=True, kw_only=True)
class PruneConfig(TrainingOptions):
    """The options of `minipar prune`; either `checkpoint` or `resume` is given."""

    checkpoint: Path | None = checkpoint("a checkpoint of `minipar train`, or its folder", None,
                                         without=(BEGAN,))
    amount: float = option(0.5, "share of weights, or of neurons and heads, to remove",
                           metavar="A", without=(BEGAN, PATTERN))
    method: str = option("magnitude", "what to remove: the smallest weights; random ones; those on "
                         "which the loss depends least, to first order; whole neurons and heads; "
                         "or 2 of every 4 inputs", choices=METHODS, without=(BEGAN,))
    scope: str = option("global", "share of all linear layers together, or of each",
                        choices=SCOPES, without=(BEGAN, UNITS, PATTERN))
    steps: int = option(0, "train on for N steps", least=0, without=(BEGAN,))
    gradual: bool = option(False, "with --steps: prune step by step meanwhile, along a cubic",
                           needs=TRAINS, without=(BEGAN, UNITS, PATTERN))
    lr: float | None = option(None, "peak learning rate of the whole run, which ends with these "
                              "steps", least=0, metavar="LR", default_text="as in the training",
                              needs=TRAINS, without=(BEGAN,))
    data: str | None = other_text("train on")


def check_options(options: PruneConfig) -> None:
    """Raise UsageError for options that cannot work together."""
    if options.folder is None or not (options.checkpoint or options.resume):
        raise UsageError("pruning needs a checkpoint and a place for the result: minipar prune "
                         "CHECKPOINT --out DIR (or --resume DIR)")
    if options.gradual and options.steps < SPARE:
        raise UsageError(f"--gradual prunes while it trains: give --steps of at least {SPARE}")
    if options.save_every and not options.steps and options.resume is None:
        raise UsageError("--save-every is of the training: give --steps too, or leave it out")
    with errors_as_usage(f"--amount {options.amount:g}: "):
        check_amount(options.amount)


@dataclass(frozen=True)
class Pruning:
    """What to prune, and for which steps to train on: `first_step` to `last_step`.

    `lr` is the peak rate of the whole run, `initial` the share of weights that were pruned before.
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
    def compression_step(self) -> dict[str, object]:
        """The entry of this pruning in a checkpoint's list of compressions."""
        entry = {"kind": KIND, "method": self.method}
        if self.method != "2:4":
            entry["amount"] = self.amount
        if self.method not in ("2:4", "structured"):
            entry["scope"] = self.scope
        return entry


@dataclass
class PruningRun:
    """A run that is being pruned; `before` is its configuration, which the pruning overrides."""

    state: TrainState
    plan: Pruning
    before: TrainConfig

    def save(self, comm: Communicator, step: int) -> None:
        """Write a checkpoint for `train --resume`, and until the end also for `prune --resume`."""
        state, plan = self.state, self.plan
        config = state.config.updated(steps=max(1, plan.last_step), **{
            name: self.before.get(name) for name in ON_ONE_RANK})
        entries = describe_config(config)
        if step < plan.last_step:
            entries["pruning"] = asdict(plan)
        if state.compression.masks:
            state.compression.kept = state.compression.masks.local_masks()
        save(comm, state, step, lambda saved: replace(
            saved, description=saved.description | entries))


def open_run(comm: Communicator, config: PruneConfig) -> PruningRun:
    """The run that wrote the checkpoint, continued for --steps more on one rank.

    Raises UsageError for a checkpoint that cannot be pruned, or would be replaced.
    """
    source = config.checkpoint
    if any(step["kind"] != KIND for step in read_description(source).get("compression") or []):
        raise UsageError(f"{source} is quantized, which comes after pruning: prune the model that "
                         "it was made from, then quantize")
    refuse_same_folder(config.folder, source)
    description = read_description(source, to_train=True)
    before, first = config_of(description), description["step"]
    return begin_run(comm, config, source, before, Pruning(
        config.method, config.amount, config.scope, config.gradual, first,
        first + config.steps, before.optimizer.lr if config.lr is None else config.lr))


def resume_run(comm: Communicator, config: PruneConfig) -> PruningRun:
    """A pruning that was interrupted, as it was at its last checkpoint.  Raises UsageError."""
    description = read_description(config.resume, to_train=True)
    entry = description.get("pruning")
    if entry is None:
        raise UsageError(f"--resume {config.resume}: no pruning was interrupted there: `minipar "
                         "train --resume` trains the model on, and keeps its masks")
    plan = Pruning(**{field.name: entry[field.name] for field in fields(Pruning)})
    return begin_run(comm, config, config.resume, config_of(description), plan)


def begin_run(comm: Communicator, config: PruneConfig, source: Path, before: TrainConfig,
              plan: Pruning) -> PruningRun:
    """The run of the checkpoint at `source`, to be continued until the last step of `plan`."""
    made = checked(before.updated(
        resume=source, out=config.folder, lr=plan.lr, save_every=config.save_every,
        steps=max(plan.last_step, plan.first_step + 1), data=config.data or before.data.source,
        **ON_ONE_RANK))
    check_folder(config.folder)
    return PruningRun(start_run(comm, made, make_task(made)), plan, before)


def prune_run(comm: Communicator, run: PruningRun) -> None:
    """Prune the model of a run, or shrink it; --gradual prunes later, step by step."""
    if run.plan.method == "structured":
        run.state = smaller_run(comm, run.state, run.plan.amount)
    else:
        mask_run(run)
    run.state.compression.steps = [*run.state.compression.steps, run.plan.compression_step]


def mask_run(run: PruningRun) -> None:
    """Put masks on the model of a run, or prune more with the masks that it has.

    Raises UsageError if more is pruned already than --amount asks for.
    """
    plan, model, compression = run.plan, run.state.strategy.model, run.state.compression
    if compression.masks is None:
        compression.masks = Masks(model, {name: np.ones(p.shape, bool)
                                          for name, p in prunable_weights(model).items()})
    masks, gone = compression.masks, compression.masks.sparsity()
    if plan.method != "2:4" and plan.amount < gone:
        raise UsageError(f"--amount {plan.amount:g}: {gone:.1%} of the weights are gone "
                         "already, ask for more")
    if plan.method == "2:4":
        masks.update({name: n_of_m(values) & masks.local_masks()[name]
                      for name, values in magnitude(masks.parameters).items()})
    elif plan.gradual:
        run.plan = replace(plan, initial=gone)
    else:
        masks.update(prune(model, scores(run.state, plan, masks.parameters), plan.amount,
                           plan.scope, masks))


def gradual_pruning(state: TrainState, plan: Pruning) -> GradualPruning:
    """The object that prunes the model step by step, from the sparsity that the model has."""
    num_steps = plan.last_step - plan.first_step
    length = num_steps - num_steps // SPARE
    made = GradualPruning(state.strategy.model, state.compression.masks, plan.amount,
                          plan.first_step, length, -(-length // MAX_CUTS), plan.scope,
                          initial=plan.initial,
                          score=lambda parameters: scores(state, plan, parameters))
    made.finished = state.first_step > plan.first_step + length
    return made


def scores(state: TrainState, plan: Pruning, parameters: dict) -> Scores:
    """The scores of the plan's method; taylor takes gradients of the plan's first batches."""
    if plan.method == "magnitude":
        return magnitude(parameters)
    if plan.method == "random":
        return random(parameters, state.config.run.seed)
    if plan.method != "taylor":
        raise ValueError(f"no scores are made by the method {plan.method!r}: choose from "
                         "magnitude, random, taylor")
    model, batches = state.strategy.model, state.task.batches
    calibrate(model, [batches.batch(plan.first_step + i)[:2] for i in range(CALIBRATION_BATCHES)])
    found = taylor(parameters)
    model.zero_grad()
    return found


def smaller_run(comm: Communicator, state: TrainState, amount: float) -> TrainState:
    """The run with a smaller model: a share `amount` of its neurons and heads is removed.

    Raises UsageError if that share removes nothing.
    """
    model = without_masks(state.strategy.model)
    Masks(model, unit_masks(model, amount))
    states: dict[str, dict] = defaultdict(dict)
    for key, array in state.optimizer.state_dict().items():
        kind, _, name = key.partition("/")
        states[kind][name] = array
    before, kept = state.compression, state.compression.kept
    everywhere = {name: np.ones(p.shape, bool) for name, p in model.named_parameters()}
    small, cut = shrink(model, everywhere | kept, *states.values())
    if small.num_parameters() == model.num_parameters():
        raise UsageError(f"--amount {amount:g} of so few neurons and heads is none: ask for more, "
                         "or train a wider model")
    config = state.config.updated(resume=None, **sizes_as_options(describe_model(small)))
    made = start_run(comm, config, make_task(config))
    made.strategy.model.load_state_dict(small.state_dict())
    made.first_step, made.losses = state.first_step, state.losses
    made.task.go_on({**describe_config(config), "step": state.first_step,
                     **state.task.progress(state.first_step)})
    made.optimizer.load_state_dict({f"{kind}/{name}": array for kind, arrays in
                                    zip(states, cut[1:]) for name, array in arrays.items()},
                                   state.optimizer.num_steps)
    made.compression = Compression(before.steps, {name: cut[0][name] for name in kept})
    made.compression.attach(made.strategy.model)
    return made


def train_on(comm: Communicator, run: PruningRun, console: Console) -> None:
    """Take the remaining steps, pruning a little before each if gradual; write the checkpoint."""
    state, plan = run.state, run.plan
    if state.first_step < plan.last_step:
        before_step = gradual_pruning(state, plan).step if plan.gradual else lambda step: None
        with ProgressBar(comm, state, console) as progress:
            train_steps(comm, state, progress, lambda step: run.save(comm, step), before_step,
                        observe=False)
    else:
        run.save(comm, plan.last_step)
    if state.compression.masks:
        state.compression.masks.zero_masked()
