"""What `minipar prune` does to a training run: fewer weights, or fewer units, and more steps.

    checkpoint ─▶ run ─▶ masks, or a smaller model ─▶ steps ─▶ checkpoint
"""

import argparse
from collections import defaultdict

import numpy as np
from rich.console import Console

from .comm import Communicator
from .compress.load import compression_of
from .compress.masks import Masks, prunable
from .compress.prune import n_of_m, prune
from .compress.saliency import Scores, calibrate, magnitude, random, taylor
from .compress.schedules import Gradual
from .compress.shrink import plain, shrink
from .compress.sparse_files import KIND
from .compress.structured import unit_masks
from .launch import UsageError
from .nn import Module
from .train.description import describe_model, sizes_as_options, training_options
from .train.loop import Run, begin, save, take_step
from .train.options import check
from .train.report import ProgressBar
from .train.saved import read, read_to_train
from .train.tasks import make_task

METHODS = ("magnitude", "random", "taylor", "structured", "2:4")
SPARE = 3               # the last third of --gradual's steps prunes no more
NUM_CUTS = 20           # at most, of --gradual
CALIBRATION = 8         # batches that gradients are taken of
# On one rank, in full precision, without a new warm-up; afterwards the options are as before.
HERE = {"strategy": "ddp", "accumulate": 1, "warmup": 0, "precision": "fp32", "loss_scale": None,
        "reduce_dtype": "fp32", "remat": "none"}


def open_run(comm: Communicator, options: argparse.Namespace) -> Run:
    """The run that wrote the checkpoint, to go on for --steps more on one rank.

    Raises UsageError for what cannot be pruned, or would be replaced.
    """
    source = options.checkpoint
    if any(step["kind"] != KIND for step in compression_of(read(source))):
        raise UsageError(f"{source} is quantized, which comes after pruning: prune the model that "
                         "it was made from, then quantize")
    if options.out.resolve() == (source if source.is_dir() else source.parent).resolve():
        raise UsageError(f"--out {options.out} is where the checkpoint is, which would be "
                         "replaced: give another folder")
    saved, _ = read_to_train(source)
    before = training_options(saved.description)
    training = argparse.Namespace(**{**vars(before), **HERE, "resume": source, "out": options.out})
    training.steps = saved.description["step"] + max(1, options.steps)
    training.lr = training.lr if options.lr is None else options.lr
    training.data = options.data or training.data
    check(training)
    return begin(comm, training, make_task(training))


def prune_run(comm: Communicator, run: Run, options: argparse.Namespace, console: Console) -> Run:
    """The run with fewer weights, after --steps more; a new one where its model is smaller."""
    step = {"kind": KIND, "method": options.method}
    if options.method == "structured":
        run = smaller_run(comm, run, options.amount)
        step["amount"] = options.amount
        train_on(comm, run, options.steps, console)
    else:
        if options.method != "2:4":
            step |= {"amount": options.amount, "scope": options.scope or "global"}
        mask_run(comm, run, options, console)
    run.compression = [*run.compression, step]
    return run


def save_run(comm: Communicator, run: Run, options: argparse.Namespace) -> None:
    """Write it, for `minipar train --resume`."""
    if not options.steps:
        run.options.steps = max(1, run.first_step)
    before = vars(training_options(read(options.checkpoint).description))
    vars(run.options).update({name: before[name] for name in HERE})
    save(comm, run, run.options.steps)


def mask_run(comm: Communicator, run: Run, options: argparse.Namespace, console: Console) -> None:
    """Masks on the model of a run, at once and then --steps of training, or little by little."""
    model, scope = run.strategy.model, options.scope or "global"
    if run.masks is None:
        run.masks = Masks(model, {name: np.ones(p.shape, bool)
                                  for name, p in prunable(model).items()})
    masks, gone = run.masks, run.masks.sparsity()
    if options.method != "2:4" and options.amount < gone:
        raise UsageError(f"--amount {options.amount:g}: {gone:.1%} of the weights are gone "
                         "already, ask for more")

    def score(parameters: dict) -> Scores:
        return scores(run, model, parameters, options.method)
    gradual = None
    if options.method == "2:4":
        masks.update({name: n_of_m(values) & masks.named()[name]
                      for name, values in magnitude(masks.parameters).items()})
    elif options.gradual:
        length = options.steps - options.steps // SPARE
        gradual = Gradual(model, masks, options.amount, run.first_step, length,
                          -(-length // NUM_CUTS), scope, score=score, initial=gone)
    else:
        masks.update(prune(model, score(masks.parameters), options.amount, scope, masks))
    train_on(comm, run, options.steps, console, gradual)
    run.kept = masks.named()
    masks.clear()


def scores(run: Run, model: Module, parameters: dict, method: str) -> Scores:
    """By the method's name; gradients are those of the next batches."""
    if method == "magnitude":
        return magnitude(parameters)
    if method == "random":
        return random(parameters, run.options.seed)
    calibrate(model, [run.task.batches.batch(run.first_step + i)[:2] for i in range(CALIBRATION)])
    found = taylor(parameters)
    model.zero_grad()
    return found


def smaller_run(comm: Communicator, run: Run, amount: float) -> Run:
    """The run, of a model without the `amount` of its neurons and heads."""
    model = plain(run.strategy.model)
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


def train_on(comm: Communicator, run: Run, num_steps: int, console: Console,
             gradual: Gradual | None = None) -> None:
    """So many steps, each after `gradual`'s."""
    if not num_steps:
        return
    with ProgressBar(comm, run, console) as progress, np.errstate(over="ignore", invalid="ignore"):
        for step in range(run.first_step, run.options.steps):
            if gradual is not None:
                gradual.step(step)
            loss = take_step(run, step)
            run.losses.append(loss)
            progress(step, loss)
