"""`minipar distill TEACHER`: a smaller model, trained to answer as a checkpoint's model does.

    minipar distill out/gpt --layers 2 --width 64 --temperature 2 --alpha 0.5 --out out/small
    minipar distill out/digits --hidden 16 --steps 300 --out out/small
    minipar distill out/gpt --layers 2 --ranks 4 --teacher-ranks 2 --out out/small
    minipar distill --resume out/small              an interrupted run goes on, with its teacher

Options that are not given are taken from the teacher's checkpoint: sizes, kinds of layers, data,
steps, learning rate.  But a student has no experts.  The student's checkpoint is an ordinary one:
`minipar train --resume` goes on with it alone.
"""

from ...backend.malloc import keep_freed_memory
from ...comm import Cluster
from ...environment import launched
from ...launcher import errors_as_usage, launch
from ...train.recipes.distill_plan import DistillConfig, make_plan
from ...train.recipes.distillation import Scored, distill_rank
from ..tables import Column, Output, Table

Options = DistillConfig


def main(options: Options, output: Output) -> None:
    """Train the student.  Raises UsageError, where possible before the ranks start."""
    with errors_as_usage():
        plan = make_plan(options)
    keep_freed_memory()
    scored = launch(lambda comm: distill_rank(comm, plan, output.console),
                    cluster=None if launched() else Cluster(plan.num_ranks))
    if scored is not None:
        output.table(scores_table(scored), show=False)


def scores_table(scored: list[Scored]) -> Table:
    """The scores of teacher and student, for scripts."""
    table = Table.of("distillation", "model", "parameters", Column("loss", "nats"), "accuracy")
    for model in scored:
        table.add(model.name, model.num_parameters, model.score.nats, model.score.accuracy)
    return table
