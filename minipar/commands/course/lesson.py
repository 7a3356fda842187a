"""`minipar lesson 12`: run a lesson, on real ranks if there is an mpirun, else simulate them."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ...environment import find_mpirun, mpirun_environment
from ...launcher import INTERRUPTED
from ...school.course.lessons import default_out, find_lesson
from ...train.option import REQUIRED, CommandOptions, option, ranks
from ..tables import Output


def main(options: "Options", output: Output) -> int:
    """Run the lesson in a process of its own; return its exit status.  Raises SchoolError."""
    script = find_lesson(options.lesson).script
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


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    lesson: str = option(REQUIRED, "its number, or a word of its title", metavar="LESSON",
                         is_positional=True)
    ranks: int = ranks(4, "-n")
    simulated: bool = option(False, "simulate the ranks, though there is an mpirun")
    answers: bool = option(False, "print the answers, too")
    all_rows: bool = option(False, "print folded rows of tables, too")
    out: Path | None = option(None, "where its folder NN of results goes", metavar="DIR",
                              default_text="out")
