"""The program of each rank of `minipar distill`: a student's training run, with a teacher.

    students   task + teacher ─▶ begin ─▶ steps ─▶ checkpoint
    teachers   told of every batch, they answer

A checkpoint's model and optimizer are the student's alone, so that every command takes them.  The
projections and their moments, which only distillation needs, are kept beside them; the description
names the teacher and the recipe.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ... import checkpoint as files
from ...comm import Communicator
from ...compress.distillation.distill import Distillation, LocalTeacher, Recipe, without_projections
from ...compress.distillation.teacher_parallel import AnnouncedBatches, ParallelTeacher
from ...nn import GPT
from ..loop import TrainState, begin, save, train
from ..report import ProgressBar
from ..setup.precision import described as precision_of
from ..tasks import Task, make_task
from .teacher import build_teacher, load_teacher

KIND = "distillation"           # of a checkpoint's further arrays, and in its description
Found = tuple[files.Checkpoint, dict[str, np.ndarray]]


@dataclass(frozen=True)
class Plan:
    """A distillation: `made` are the options of `minipar train` for the student.

    `teacher` is a checkpoint; `found`, if any, that of a student that goes on learning, with its
    masks; `told` is the entry in the description of the student's checkpoints.
    """

    made: argparse.Namespace
    recipe: Recipe
    teacher: files.Checkpoint
    told: dict[str, Any]
    found: Found | None = None

    @property
    def first_step(self) -> int:
        """The number of steps that are done."""
        return self.found[0].description["step"] if self.found else 0


class DistillationTask:
    """The student's `task`, with a teacher: what is built is a student that is taught."""

    def __init__(self, task: Task, teacher: LocalTeacher | ParallelTeacher, recipe: Recipe,
                 batches: Any):
        self.task, self.teacher, self.recipe, self.batches = task, teacher, recipe, batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def build(self) -> Distillation:
        """See Task."""
        return Distillation(self.task.build(), self.teacher, self.recipe)


class OfStudent:
    """A strategy or an optimizer of the `whole`, whose `state` is the student's alone."""

    def __init__(self, whole: Any, state: dict[str, np.ndarray]):
        self.whole, self.state = whole, state

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def state_dict(self) -> dict[str, np.ndarray]:
        """The student's part."""
        return without_projections(self.state)


def keep(comm: Communicator, run: TrainState, plan: Plan, out: Path, step: int) -> None:
    """Collective.  Write the student's checkpoint, with its projections beside it."""
    states = {"model": run.strategy.state_dict(), "optimizer": run.optimizer.state_dict()}
    others = {f"{KIND}/{part}/{name}": array for part, state in states.items()
              for name, array in state.items() if name not in without_projections(state)}
    exported = replace(run, options=argparse.Namespace(**{**vars(run.options), "out": out}),
                       strategy=OfStudent(run.strategy, states["model"]),
                       optimizer=OfStudent(run.optimizer, states["optimizer"]))
    save(comm, exported, step, {KIND: plan.told}, others)


def with_projections(saved: files.Checkpoint) -> files.Checkpoint:
    """A checkpoint that `keep` wrote, with the projections back among model and optimizer."""
    states = {"model": dict(saved.model), "optimizer": dict(saved.optimizer)}
    for key, array in saved.others.items():
        kind, _, place = key.partition("/")
        part, _, name = place.partition("/")
        if kind == KIND and part in states:
            states[part][name] = array
    return replace(saved, **states)


def run_on(comm: Communicator, options: argparse.Namespace, plan: Plan) -> None:
    """The whole program of one rank."""
    made, saved, recipe = plan.made, plan.teacher, plan.recipe
    task, num_students = make_task(made), comm.size - options.teacher_ranks
    students = comm.split(0 if comm.rank < num_students else None)
    batches = task.batches
    if options.teacher_ranks:
        model = build_teacher(saved) if students else load_teacher(saved)
        teacher = ParallelTeacher(model, recipe, comm, range(num_students, comm.size),
                                range(num_students), options.teacher_split,
                                saved.description["dtype"])
        batches = AnnouncedBatches(batches, teacher, range(plan.first_step, made.steps),
                            made.accumulate)
        if students is None:
            batches.serve()
            return
    else:
        teacher = LocalTeacher(load_teacher(saved), recipe)
    found = plan.found and (with_projections(plan.found[0]), plan.found[1])
    run = begin(students, made, DistillationTask(task, teacher, recipe, batches), found)
    console = Console(soft_wrap=True, highlight=False)
    if comm.rank == 0:
        introduce(run.task, options, plan, num_students, console)
    with ProgressBar(students, run, console) as progress, \
            np.errstate(over="ignore", invalid="ignore"):
        train(students, run, progress, lambda step: keep(students, run, plan, options.out, step))
    if comm.rank == 0:
        student = task.build().to_empty(np.dtype(made.dtype))
        student.load_state_dict(files.load(options.out).model)
        whole = load_teacher(saved)
        for name, model, plain in (("teacher", whole, build_teacher(saved)),
                                   ("student", student, student)):
            console.print(f"{name}, {plain.num_parameters():,} parameters: {task.summary(model)}",
                          markup=False)
        console.print(f"checkpoint: {options.out / 'checkpoint.npz'}", markup=False)


def introduce(task: DistillationTask, options: argparse.Namespace, plan: Plan,
              num_students: int, console: Console) -> None:
    """Print which student learns from which teacher, and where."""
    student, recipe, sizes = task.task.build(), task.recipe, task.describe()["model"]
    shown = f"{sizes['num_layers']} layers of width {sizes['width']}" \
        if isinstance(student, GPT) else f"sizes {', '.join(map(str, sizes['sizes']))}"
    what = f"T = {recipe.temperature:g}, α = {recipe.alpha:g}"
    for name, weight in (("hidden layers", recipe.hidden), ("attention scores", recipe.attention)):
        what += f", {name} × {weight:g}" * (weight > 0)
    where = f"{num_students} rank{'s' * (num_students > 1)}"
    if options.teacher_ranks:
        where += f", the teacher on {options.teacher_ranks} others ({options.teacher_split})"
    console.print(f"minipar distill: a {type(student).__name__} of {student.num_parameters():,} "
                  f"parameters ({shown}) learns from one of "
                  f"{build_teacher(plan.teacher).num_parameters():,}, {what}, on {where}, "
                  f"{precision_of(plan.made)}", markup=False)
    if plan.found:
        console.print(f"resumed from {plan.made.resume} after {plan.first_step} steps",
                      markup=False)
