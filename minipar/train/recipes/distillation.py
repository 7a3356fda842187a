"""The program of each rank of `minipar distill`: a student's training run, with a teacher.

    students   task + teacher ─▶ start_run ─▶ steps ─▶ checkpoint
    teachers   read the same batches, and send their answers (only with --teacher-ranks)

A checkpoint's model and optimizer are the student's alone, so that every command takes them.  Only
distillation needs the projections of hidden layers.  So the checkpoint keeps the projections and
their moments apart, among its `others`.  Its description names the teacher and the recipe.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ... import checkpoint_file as files
from ...comm import Communicator
from ...compress.distillation.distill import Distillation, LocalTeacher, Recipe, without_projections
from ...compress.distillation.teacher_parallel import AnnouncedBatches, ParallelTeacher
from ...nn import GPT, Module
from ..checkpoints.resume import save
from ..config import TrainConfig
from ..loop import TrainState, train_steps
from ..report import ProgressBar
from ..setup.precision import describe_precision
from ..setup.starting_point import StartingPoint
from ..start import start_run
from ..tasks import Score, Task, make_task
from .teacher import build_teacher, load_teacher

KIND = "distillation"           # prefix of a checkpoint's other arrays; entry of its description


@dataclass(frozen=True)
class DistillPlan:
    """A distillation: `student` is the configuration of the student's training.

    `start`, if any, is the checkpoint of a student that continues; `entry` is what the
    description of the student's checkpoints says of the distillation.  The last `teacher_ranks`
    ranks run the teacher, cut as `teacher_split` says; with 0, every rank has a copy of it.
    """

    student: TrainConfig
    recipe: Recipe
    teacher: files.Checkpoint
    entry: dict[str, Any]
    out: Path
    num_ranks: int
    teacher_ranks: int = 0
    teacher_split: str = "tp"
    start: StartingPoint | None = None

    @property
    def first_step(self) -> int:
        """The number of steps that are done."""
        return self.start.step if self.start else 0


class DistillationTask:
    """The student's `task` with a teacher: its model wraps the student, and asks the teacher."""

    def __init__(self, task: Task, teacher: LocalTeacher | ParallelTeacher, recipe: Recipe,
                 batches: Any):
        self.task, self.teacher, self.recipe, self.batches = task, teacher, recipe, batches
        self.target, self.targets_per_sample = task.target, task.targets_per_sample

    def build(self) -> Distillation:
        """The student, in a module that asks the teacher."""
        return Distillation(self.task.build(), self.teacher, self.recipe)

    def trained_part(self, model: Distillation) -> Module:
        """The student alone: the teacher stays as it is."""
        return model.student

    def describe(self) -> dict:
        """The description of the student's task."""
        return self.task.describe()

    def progress(self, step: int) -> dict:
        """The progress of the student's task."""
        return self.task.progress(step)


def save_student(comm: Communicator, state: TrainState, plan: DistillPlan, step: int) -> None:
    """Collective.  Write the student's checkpoint, with its projections beside it."""
    def student_alone(saved: files.Checkpoint) -> files.Checkpoint:
        parts = {"model": saved.model, "optimizer": saved.optimizer}
        others = {f"{KIND}/{part}/{name}": array for part, arrays in parts.items()
                  for name, array in arrays.items() if name not in without_projections(arrays)}
        return files.Checkpoint(without_projections(saved.model),
                                without_projections(saved.optimizer),
                                saved.description | {KIND: plan.entry}, saved.others | others)
    save(comm, state, step, student_alone, plan.out)


def with_projections(start: StartingPoint) -> StartingPoint:
    """A checkpoint that `save_student` wrote, with the projections back in model and optimizer."""
    saved = start.checkpoint
    parts = {"model": dict(saved.model), "optimizer": dict(saved.optimizer)}
    for key, array in saved.others.items():
        kind, _, place = key.partition("/")
        part, _, name = place.partition("/")
        if kind == KIND and part in parts:
            parts[part][name] = array
    return replace(start, checkpoint=replace(saved, **parts))


@dataclass(frozen=True)
class Scored:
    """The teacher or the student of a finished distillation: its size and its score."""

    name: str
    num_parameters: int
    score: Score
    summary: str


def distill_rank(comm: Communicator, plan: DistillPlan, console: Console) -> list[Scored] | None:
    """Collective.  The whole program of one rank; rank 0 returns the scores of both models."""
    config, saved, recipe = plan.student, plan.teacher, plan.recipe
    task, num_students = make_task(config), comm.size - plan.teacher_ranks
    students = comm.split(0 if comm.rank < num_students else None)
    if plan.start:
        task.go_on(plan.start.checkpoint.description)
    batches = task.batches
    if plan.teacher_ranks:
        model = build_teacher(saved) if students else load_teacher(saved)
        teacher = ParallelTeacher(model, recipe, comm, range(num_students, comm.size),
                                range(num_students), plan.teacher_split,
                                saved.description["dtype"])
        batches = AnnouncedBatches(batches, teacher, range(plan.first_step, config.run.steps),
                            config.parallel.accumulate)
        if students is None:
            batches.serve()
            return None
    else:
        teacher = LocalTeacher(load_teacher(saved), recipe)
    state = start_run(students, config, DistillationTask(task, teacher, recipe, batches),
                  plan.start and with_projections(plan.start))
    if comm.rank == 0:
        print_headline(state.task, plan, num_students, console)
    with ProgressBar(students, state, console) as progress:
        train_steps(students, state, progress,
                    lambda step: save_student(students, state, plan, step))
    return compare(plan, task, console) if comm.rank == 0 else None


def compare(plan: DistillPlan, task: Task, console: Console) -> list[Scored]:
    """Score the teacher and the student's checkpoint; print and return the scores."""
    student = task.build().to_empty(np.dtype(plan.student.precision.dtype))
    student.load_state_dict(files.load(plan.out).model)
    models: list[tuple[str, Module, int]] = [
        ("teacher", load_teacher(plan.teacher), build_teacher(plan.teacher).num_parameters()),
        ("student", student, student.num_parameters())]
    scored = [Scored(name, size, *task.summary(model)) for name, model, size in models]
    for model in scored:
        console.print(f"{model.name}, {model.num_parameters:,} parameters: {model.summary}",
                      markup=False)
    console.print(f"checkpoint: {plan.out / 'checkpoint.npz'}", markup=False)
    return scored


def print_headline(task: DistillationTask, plan: DistillPlan, num_students: int,
              console: Console) -> None:
    """Print which student learns from which teacher, and where."""
    student, recipe, sizes = task.task.build(), task.recipe, task.describe()["model"]
    shown = f"{sizes['num_layers']} layers of width {sizes['width']}" \
        if isinstance(student, GPT) else f"sizes {', '.join(map(str, sizes['sizes']))}"
    what = f"T = {recipe.temperature:g}, α = {recipe.alpha:g}"
    for name, weight in (("hidden layers", recipe.hidden), ("attention scores", recipe.attention)):
        what += f", {name} × {weight:g}" * (weight > 0)
    where = f"{num_students} rank{'s' * (num_students > 1)}"
    if plan.teacher_ranks:
        where += f", the teacher on {plan.teacher_ranks} others ({plan.teacher_split})"
    console.print(f"minipar distill: a {type(student).__name__} of {student.num_parameters():,} "
                  f"parameters ({shown}) learns from one of "
                  f"{build_teacher(plan.teacher).num_parameters():,}, {what}, on {where}, "
                  f"{describe_precision(plan.student)}", markup=False)
    if plan.start:
        console.print(f"resumed from {plan.student.run.resume} after {plan.first_step} steps",
                      markup=False)
