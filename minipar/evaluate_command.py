"""`minipar evaluate CHECKPOINT`: how well a checkpoint's model does on data it has not seen.

    minipar evaluate out/gpt
    minipar evaluate out/gpt-int4 --sample 200

Plain and compressed checkpoints alike.
"""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console

from . import checkpoint as files
from .compress.load import compression_of, load_model
from .environment import launched
from .launch import UsageError
from .nn import Module
from .train import add_arguments as add_train_arguments
from .train.tasks import DigitsTask, LanguageTask, Score, make_task
from .viz.figure import in_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT",
                        help="a checkpoint, or the folder of one")
    parser.add_argument("--sample", type=int, default=0, metavar="N",
                        help="print N characters of generated text")
    parser.add_argument("--prompt", default="\n", help="what the sample goes on from")
    parser.add_argument("--temperature", type=float, default=0.8)


def main(options: argparse.Namespace) -> None:
    """Print the score, the bytes, and a sample if asked.  Raises UsageError."""
    check_alone("evaluate")
    checkpoint, task, model = open_checkpoint(options.checkpoint, sample=options.sample,
                                              prompt=options.prompt,
                                              temperature=options.temperature)
    console = Console(soft_wrap=True, highlight=False)
    for step in compression_of(checkpoint):
        console.print(", ".join(f"{key} {value}" for key, value in step.items() if key != "kind"),
                      style="dim", markup=False)
    console.print(f"{described(task.score(model), task)}; "
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


def open_checkpoint(path: Path, **of_task: object
                    ) -> tuple[files.Checkpoint, LanguageTask | DigitsTask, Module]:
    """A checkpoint, the task it was trained for and its model, ready to run.

    `of_task` are options of `minipar train` that are not those of the training.  Raises UsageError.
    """
    try:
        checkpoint = files.load(path)
        options = argparse.ArgumentParser()
        add_train_arguments(options)
        remembered = checkpoint.description.get("options")
        if not isinstance(remembered, dict):
            raise ValueError(f"{path} does not say how it was trained: give a checkpoint that "
                             "`minipar train --out` made, or one made from it")
        options = options.parse_args([], argparse.Namespace(**remembered, **of_task))
        check_sample(options)
        task = make_task(options)
        if isinstance(task, LanguageTask) and \
                task.vocabulary.characters != checkpoint.description["vocabulary"]:
            raise ValueError(f"{path} was trained on other characters than --data {options.data} "
                             "has now: give it the text back")
        model = task.build().initialize(options.seed, np.dtype(options.dtype))
        return checkpoint, task, load_model(checkpoint, model)
    except (ValueError, OSError, KeyError) as error:
        raise UsageError.of(error) from error


def check_sample(options: argparse.Namespace) -> None:
    """Refuse what cannot be sampled.  Raises ValueError."""
    if options.sample < 0 or not 0 <= options.temperature < float("inf"):
        raise ValueError(f"--sample and --temperature are numbers >= 0, not {options.sample} and "
                         f"{options.temperature}")
    if options.sample and options.data == "digits":
        raise ValueError("--sample generates text, but this model recognizes digits: leave "
                         "--sample out")


def size_of(path: Path) -> int:
    """The bytes of a checkpoint's file."""
    return (path / "checkpoint.npz" if path.is_dir() else path).stat().st_size


def described(score: Score, task: LanguageTask | DigitsTask) -> str:
    """One line on a score."""
    if score.accuracy is None:
        return f"loss {score.nats:.4f} nats = {score.bits:.4f} bits per {task.target}"
    return f"loss {score.nats:.4f} nats, {score.accuracy:.2%} of {task.target}s recognized"
