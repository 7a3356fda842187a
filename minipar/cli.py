"""The command line: `minipar train | evaluate | quantize | collective | schedule | doctor | …`.

Or `python -m minipar …`.
"""

import argparse
import sys

from . import __version__

DESCRIPTION = "Distributed training from scratch, in NumPy/CuPy and MPI."


class Parser(argparse.ArgumentParser):
    """argparse, saying what is wrong in one line, once for all ranks, and exiting with 2."""

    def error(self, message: str) -> None:
        """Called by argparse for a wrong command line."""
        from .launch import UsageError, report_usage
        sys.exit(report_usage(UsageError(f"{message} ({self.prog} --help lists the options)")))


def make_parser() -> tuple[Parser, Parser]:
    """The parser of the whole command line, and that of `train` in it."""
    from . import (
        calibrate,
        collective_command,
        evaluate_command,
        quantize_command,
        schedule_command,
        train,
    )
    parser = Parser(prog="minipar", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"minipar {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    training = commands.add_parser("train", help="train a GPT or an MLP, on any mesh of ranks")
    train.add_arguments(training)
    evaluate_command.add_arguments(commands.add_parser(
        "evaluate", help="run a checkpoint, plain or compressed, on data it has not seen"))
    quantize_command.add_arguments(commands.add_parser(
        "quantize", help="a checkpoint's weights as integers of 8 or 4 bits"))
    collective_command.add_arguments(commands.add_parser(
        "collective", help="run one collective on simulated ranks: its cost, its timeline"))
    schedule_command.add_arguments(commands.add_parser(
        "schedule", help="a pipeline's schedule: its time, bubble and memory, drawn"))
    calibrate.add_arguments(commands.add_parser(
        "calibrate", help="under mpirun: measure which algorithm is fastest on this machine"))
    commands.add_parser("doctor", help="what is installed, and whether MPI fits together")
    for name, text in (("exercise", "course exercises: list, start, check, hint"),
                       ("bench", "measure against PyTorch and hand-written NumPy")):
        commands.add_parser(name, help=text, add_help=False)
    return parser, training


def main(argv: list[str] | None = None) -> int:
    """Run the command of `argv` (sys.argv[1:]); return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["exercise"]:        # first: it must work while a learner's file does not parse
        from . import exercises
        return exercises.main(argv[1:])
    from .launch import INTERRUPTED, UsageError, report_usage
    try:
        if argv[:1] == ["bench"]:
            from . import bench
            return bench.main(argv[1:])
        parser, training = make_parser()
        options = parser.parse_args(argv)
        if options.command == "doctor":
            from . import doctor
            return doctor.main()
        if options.command == "evaluate":
            from . import evaluate_command
            evaluate_command.main(options)
            return 0
        if options.command == "quantize":
            from . import quantize_command
            quantize_command.main(options)
            return 0
        if options.command == "collective":
            from . import collective_command
            collective_command.main(options)
            return 0
        if options.command == "schedule":
            from . import schedule_command
            schedule_command.main(options)
            return 0
        if options.command == "calibrate":
            from . import calibrate
            calibrate.main(options)
            return 0
        from . import train
        if options.resume is not None:      # what is not said now is as it was
            training.set_defaults(**train.remembered(options))
            options = parser.parse_args(argv)
        train.main(options)
        return 0
    except UsageError as error:
        return report_usage(error)
    except KeyboardInterrupt:
        return report_usage(UsageError("interrupted", status=INTERRUPTED))
