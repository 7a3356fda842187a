"""`minipar distill TEACHER`: a smaller model, trained to answer as a checkpoint's model does.

    minipar distill out/gpt --layers 2 --width 64 --temperature 2 --alpha 0.5 --out out/small
    minipar distill out/digits --hidden 16 --steps 300 --out out/small
    minipar distill out/gpt --layers 2 --ranks 4 --teacher-ranks 2 --out out/small
    minipar distill --resume out/small              what was interrupted goes on, with its teacher

Options that are not given are taken from the teacher's checkpoint: sizes, kinds of layers, data,
steps, learning rate.  But a student has no experts.  The student's checkpoint is an ordinary one:
`minipar train --resume` goes on with it alone.
"""

import argparse
from pathlib import Path

from ...backend.malloc import keep_freed_memory
from ...comm import Cluster
from ...compress.distillation.feature_loss import DISTANCES
from ...compress.distillation.teacher_parallel import SPLITS
from ...environment import launched
from ...launcher import UsageError, launch
from ...train.config import OPTIONS
from ...train.flags import add_flag, given
from ...train.recipes.distill_plan import (
    GPT_OPTIONS,
    MLP_OPTIONS,
    RECIPE_DEFAULTS,
    STUDENT_OPTIONS,
    STUDENT_STRATEGIES,
    DistillConfig,
    make_plan,
)
from ...train.recipes.distillation import Scored, distill_rank
from ..tables import Column, Output, Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command; those of the student are some of `minipar train`."""
    parser.add_argument("teacher", type=Path, nargs="?", metavar="TEACHER",
                        help="a checkpoint, pruned or quantized too, or its folder; with --resume "
                             "only if it has moved")
    student = parser.add_argument_group("student (options that are not given: as in the "
                                        "teacher, but without experts)")
    for key in (*GPT_OPTIONS, *MLP_OPTIONS, "dropout"):
        add_flag(student, OPTIONS[key], OPTIONS[key].option.help)
    imitated = parser.add_argument_group("what is imitated")
    imitated.add_argument("--temperature", type=float, metavar="T", default=argparse.SUPPRESS,
                          help="divides both models' logits (2)")
    imitated.add_argument("--alpha", type=float, default=argparse.SUPPRESS,
                          help="weight of the teacher's answers; 1 - alpha of the true ones (0.5)")
    imitated.add_argument("--match-hidden", type=float, metavar="WEIGHT",
                          default=argparse.SUPPRESS,
                          help="of hidden layers, through learned projections (0)")
    imitated.add_argument("--distance", choices=DISTANCES, default=argparse.SUPPRESS,
                          help="of hidden layers (squared)")
    imitated.add_argument("--match-attention", type=float, metavar="WEIGHT",
                          default=argparse.SUPPRESS,
                          help="of a GPT's attention scores, before the softmax (0)")
    run = parser.add_argument_group("run (options that are not given: as in the teacher)")
    for key in ("data", "batch", "steps", "lr", "accumulate", "optimizer", "seed", "precision"):
        add_flag(run, OPTIONS[key], OPTIONS[key].option.help)
    run.add_argument("--strategy", choices=STUDENT_STRATEGIES, default=argparse.SUPPRESS,
                     help="how the ranks that train share the work")
    add_flag(run, OPTIONS["ranks"])
    run.add_argument("--teacher-ranks", type=int, default=0, metavar="N",
                     help="the last N ranks share the teacher and do not train (0: every rank has "
                          "a copy)")
    run.add_argument("--teacher-split", choices=SPLITS,
                     help="how they share it: each layer (tp, default), or its layers (pp)")
    run.add_argument("--out", type=Path, metavar="DIR", help="folder of the student's checkpoint")
    run.add_argument("--save-every", type=int, default=0, metavar="N",
                     help="also write a checkpoint every N steps")
    run.add_argument("--resume", type=Path, metavar="DIR",
                     help="continue the distillation in DIR as it began, and write there if --out "
                          "is not given")


def main(options: argparse.Namespace, output: Output) -> None:
    """Train the student.  Raises UsageError for mistakes that can be found before."""
    config = DistillConfig(options.teacher, options.out, options.resume,
                           given(options, STUDENT_OPTIONS), given(options, RECIPE_DEFAULTS),
                           options.teacher_ranks, options.teacher_split,
                           options.save_every)
    try:
        plan = make_plan(config)
    except (ValueError, OSError, KeyError) as error:
        raise UsageError.of(error) from error
    keep_freed_memory()
    scored = launch(lambda comm: distill_rank(comm, plan, output.console),
                    cluster=None if launched() else Cluster(plan.num_ranks))
    if scored is not None:
        output.table(scores_table(scored), show=False)


def scores_table(scored: list[Scored]) -> Table:
    """Teacher and student, for scripts."""
    table = Table.of("distillation", "model", "parameters", Column("loss", "nats"), "accuracy")
    for model in scored:
        table.add(model.name, model.num_parameters, model.score.nats, model.score.accuracy)
    return table
