"""`minipar lesson 12`: run a lesson, on real ranks if there is an MPI, else on simulated ones."""

import argparse
import subprocess
import sys
from pathlib import Path

from ...environment import find_mpirun, mpirun_environment
from ...launcher import INTERRUPTED, UsageError
from ...school.course.lessons import default_out, find_lesson
from ...school.toml_files import SchoolError
from ..tables import Output

RANKS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("lesson", metavar="LESSON", help="its number, or a word of its title")
    parser.add_argument("-n", "--ranks", type=int, default=RANKS, metavar="N",
                        help="number of ranks (%(default)s)")
    parser.add_argument("--simulated", action="store_true",
                        help="simulate the ranks, though there is an mpirun")
    parser.add_argument("--answers", action="store_true", help="print the answers, too")
    parser.add_argument("--all-rows", action="store_true", help="print folded rows of tables, too")
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="where its folder NN of results goes (out)")


def main(options: argparse.Namespace, output: Output) -> int:
    """Run the lesson in a process of its own; return its exit status."""
    if options.ranks < 1:
        raise UsageError(f"-n takes a positive number of ranks, not {options.ranks}")
    try:
        script = find_lesson(options.lesson).script
    except SchoolError as error:
        raise UsageError(str(error)) from None
    words = ["--out", str(options.out or default_out()), *["--answers"] * options.answers,
             *["--all-rows"] * options.all_rows]
    mpirun = None if options.simulated else find_mpirun()
    if mpirun:
        command = [mpirun, "-n", str(options.ranks), sys.executable, str(script), *words]
    else:
        command = [sys.executable, str(script), "--ranks", str(options.ranks), *words]
        if not options.simulated:
            output.text("There is no mpirun, so the ranks are simulated.")
    try:
        return subprocess.run(command, env=mpirun_environment()).returncode
    except KeyboardInterrupt:
        return INTERRUPTED
