"""`minipar evaluate CHECKPOINT`: how well a checkpoint's model does on data it has not seen.

    minipar evaluate out/gpt
    minipar evaluate out/gpt-int4 --sample 200

It takes plain and compressed checkpoints.
"""

from dataclasses import dataclass
from pathlib import Path

from ..checkpoint_file import file_size
from ..compress.load import compression_steps
from ..launcher import UsageError
from ..train.checkpoints.models import check_numbers, open_model
from ..train.option import CommandOptions, checkpoint, other_text
from ..train.setup.precision import score_note
from ..train.tasks import LanguageTask, Score, score_line, try_score
from ..units import in_bytes
from .tables import Column, Output, Table


def main(options: "Options", output: Output) -> None:
    """Print the score, the bytes, and a sample if asked.  Raises UsageError."""
    saved, task, model = open_model(options.checkpoint, data=options.data, **options.training)
    with_sample = task.config.run.sample > 0
    if with_sample:
        if not isinstance(task, LanguageTask):
            raise UsageError("--sample generates text, but this model recognizes digits: leave "
                             "--sample out")
        check_numbers(options.checkpoint, saved.model)
    for step in compression_steps(saved):
        output.console.print(", ".join(f"{key} {value}" for key, value in step.items()
                                       if key != "kind"), style="dim", markup=False)
    if with_sample:                     # a sample needs no data
        score, line = try_score(task, model)
    else:
        score = task.score(model)
        line = score_line(score, task)
    on_disk = file_size(options.checkpoint)
    in_model = sum(array.nbytes for array in saved.model.values())
    output.text(f"{line}{score_note(task.config.precision.compute)}; {in_bytes(on_disk)} on disk, "
                f"of which the model {in_bytes(in_model)}")
    output.table(score_table(score, on_disk, in_model), show=False)
    if with_sample:
        output.console.rule("a sample")
        output.text(task.sample(model))
        output.console.rule()


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    of_training = {"sample": ("sample", "prompt", "temperature")}
    checkpoint: Path = checkpoint()
    data: str | None = other_text("be scored on")


def score_table(score: Score | None, on_disk: int, in_model: int) -> Table:
    """The score and the sizes, for scripts."""
    table = Table.of("evaluation", "figure", "value", Column("unit", is_text=True))
    if score is not None:
        table.add("loss", score.nats, "nats")
        if score.accuracy is None:
            table.add("bits per target", score.bits, "bit")
        else:
            table.add("accuracy", score.accuracy, "")
    table.add("file", on_disk, "B")
    table.add("model", in_model, "B")
    return table
