"""The command line: `minipar train | evaluate | quantize | collective | schedule | doctor | …`.

Or `python -m minipar …`.
"""

import io
import sys
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from .. import __version__
from .parser import ArgumentParser, add_json
from .tables import Output

DESCRIPTION = "Distributed training from scratch, in NumPy/CuPy and MPI."


class Command(NamedTuple):
    """A command: its module, and a line of help.

    The module has main(options, output), and either Options or add_arguments(parser).
    """

    module: str
    help: str
    on_many_ranks: bool = False     # else mpirun is refused: every rank would do the same


COMMANDS = {
    "train": Command("train", "train a GPT or an MLP, on any mesh of ranks", True),
    "compare": Command("compare", "is it a bug or rounding? The first array in which two layouts "
                       "of a run differ", True),
    "evaluate": Command("evaluate", "run a checkpoint, plain or compressed, on unseen data"),
    "convert": Command("inference.convert", "read a model of Hugging Face's files, GPT-2 or Llama, "
                       "or write one"),
    "quantize": Command("compress.quantize", "store the weights of a checkpoint in few bits"),
    "prune": Command("compress.prune", "remove weights, or neurons and heads, from a checkpoint"),
    "distill": Command("compress.distill", "train a smaller model to imitate a checkpoint's", True),
    "study": Command("compress.study", "compare the quality and cost of every way of compression"),
    "collective": Command("collective", "run one collective on simulated ranks: cost and timeline"),
    "schedule": Command("schedule", "simulate a pipeline schedule: time, bubble and memory"),
    "shard": Command("shard", "annotate a few tensors of a model, and see what follows (GSPMD)"),
    "plan": Command("plan", "the fastest layout of a model on a cluster that fits in memory, and "
                    "why"),
    "simulate": Command("simulate.simulate", "one training step on thousands of simulated GPUs: "
                        "its time, its memory, its pictures"),
    "generate": Command("inference.generate", "let a checkpoint go on from one prompt or several",
                        True),
    "serve": Command("inference.serve", "answer prompts over HTTP, as OpenAI's completions", True),
    "replay": Command("inference.replay", "play scripted requests through the scheduler and the "
                      "blocks of a paged cache, without a model"),
    "calibrate": Command("calibrate", "under mpirun: measure which algorithm is fastest on this "
                         "machine", True),
    "lessons": Command("course.lessons", "the lessons: what each asks, and how far you are"),
    "lesson": Command("course.lesson", "run a lesson, on real ranks if there is an MPI"),
    "milestone": Command("course.milestone", "train a GPT with your own functions in place of "
                         "minipar's"),
    "course": Command("course.assignment", "assignments: build, grade, report, prove; slides"),
    "puzzle": Command("course.puzzle", "twelve broken training programs: find each mistake with a "
                      "tool"),
    "doctor": Command("doctor", "show what is installed, and whether MPI fits together", True),
}


class Parser(ArgumentParser):
    """A parser that reports a mistake in one line, once for all ranks, and exits with 2."""

    def error(self, message: str) -> None:
        """Called by argparse for a wrong command line."""
        from ..launcher import UsageError, report_usage
        sys.exit(report_usage(UsageError(f"{message} ({self.prog} --help lists the options)")))


def make_parser(only: str | None = None) -> Parser:
    """The parser of the whole command line; with `only`, other commands are names without options.

    So the modules of the other commands need not be imported.
    """
    parser = Parser(prog="minipar", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"minipar {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sentence = f"{command.help[0].upper()}{command.help[1:]}."
        inner = commands.add_parser(name, help=command.help, description=sentence)
        if only not in (None, name):
            continue
        module = module_of(command)
        if hasattr(module, "add_arguments"):
            module.add_arguments(inner)
        else:
            from ..train.command_line import CommandOptions, add_options
            add_options(inner, getattr(module, "Options", CommandOptions))
        add_json(inner)
    commands.add_parser("exercise", help="course exercises: list, start, check, hint",
                        add_help=False)
    return parser


def module_of(command: Command) -> ModuleType:
    """The module of a command, imported when it is needed."""
    return import_module(f".{command.module}", __package__)


def main(argv: list[str] | None = None) -> int:
    """Run the command of `argv` (sys.argv[1:]); return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")    # a terminal without UTF-8 shows "?" for "→"
    if argv[:1] == ["exercise"]:        # first: it must work while a learner's file does not parse
        from .course import exercise
        return exercise.main(argv[1:])
    from ..environment import launched
    from ..launcher import INTERRUPTED, UsageError, report_usage
    from ..school.toml_files import SchoolError
    try:
        options = make_parser(argv[0] if argv else "").parse_args(argv)
        command, world = COMMANDS[options.command], launched()
        if not command.on_many_ranks and world and world.size > 1:
            raise UsageError(f"{options.command} works on one rank, not on {world.size}: run it "
                             "without mpirun")
        module, output = module_of(command), Output(options.command, options.json)
        if hasattr(module, "Options"):
            from ..train.command_line import read_options
            options = read_options(module.Options, options)
        status = module.main(options, output)
        output.end()
        return status or 0
    except (UsageError, SchoolError) as error:
        return report_usage(error)
    except OSError as error:
        if error.filename is None:
            raise
        return report_usage(UsageError.of(error))
    except MemoryError as error:
        return report_usage(UsageError(f"there is not enough memory ({error}): choose smaller "
                                       "sizes", status=1))
    except KeyboardInterrupt:
        return report_usage(UsageError("interrupted", status=INTERRUPTED))
