"""The plan of `minipar distill`: options that are not given come from the teacher.

    DistillConfig ─▶ teacher, perhaps a student that continues ─▶ the student's TrainConfig

Mistakes are refused here, before the ranks start, wherever that is possible.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import checkpoint_file as files
from ...compress.distillation.distill import make_recipe
from ...compress.distillation.feature_loss import DISTANCES
from ...compress.distillation.teacher_parallel import SPLITS
from ...launcher import UsageError
from ...parallel.registry import STRATEGIES
from ..check import check_folder, checked
from ..checkpoints.models import (
    check_numbers,
    check_resume,
    read,
    read_to_train,
    refuse_same_folder,
)
from ..checkpoints.schema import config_of
from ..config import OPTIONS, TrainConfig
from ..option import Beside, TrainingOptions, checkpoint, option
from ..setup.mesh import num_ranks_of
from ..setup.starting_point import StartingPoint
from ..tasks import make_task
from .distillation import KIND, DistillPlan
from .teacher import build_teacher, check_split, load_teacher

GPT_OPTIONS, MLP_OPTIONS = ("layers", "heads", "kv_heads", "width", "context"), ("hidden",)
RUN_OPTIONS = ("data", "batch", "steps", "lr", "accumulate", "optimizer", "ranks")
FIXED_AT_START = ("dropout", "seed", "precision")       # --resume keeps them
PRUNED_SIZES = ("head_width", "mlp_width")      # pruning heads or neurons changes these
# The student inherits all options of these sections, and some of the others.
INHERITED_SECTIONS = ("model", "data", "optimizer")
INHERITED_OPTIONS = ("strategy", "accumulate", "steps", "seed", "dtype", "precision", "loss_scale")
RECIPE = ("temperature", "alpha", "match_hidden", "match_attention", "distance")
# not dp: there rank 0 has all batches, so no other rank could ask a teacher
STUDENT_STRATEGIES = tuple(name for name in STRATEGIES if name != "dp")
BEGAN = Beside("resume", "", "was chosen when the distillation began")
IMITATED, RUN = "what is imitated", "run (options that are not given: as in the teacher)"


@dataclass(frozen=True, kw_only=True)
class DistillConfig(TrainingOptions):
    """The options of `minipar distill`.

    An option of training that is not given is the teacher's or, with --resume, that of the
    student's run so far.  But a student has no experts, whatever its teacher has.
    """

    inherits = True
    of_training = {"student (options that are not given: as in the teacher, but without experts)":
                   (*GPT_OPTIONS, *MLP_OPTIONS, "dropout"),
                   RUN: (*RUN_OPTIONS, "seed", "precision")}
    teacher: Path | None = checkpoint("a checkpoint, pruned or quantized too, or its folder; with "
                                      "--resume only if it has moved", None, metavar="TEACHER")
    temperature: float = option(2.0, "divides both models' logits", group=IMITATED,
                                metavar="T", without=(BEGAN,))
    alpha: float = option(0.5, "weight of the teacher's answers; 1 - alpha of the true ones",
                          group=IMITATED, without=(BEGAN,))
    match_hidden: float = option(0.0, "of hidden layers, through learned projections",
                                 metavar="WEIGHT", group=IMITATED, without=(BEGAN,))
    distance: str = option("squared", "of hidden layers", choices=DISTANCES, group=IMITATED,
                           needs=Beside("match_hidden", "1", "is that of hidden layers"),
                           without=(BEGAN,))
    match_attention: float = option(0.0, "of a GPT's attention scores, before the softmax",
                                    metavar="WEIGHT", group=IMITATED, without=(BEGAN,))
    strategy: str | None = option(None, "how the ranks that train share the work",
                                  choices=STUDENT_STRATEGIES, group=RUN)
    teacher_ranks: int = option(0, "the last N ranks share the teacher and do not train; 0: every "
                                "rank has a copy", least=0, group=RUN)
    teacher_split: str = option("tp", "how they share it: each layer (tp), or its layers (pp)",
                                choices=SPLITS, group=RUN,
                                needs=Beside("teacher_ranks", "2", "cuts the teacher over ranks"))

    @property
    def student(self) -> dict[str, Any]:
        """The options of the student's training that are given, by their flags."""
        return self.training | ({"strategy": self.strategy} if self.strategy else {})


