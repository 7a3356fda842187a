"""`minipar distill TEACHER`: a smaller model, trained to answer as a checkpoint's model does.

    minipar distill out/gpt --layers 2 --width 64 --temperature 2 --alpha 0.5 --out out/small
    minipar distill out/digits --hidden 16 --steps 300 --out out/small
    minipar distill out/gpt --layers 2 --ranks 4 --teacher-ranks 2 --out out/small

What is not said is as it was with the teacher: sizes, data, steps, learning rate.  What comes out
is an ordinary checkpoint of the student alone, which `minipar train --resume` goes on with.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from . import checkpoint as files
from .backend import keep_freed_memory
from .comm import Cluster, Communicator
from .compress.distill import Distillation, LocalTeacher, Recipe, recipe_for, without_projections
from .compress.matching import DISTANCES
from .compress.spread import SPLITS, Announced, SpreadTeacher
from .distill_teacher import build_teacher, check_split, load_teacher
from .environment import launched
from .launch import UsageError, launch
from .nn import GPT
from .train import options as choices
from .train.description import training_options
from .train.loop import begin, save, train
from .train.report import ProgressBar
from .train.saved import read
from .train.tasks import Task, make_task

OF_GPT, OF_MLP = ("layers", "heads", "kv_heads", "width", "context"), ("hidden",)
OF_RUN = ("data", "dropout", "batch", "steps", "lr", "optimizer", "strategy", "accumulate", "ranks")
CUT = ("head_width", "mlp_width")         # of a GPT that lost some of its heads or neurons
AS_BEFORE = ("untied", "weight_decay", "momentum", "clip", "seed", "dtype", "vocabulary",
             "data_paths")
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("teacher", type=Path, metavar="TEACHER",
                        help="a checkpoint, pruned or quantized too, or its folder")
    student = parser.add_argument_group("student (what is not given is as in the teacher)")
    for name, what in (("layers", "blocks of a GPT"), ("heads", "attention heads"),
                       ("kv-heads", "heads of keys and values"), ("width", "width of a GPT"),
                       ("context", "tokens it sees at once")):
        student.add_argument(f"--{name}", type=int, metavar="N", help=what)
    student.add_argument("--hidden", metavar="SIZES", help="hidden sizes of an MLP, as 32,16")
    student.add_argument("--dropout", type=float, metavar="RATE")
    what = parser.add_argument_group("what is imitated")
    what.add_argument("--temperature", type=float, default=2.0, metavar="T",
                      help="by which both models' logits are divided (2)")
    what.add_argument("--alpha", type=float, default=0.5,
                      help="weight of the teacher's answers; 1 - alpha of the true ones (0.5)")
    what.add_argument("--match-hidden", type=float, default=0.0, metavar="WEIGHT",
                      help="of hidden layers, through learned projections (0)")
    what.add_argument("--distance", choices=DISTANCES,
                      help="of hidden layers (squared)")
    what.add_argument("--match-attention", type=float, default=0.0, metavar="WEIGHT",
                      help="of a GPT's attention maps (0)")
    run = parser.add_argument_group("run")
    run.add_argument("--data", metavar="docs|PATH", help="another text of the same characters")
    for name, kind in (("batch", int), ("steps", int), ("lr", float), ("accumulate", int)):
        run.add_argument(f"--{name}", type=kind, metavar="N")
    run.add_argument("--optimizer", choices=choices.OPTIMIZERS)
    run.add_argument("--strategy", choices=STRATEGIES, help="of the ranks that train (ddp)")
    run.add_argument("--ranks", type=int, metavar="N",
                     help="without mpirun: simulate N ranks in this process (1)")
    run.add_argument("--teacher-ranks", type=int, default=0, metavar="N",
                     help="so many ranks, the last ones, have the teacher, each a part of it, and "
                          "train nothing (0: every rank has all of it)")
    run.add_argument("--teacher-split", choices=SPLITS,
                     help="what part: of each layer (tp, default), or some layers (pp)")
    run.add_argument("--out", type=Path, required=True, metavar="DIR",
                     help="where the student's checkpoint goes")


def main(options: argparse.Namespace) -> None:
    """Train the student.  Raises UsageError for what can be known to be impossible."""
    check_pairs(options)
    try:
        saved = read(options.teacher)
        made = options_of_training(options, saved)
        num_ranks = choices.choose_world(made)
        if not 0 <= options.teacher_ranks < num_ranks:
            raise UsageError(f"--teacher-ranks {options.teacher_ranks}: of {num_ranks} in all, and "
                             "at least one is to train: start more, --ranks "
                             f"{max(2, options.teacher_ranks + 1)} (or mpirun -n …)")
        check_data(saved, made)
        task = make_task(made)
        _ = task.batches                        # mistakes are found now, before MPI starts
        recipe = recipe_for(task.build(), build_teacher(saved), options.temperature, options.alpha,
                            options.match_hidden, options.match_attention, options.distance)
        load_teacher(saved)
        check_split(saved, options)
    except (ValueError, OSError, KeyError) as error:
        raise UsageError.of(error) from error
    keep_freed_memory()
    launch(lambda comm: run_on(comm, options, made, recipe, saved),
           cluster=None if launched() else Cluster(num_ranks))


def check_pairs(options: argparse.Namespace) -> None:
    """Raise UsageError for options that would do nothing; set the default of the others."""
    for name, of, default in (("distance", "match_hidden", "squared"),
                              ("teacher_split", "teacher_ranks", "tp")):
        if getattr(options, name) is not None and not getattr(options, of):
            name, of = (f"--{word.replace('_', '-')}" for word in (name, of))
            raise UsageError(f"{name} does nothing without {of}: give that too, or leave it out")
        setattr(options, name, getattr(options, name) or default)


def options_of_training(options: argparse.Namespace, saved: files.Checkpoint) -> argparse.Namespace:
    """What `minipar train` would be told to train the student.  Raises UsageError."""
    before = vars(training_options(saved.description))
    is_mlp = before["data"] == "digits"
    for name in OF_GPT if is_mlp else OF_MLP:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is a size of "
                             + ("a GPT, but the teacher is an MLP: give --hidden" if is_mlp else
                                "an MLP, but the teacher is a GPT: give --layers and --width"))
    parser = argparse.ArgumentParser()
    choices.add_arguments(parser)
    own = (*OF_GPT, *OF_MLP, *OF_RUN)
    cut = CUT if options.width is None else ()
    taken = {name: before[name] for name in (*own, *cut, *AS_BEFORE)}
    if taken["strategy"] not in STRATEGIES:
        del taken["strategy"]
    given = {name: getattr(options, name) for name in own if getattr(options, name) is not None}
    made = parser.parse_args([], argparse.Namespace(**{**taken, **given}, out=options.out))
    choices.check(made)
    made.out = None         # the student is written at the end, without what only trained it
    folders = [path.resolve() for path in (options.teacher, options.teacher.parent)]
    if options.out.resolve() in folders[:1 if options.teacher.is_dir() else 2]:
        raise UsageError(f"--out {options.out} is where the teacher is, which would be replaced: "
                         "give another folder")
    return made


def check_data(saved: files.Checkpoint, made: argparse.Namespace) -> None:
    """Refuse data of another kind than the teacher's.  Raises UsageError."""
    theirs = saved.description["data"]
    if (made.data == "digits") != (theirs == "digits"):
        raise UsageError(f"--data {made.data}: the teacher was trained on {theirs}, which is of "
                         "another kind: leave it out")


