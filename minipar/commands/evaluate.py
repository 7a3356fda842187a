"""`minipar evaluate CHECKPOINT`: how well a checkpoint's model does on data it has not seen.

    minipar evaluate out/gpt
    minipar evaluate out/gpt-int4 --sample 200

Plain and compressed checkpoints alike.
"""

import argparse
from pathlib import Path

from rich.console import Console

from ..compress.load import compression_steps
from ..environment import launched
from ..launcher import UsageError
from ..nn import Module
from ..train.corpus import NoText
from ..train.model_checkpoints import open_model
from ..train.setup.precision import of_score
from ..train.tasks import Score, Task
from ..units import in_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT",
                        help="a checkpoint, or the folder of one")
    parser.add_argument("--data", metavar="docs|PATH",
                        help="another text, or where the text of the training is now")
    parser.add_argument("--sample", type=int, default=0, metavar="N",
                        help="print N characters of generated text")
    parser.add_argument("--prompt", default="\n", help="what the sample goes on from")
    parser.add_argument("--temperature", type=float, default=0.8)


def main(options: argparse.Namespace) -> None:
    """Print the score, the bytes, and a sample if asked.  Raises UsageError."""
    check_alone("evaluate")
    check_sample(options)
    checkpoint, task, model = open_model(options.checkpoint, data=options.data,
                                         sample=options.sample, prompt=options.prompt,
                                         temperature=options.temperature)
    if options.sample and not hasattr(task, "sample"):
        raise UsageError("--sample generates text, but this model recognizes digits: leave "
                         "--sample out")
    console = Console(soft_wrap=True, highlight=False)
    for step in compression_steps(checkpoint):
        console.print(", ".join(f"{key} {value}" for key, value in step.items() if key != "kind"),
                      style="dim", markup=False)
    score = scored(task, model) if options.sample else described(task.score(model), task)
    trained_in = checkpoint.description["options"].get("precision", "fp32")
    console.print(f"{score}{of_score(trained_in)}; "
                  f"{in_bytes(size_of(options.checkpoint))} on disk, of which the model "
                  f"{in_bytes(sum(array.nbytes for array in checkpoint.model.values()))}")
    if options.sample:
        console.rule("a sample")
        console.print(task.sample(model), markup=False)
        console.rule()


def check_alone(command: str) -> None:
    """Raise UsageError under mpirun, where every rank would do and write the same."""
    if launched() and launched().size > 1:
        raise UsageError(f"{command} works on one rank, not on {launched().size}: run it without "
                         "mpirun")


def check_sample(options: argparse.Namespace) -> None:
    """Refuse what cannot be sampled.  Raises UsageError."""
    if options.sample < 0 or not 0 <= options.temperature < float("inf"):
        raise UsageError("--sample and --temperature are numbers >= 0, not "
                         f"{options.sample} and {options.temperature}")


def scored(task: Task, model: Module) -> str:
    """One line on the model's score, or on why there is none: its text may be gone."""
    try:
        return described(task.score(model), task)
    except NoText as error:
        return f"not scored: {error}"


def size_of(path: Path) -> int:
    """The bytes of a checkpoint's file."""
    return (path / "checkpoint.npz" if path.is_dir() else path).stat().st_size


def described(score: Score, task: Task) -> str:
    """One line on a score."""
    if score.accuracy is None:
        return f"loss {score.nats:.4f} nats = {score.bits:.4f} bits per {task.target}"
    return f"loss {score.nats:.4f} nats, {score.accuracy:.2%} of {task.target}s recognized"
