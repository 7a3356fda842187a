"""The command line: `minipar train | evaluate | quantize | collective | schedule | doctor | …`.

Or `python -m minipar …`.
"""

import sys
from importlib import import_module

from .. import __version__
from .parser import ArgumentParser

DESCRIPTION = "Distributed training from scratch, in NumPy/CuPy and MPI."

# Modules that have add_arguments(parser) and main(options).
COMMANDS = {
    "train": ("..train", "train a GPT or an MLP, on any mesh of ranks"),
    "evaluate": (".evaluate", "run a checkpoint, plain or compressed, on data it has not seen"),
    "quantize": (".compress.quantize", "a checkpoint's weights in 8 or 4 bits: integers or floats"),
    "prune": (".compress.prune", "a checkpoint with fewer weights, or fewer neurons and heads"),
    "distill": (".compress.distill", "a smaller model that learns from a checkpoint's"),
    "study": ("..compression_study", "what every way of compression costs and saves, in one table"),
    "collective": (".collective", "run one collective on simulated ranks: its cost, its timeline"),
    "schedule": (".schedule", "a pipeline's schedule: its time, bubble and memory, drawn"),
    "calibrate": (".calibrate", "under mpirun: measure which algorithm is fastest on this machine"),
}


class Parser(ArgumentParser):
    """A parser, saying what is wrong in one line, once for all ranks, and exiting with 2."""

    def error(self, message: str) -> None:
        """Called by argparse for a wrong command line."""
        from ..launcher import UsageError, report_usage
        sys.exit(report_usage(UsageError(f"{message} ({self.prog} --help lists the options)")))


def make_parser() -> tuple[Parser, Parser]:
    """The parser of the whole command line, and that of `train` in it."""
    parser = Parser(prog="minipar", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"minipar {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, text) in COMMANDS.items():
        import_module(module, __package__).add_arguments(commands.add_parser(name, help=text))
    for name, text in (("exercise", "course exercises: list, start, check, hint"),
                       ("bench", "measure against PyTorch and hand-written NumPy")):
        commands.add_parser(name, help=text, add_help=False)
    commands.add_parser("doctor", help="what is installed, and whether MPI fits together")
    return parser, commands.choices["train"]


def main(argv: list[str] | None = None) -> int:
    """Run the command of `argv` (sys.argv[1:]); return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["exercise"]:        # first: it must work while a learner's file does not parse
        from . import exercise
        return exercise.main(argv[1:])
    from ..launcher import INTERRUPTED, UsageError, report_usage
    try:
        if argv[:1] == ["bench"]:
            from .. import bench
            return bench.main(argv[1:])
        parser, training = make_parser()
        options = parser.parse_args(argv)
        if options.command == "doctor":
            from . import doctor
            return doctor.main()
        if options.command == "train" and options.resume is not None:
            from .. import train  # what is not said now is as it was
            training.set_defaults(**train.remembered(options))
            options = parser.parse_args(argv)
        import_module(COMMANDS[options.command][0], __package__).main(options)
        return 0
    except UsageError as error:
        return report_usage(error)
    except MemoryError as error:
        return report_usage(UsageError(f"there is not enough memory ({error}): choose smaller "
                                       "sizes", status=1))
    except KeyboardInterrupt:
        return report_usage(UsageError("interrupted", status=INTERRUPTED))