class DistillationTask:
    """The student's `task`, with a teacher: what is built is a student that is taught."""

    def __init__(self, task: Task, teacher: LocalTeacher | SpreadTeacher, recipe: Recipe,
                 batches: Any, saved: files.Checkpoint):
        self.task, self.teacher, self.recipe, self.batches = task, teacher, recipe, batches
        self.saved = saved

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def build(self) -> Distillation:
        """See Task."""
        return Distillation(self.task.build(), self.teacher, self.recipe)


class OfStudent:
    """A strategy or an optimizer whose state is the student's alone."""

    def __init__(self, whole: Any):
        self.whole = whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def state_dict(self) -> dict[str, np.ndarray]:
        """All ranks that train call it."""
        return without_projections(self.whole.state_dict())


def run_on(comm: Communicator, options: argparse.Namespace, made: argparse.Namespace,
           recipe: Recipe, saved: files.Checkpoint) -> None:
    """The whole program of one rank."""
    task, num_students = make_task(made), comm.size - options.teacher_ranks
    students = comm.split(0 if comm.rank < num_students else None)
    batches = task.batches
    if options.teacher_ranks:
        model = build_teacher(saved) if students else load_teacher(saved)
        teacher = SpreadTeacher(model, recipe, comm, range(num_students, comm.size),
                                range(num_students), options.teacher_split,
                                saved.description["dtype"])
        batches = Announced(batches, teacher, range(made.steps), made.accumulate)
        if students is None:
            batches.serve()
            return
    else:
        teacher = LocalTeacher(load_teacher(saved), recipe)
    run = begin(students, made, DistillationTask(task, teacher, recipe, batches, saved))
    console = Console(soft_wrap=True, highlight=False)
    if comm.rank == 0:
        introduce(run.task, options, num_students, console)
    with ProgressBar(students, run, console) as progress, \
            np.errstate(over="ignore", invalid="ignore"):
        train(students, run, progress)
    exported = replace(run, options=argparse.Namespace(**{**vars(made), "out": options.out}),
                       strategy=OfStudent(run.strategy), optimizer=OfStudent(run.optimizer))
    save(students, exported, made.steps)
    if comm.rank == 0:
        student = task.build().to_empty(np.dtype(made.dtype))
        student.load_state_dict(files.load(options.out).model)
        whole = load_teacher(saved)
        for name, model, plain in (("teacher", whole, build_teacher(saved)),
                                   ("student", student, student)):
            console.print(f"{name}, {plain.num_parameters():,} parameters: {task.summary(model)}",
                          markup=False)
        console.print(f"checkpoint: {options.out / 'checkpoint.npz'}", markup=False)


def introduce(task: DistillationTask, options: argparse.Namespace, num_students: int,
              console: Console) -> None:
    """What learns from what, where."""
    student, recipe, sizes = task.task.build(), task.recipe, task.describe()["model"]
    shown = f"{sizes['num_layers']} layers of width {sizes['width']}" \
        if isinstance(student, GPT) else f"sizes {', '.join(map(str, sizes['sizes']))}"
    what = f"T = {recipe.temperature:g}, α = {recipe.alpha:g}"
    for name, weight in (("hidden layers", recipe.hidden), ("attention maps", recipe.attention)):
        what += f", {name} × {weight:g}" * (weight > 0)
    where = f"{num_students} rank{'s' * (num_students > 1)}"
    if options.teacher_ranks:
        where += f", the teacher on {options.teacher_ranks} others ({options.teacher_split})"
    console.print(f"minipar distill: a {type(student).__name__} of {student.num_parameters():,} "
                  f"parameters ({shown}) learns from one of "
                  f"{build_teacher(task.saved).num_parameters():,}, {what}, on {where}",
                  markup=False)
