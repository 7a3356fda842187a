"""`minipar distill TEACHER`: a smaller model, trained to answer as a checkpoint's model does.

    minipar distill out/gpt --layers 2 --width 64 --temperature 2 --alpha 0.5 --out out/small
    minipar distill out/digits --hidden 16 --steps 300 --out out/small
    minipar distill out/gpt --layers 2 --ranks 4 --teacher-ranks 2 --out out/small
    minipar distill --resume out/small              what was interrupted goes on, with its teacher

Options that are not given are taken from the teacher's checkpoint: sizes, data, steps, learning
rate.  The student's checkpoint is an ordinary one: `minipar train --resume` goes on with it alone.
"""

import argparse
from pathlib import Path
from typing import Any

from ... import checkpoint as files
from ...backend.malloc import keep_freed_memory
from ...comm import Cluster
from ...compress.distillation.distill import make_recipe
from ...compress.distillation.feature_loss import DISTANCES
from ...compress.distillation.teacher_parallel import SPLITS
from ...environment import launched
from ...launcher import UsageError, launch
from ...precision import PRECISIONS
from ...train import flags as choices
from ...train.checkpoint_schema import training_options
from ...train.model_checkpoints import read, read_to_train
from ...train.recipes.distillation import KIND, Found, Plan, run_on
from ...train.recipes.teacher import build_teacher, check_split, load_teacher
from ...train.tasks import check_resume, make_task

OF_GPT, OF_MLP = ("layers", "heads", "kv_heads", "width", "context"), ("hidden",)
OF_RUN = ("data", "batch", "steps", "lr", "optimizer", "strategy", "accumulate", "ranks")
AT_FIRST = ("dropout", "seed", "precision")     # said once; a run that is resumed has them
CUT = ("head_width", "mlp_width")         # of a GPT that lost some of its heads or neurons
AS_BEFORE = ("dropout", "seed", "untied", "weight_decay", "decay_all", "momentum", "clip", "dtype",
             "vocabulary", "data_paths", "data_seed")
RECIPE = {"temperature": 2.0, "alpha": 0.5, "match_hidden": 0.0, "match_attention": 0.0,
          "distance": "squared"}
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("teacher", type=Path, nargs="?", metavar="TEACHER",
                        help="a checkpoint, pruned or quantized too, or its folder; with --resume "
                             "only if it has moved")
    student = parser.add_argument_group("student (what is not given is as in the teacher)")
    for name, what in (("layers", "blocks of a GPT"), ("heads", "attention heads"),
                       ("kv-heads", "heads of keys and values"), ("width", "width of a GPT"),
                       ("context", "tokens it sees at once")):
        student.add_argument(f"--{name}", type=int, metavar="N", help=what)
    student.add_argument("--hidden", metavar="SIZES", help="hidden sizes of an MLP, as 32,16")
    student.add_argument("--dropout", type=float, metavar="RATE")
    what = parser.add_argument_group("what is imitated")
    what.add_argument("--temperature", type=float, metavar="T",
                      help="by which both models' logits are divided (2)")
    what.add_argument("--alpha", type=float,
                      help="weight of the teacher's answers; 1 - alpha of the true ones (0.5)")
    what.add_argument("--match-hidden", type=float, metavar="WEIGHT",
                      help="of hidden layers, through learned projections (0)")
    what.add_argument("--distance", choices=DISTANCES,
                      help="of hidden layers (squared)")
    what.add_argument("--match-attention", type=float, metavar="WEIGHT",
                      help="of a GPT's attention scores, before the softmax (0)")
    run = parser.add_argument_group("run")
    run.add_argument("--data", metavar="docs|PATH", help="another text of the same characters")
    for name, kind in (("batch", int), ("steps", int), ("lr", float), ("accumulate", int)):
        run.add_argument(f"--{name}", type=kind, metavar="N")
    run.add_argument("--optimizer", choices=choices.OPTIMIZERS)
    run.add_argument("--seed", type=int, metavar="N",
                     help="of the student's first numbers and the order of batches (the teacher's)")
    run.add_argument("--precision", choices=PRECISIONS,
                     help="what the student's numbers are rounded to while it learns (fp32)")
    run.add_argument("--strategy", choices=STRATEGIES, help="of the ranks that train (ddp)")
    run.add_argument("--ranks", type=int, metavar="N",
                     help="without mpirun: simulate N ranks in this process (1)")
    run.add_argument("--teacher-ranks", type=int, default=0, metavar="N",
                     help="so many ranks, the last ones, have the teacher, each a part of it, and "
                          "train nothing (0: every rank has all of it)")
    run.add_argument("--teacher-split", choices=SPLITS,
                     help="what part: of each layer (tp, default), or some layers (pp)")
    run.add_argument("--out", type=Path, metavar="DIR", help="where the student's checkpoint goes")
    run.add_argument("--save-every", type=int, default=0, metavar="N",
                     help="also write a checkpoint every N steps")
    run.add_argument("--resume", type=Path, metavar="DIR",
                     help="go on with the distillation there, as it began; what is written goes "
                          "there if no --out is given")


def main(options: argparse.Namespace) -> None:
    """Train the student.  Raises UsageError for what can be known to be impossible."""
    try:
        plan, num_ranks = make_plan(options)
    except (ValueError, OSError, KeyError) as error:
        raise UsageError.of(error) from error
    keep_freed_memory()
    launch(lambda comm: run_on(comm, options, plan),
           cluster=None if launched() else Cluster(num_ranks))