def make_plan(config: DistillConfig) -> DistillPlan:
    """The checked plan of the distillation.  Raises UsageError or ValueError."""
    start = None if config.resume is None else read_to_train(config.resume)
    entry = {name: config.get(name) for name in RECIPE} if start is None \
        else continued(config, start)
    teacher, out = config.teacher, config.folder
    if start is not None:
        teacher = teacher or Path(entry["teacher"])
        if not teacher.exists():
            raise UsageError(f"the teacher {teacher} is not there any more: say where it is, "
                             f"minipar distill TEACHER --resume {config.resume}")
    if teacher is None or out is None:
        raise UsageError("a distillation needs a teacher and a place for the student: minipar "
                         "distill TEACHER --out DIR (or --resume DIR)")
    saved = read(teacher)
    check_numbers(teacher, saved.model)
    student = student_config(config, saved, start, out)
    refuse_same_folder(out, teacher)
    num_ranks = num_ranks_of(student)
    if config.teacher_ranks >= num_ranks:
        raise UsageError(f"--teacher-ranks {config.teacher_ranks}: of {num_ranks} in all, and "
                         "at least one is to train: start more, --ranks "
                         f"{max(2, config.teacher_ranks + 1)} (or mpirun -n …)")
    task = make_task(student)
    _ = task.batches
    if start is not None:
        check_resume(task, start, student)
    recipe = make_recipe(task.build(), build_teacher(saved),
                        *(entry[name] for name in RECIPE))
    load_teacher(saved)
    check_split(saved, teacher, config.teacher_ranks, config.teacher_split)
    entry = {"teacher": str(teacher.absolute()), **{name: entry[name] for name in RECIPE}}
    return DistillPlan(student.updated(out=None), recipe, saved, entry, out, num_ranks,
                       config.teacher_ranks, config.teacher_split, start)


def continued(config: DistillConfig, start: StartingPoint) -> dict[str, Any]:
    """The teacher and the recipe of the distillation that continues, by name.

    Raises UsageError if no distillation wrote the checkpoint, or if an option is given that only
    the start of a distillation can choose.
    """
    for name in (*GPT_OPTIONS, *MLP_OPTIONS, *FIXED_AT_START):
        if name in config.training:
            raise UsageError(f"--{name.replace('_', '-')} {BEGAN.why}, which does not go with "
                             "--resume: leave one of the two out")
    entry = start.checkpoint.description.get(KIND)
    if entry is None:
        raise UsageError(f"--resume {config.resume} is of no distillation: `minipar train "
                         "--resume` goes on with it, without a teacher")
    return entry


def student_config(config: DistillConfig, teacher: files.Checkpoint, start: StartingPoint | None,
                   out: Path) -> TrainConfig:
    """The configuration that trains the student.  Raises UsageError."""
    check_sizes(config, teacher)
    before = config_of((start.checkpoint if start else teacher).description)
    data = config.student.get("data", before.data.source)
    if (data == "digits") != (before.data.source == "digits"):
        raise UsageError(f"--data {data}: the teacher was trained on {before.data.source}, "
                         "which is of another kind: leave it out")
    student = before if start else taken_from(before, config)
    student = checked(student.updated(**config.student, out=out, save_every=config.save_every,
                                      resume=config.resume))
    check_folder(out)
    return student


def check_sizes(config: DistillConfig, teacher: files.Checkpoint) -> None:
    """Raise UsageError for sizes of a GPT if the teacher is an MLP, and the other way round."""
    is_mlp = teacher.description["data"] == "digits"
    for name in GPT_OPTIONS if is_mlp else MLP_OPTIONS:
        if name in config.student:
            raise UsageError(f"--{name.replace('_', '-')} is a size of "
                             + ("a GPT, but the teacher is an MLP: give --hidden" if is_mlp else
                                "an MLP, but the teacher is a GPT: give --layers and --width"))


def taken_from(before: TrainConfig, config: DistillConfig) -> TrainConfig:
    """The configuration of the teacher's training, without what a student does not inherit."""
    left_out = {"warmup"}                       # it follows from --steps
    if "width" in config.student:
        left_out.update(PRUNED_SIZES)
    if "precision" in config.student:
        left_out.add("loss_scale")
    if before.parallel.strategy not in STUDENT_STRATEGIES:
        left_out.add("strategy")
    taken = {key: before.get(key) for key, field in OPTIONS.items() if key not in left_out
             and (field.section in INHERITED_SECTIONS or key in INHERITED_OPTIONS)}
    return TrainConfig(data=before.data).updated(**taken)