def make_plan(options: argparse.Namespace) -> tuple[Plan, int]:
    """The distillation, and its number of ranks; mistakes are found now, before MPI starts.

    Sets the options that were not given.  Raises UsageError, or ValueError.
    """
    found = resumed(options)
    check_pairs(options)
    if options.teacher is None or options.out is None:
        raise UsageError("a distillation needs a teacher and a place for the student: minipar "
                         "distill TEACHER --out DIR (or --resume DIR)")
    saved = read(options.teacher)
    made = options_of_training(options, saved, found)
    num_ranks = choices.choose_world(made)
    if not 0 <= options.teacher_ranks < num_ranks:
        raise UsageError(f"--teacher-ranks {options.teacher_ranks}: of {num_ranks} in all, and "
                         "at least one is to train: start more, --ranks "
                         f"{max(2, options.teacher_ranks + 1)} (or mpirun -n …)")
    task = make_task(made)
    _ = task.batches
    if found:
        check_resume(task, found[0], made)
    recipe = make_recipe(task.build(), build_teacher(saved), options.temperature, options.alpha,
                        options.match_hidden, options.match_attention, options.distance)
    load_teacher(saved)
    check_split(saved, options)
    told = {"teacher": str(options.teacher.absolute())} \
        | {name: getattr(options, name) for name in RECIPE}
    return Plan(made, recipe, saved, told, found), num_ranks


def resumed(options: argparse.Namespace) -> Found | None:
    """The checkpoint of --resume, whose teacher and recipe become those of the options.

    Raises UsageError if no distillation wrote it, or if an option contradicts the one that did.
    """
    if options.resume is None:
        return None
    for name in (*RECIPE, *OF_GPT, *OF_MLP, *AT_FIRST):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} does not go with --resume: the "
                             f"distillation in {options.resume} goes on as it began, leave it out")
    found = read_to_train(options.resume)
    told = found[0].description.get(KIND)
    if told is None:
        raise UsageError(f"--resume {options.resume} is of no distillation: `minipar train "
                         "--resume` goes on with it, without a teacher")
    for name in RECIPE:
        setattr(options, name, told[name])
    options.teacher = options.teacher or Path(told["teacher"])
    if not options.teacher.exists():
        raise UsageError(f"the teacher {options.teacher} is not there any more: say where it is, "
                         f"minipar distill TEACHER --resume {options.resume}")
    is_folder = options.resume.is_dir()
    options.out = options.out or (options.resume if is_folder else options.resume.parent)
    return found


def check_pairs(options: argparse.Namespace) -> None:
    """Raise UsageError for options that would do nothing; set the default of those not given."""
    pairs = {"teacher_split": "teacher_ranks"}
    if options.resume is None:
        pairs["distance"] = "match_hidden"
    for name, of in pairs.items():
        if getattr(options, name) is not None and not getattr(options, of):
            name, of = (f"--{word.replace('_', '-')}" for word in (name, of))
            raise UsageError(f"{name} does nothing without {of}: give that too, or leave it out")
    for name, default in {**RECIPE, "teacher_split": "tp"}.items():
        if getattr(options, name) is None:
            setattr(options, name, default)


def options_of_training(options: argparse.Namespace, saved: files.Checkpoint,
                        found: Found | None) -> argparse.Namespace:
    """The options of `minipar train` that train the student.  Raises UsageError."""
    before = vars(training_options((found[0] if found else saved).description))
    check_sizes(options, saved)
    given = {name: value for name in (*OF_GPT, *OF_MLP, *OF_RUN, *AT_FIRST)
             if (value := getattr(options, name)) is not None}
    if (given.get("data", before["data"]) == "digits") != (before["data"] == "digits"):
        raise UsageError(f"--data {given['data']}: the teacher was trained on {before['data']}, "
                         "which is of another kind: leave it out")
    taken = before if found else taken_from(before, options)
    parser = argparse.ArgumentParser()
    choices.add_arguments(parser)
    made = parser.parse_args([], argparse.Namespace(**{
        **taken, **given, "out": options.out, "save_every": options.save_every,
        "resume": options.resume}))
    choices.check(made)
    made.out = None         # what is written is the student's alone: see `keep`
    folders = [path.resolve() for path in (options.teacher, options.teacher.parent)]
    if options.out.resolve() in folders[:1 if options.teacher.is_dir() else 2]:
        raise UsageError(f"--out {options.out} is where the teacher is, which would be replaced: "
                         "give another folder")
    return made


def check_sizes(options: argparse.Namespace, saved: files.Checkpoint) -> None:
    """Raise UsageError for sizes of a model of another kind than the teacher."""
    is_mlp = saved.description["data"] == "digits"
    for name in OF_GPT if is_mlp else OF_MLP:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is a size of "
                             + ("a GPT, but the teacher is an MLP: give --hidden" if is_mlp else
                                "an MLP, but the teacher is a GPT: give --layers and --width"))


def taken_from(before: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The options of the teacher's training that the student has too, unless others are given."""
    cut = CUT if options.width is None else ()
    taken = {name: before[name] for name in (*OF_GPT, *OF_MLP, *OF_RUN, *cut, *AS_BEFORE)}
    if taken["strategy"] not in STRATEGIES:
        del taken["strategy"]
    return taken
