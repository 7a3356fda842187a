"""`minipar puzzle`: twelve broken training programs; find each mistake with a tool.

    minipar puzzle                  all puzzles: the symptom, and the tool that finds it
    minipar puzzle start ring       a copy of the program here, ring.py, and how to run it
    minipar puzzle hint ring        where to look
    minipar puzzle check ring       is ring.py mended?
    minipar puzzle explain ring     what is wrong, why it shows like this, and a mend

A program is mended if it ends, and computes on several ranks what it computes on one.
"""

import difflib
import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from ...atomic_files import write_text
from ...comm import Cluster, CollectiveMismatch, Deadlock
from ...compare_runs.run import find_difference
from ...environment import minipar_command
from ...launcher import UsageError
from ...school.course.puzzles import Puzzle, load
from ...school.toml_files import SchoolError
from ...train.config import TrainConfig
from ...train.config_file import read_setting
from ...train.option import CommandOptions, option
from ...train.recipes.side_by_side import compare_layouts, layout
from ..tables import Column, Output, Table

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path("lessons/puzzles")
# A model that is small enough for a comparison to take a second.
SMALL = {"layers": 1, "width": 16, "context": 16, "batch": 6, "steps": 2}
ACTIONS = ("start", "hint", "check", "explain")
TOOLS = {
    "compare": "the comparison with one process names the first wrong array",
    "types": "check_types(loss, comm, parameters, cut) of minipar.parallel.check_types, called "
             "before backward, names the operation; what one rank prints is right",
    "doctor": "on simulated ranks, and on real ones with MINIPAR_CHECK=1, a report says who waits "
              "for whom, at which line",
}


def main(options: "Options", output: Output) -> int:
    """Do what is asked; 1 if a program is not mended.  Raises UsageError, SchoolError."""
    puzzles = load()
    if options.action is None:
        output.table(table(puzzles))
        return 0
    if options.name not in puzzles:
        close = difflib.get_close_matches(options.name or "", puzzles, 1)
        raise UsageError((f"there is no puzzle {options.name!r}: " if options.name else
                          f"{options.action} which puzzle? ")
                         + (f"did you mean {close[0]}?" if close else
                            f"choose from {', '.join(puzzles)}"))
    return {"start": start, "hint": hint, "check": check, "explain": explain}[options.action](
        puzzles[options.name], options.file or Path(f"{options.name}.py"), output)


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    action: str | None = option(None, f"{', '.join(ACTIONS)}; without it, list the puzzles",
                                choices=ACTIONS, metavar="ACTION", is_positional=True)
    name: str | None = option(None, "the name of a puzzle", metavar="NAME", is_positional=True)
    file: Path | None = option(None, "your program", metavar="FILE", default_text="NAME.py")


def table(puzzles: dict[str, Puzzle]) -> Table:
    """A row for each puzzle."""
    made = Table.of("puzzles", "puzzle", Column("symptom", is_text=True),
                    Column("tool", is_text=True), "ranks")
    for name, puzzle in puzzles.items():
        made.add(name, puzzle.title, puzzle.tool, puzzle.ranks)
    return made


def start(puzzle: Puzzle, file: Path, output: Output) -> int:
    """Copy the program to `file`, and say how to run it."""
    if file.exists():
        raise UsageError(f"{file} exists already: go on there, or give another --file")
    write_text(file, source(puzzle))
    output.text(puzzle.title, f"Your program: {file}. Run it:", "")
    if puzzle.tool == "compare":
        output.text("  " + minipar_command(f"compare {words(puzzle, file)}"))
    else:
        output.text(f"  python {file} --ranks 1", f"  python {file} --ranks {puzzle.ranks}")
    if puzzle.tool == "doctor":
        output.text(f"  MINIPAR_CHECK=1 mpirun -n {puzzle.ranks} python {file}")
    output.text("", f"What finds it: {TOOLS[puzzle.tool]}.",
                f"When you have mended it: {minipar_command(f'puzzle check {puzzle.name}')}")
    return 0


def hint(puzzle: Puzzle, file: Path, output: Output) -> int:
    """Say where to look."""
    output.text(puzzle.hint)
    return 0


def check(puzzle: Puzzle, file: Path, output: Output) -> int:
    """Say whether the program in `file` is mended; 1 if not."""
    if not file.exists():
        raise UsageError(f"there is no {file}: begin with "
                         f"{minipar_command(f'puzzle start {puzzle.name}')}, or give --file")
    if puzzle.tool == "compare":
        wrong = check_strategy(puzzle, file)
    else:
        wrong = check_program(file, puzzle.ranks)
    made = Table.of("check", "puzzle", Column("still wrong", is_text=True))
    made.add(puzzle.name, wrong)
    output.table(made, show=False)
    output.text(f"{puzzle.name} is mended: {puzzle.ranks} ranks equal one." if wrong is None else
                f"{puzzle.name} is not mended: {wrong}")
    return int(wrong is not None)


def check_strategy(puzzle: Puzzle, file: Path) -> str | None:
    """What is wrong with the strategy in `file`, as `minipar compare` says; None if nothing is."""
    values = {**SMALL, "strategy": f"{file}:Mine"}
    for setting in puzzle.settings:
        values |= read_setting(setting)
    config = TrainConfig().updated(**values)
    sides = layout(config, "dp=1"), layout(config, puzzle.right)
    found = Cluster(puzzle.ranks).run(
        lambda comm: compare_layouts(comm, *sides, config.run.steps))[0][0]
    return str(found) if found.verdict == "different" else None


def load_main(file: Path) -> Callable[[Any], Any]:
    """The function main(comm) of a program.  Raises SchoolError if it cannot be loaded."""
    spec = spec_from_file_location(f"puzzle_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return module.main
    except (OSError, SyntaxError, AttributeError) as error:
        raise SchoolError(f"{file}: {error}: give a program with a function main(comm)") from None


def check_program(file: Path, num_ranks: int) -> str | None:
    """What is still wrong with a program on `num_ranks` simulated ranks; None if it is mended."""
    main = load_main(file)
    try:
        with redirect_stdout(io.StringIO()):
            Cluster(num_ranks).run(main)        # alone, so that a report shows its own lines only
            found = find_difference(main, main, ranks=(1, num_ranks), steps=1, dtype="float64")
    except (Deadlock, CollectiveMismatch) as error:
        return str(error)
    except ValueError as error:
        if "nothing was recorded" not in str(error):
            raise
        return "it records nothing any more: keep the lines with record(…), which are compared"
    return str(found) if found.verdict == "different" else None


def explain(puzzle: Puzzle, file: Path, output: Output) -> int:
    """Say what is wrong, and show a mend."""
    before = source(puzzle)
    lines = difflib.unified_diff(before.splitlines(), puzzle.mended(before).splitlines(),
                                 "broken", "mended", lineterm="", n=1)
    output.text(puzzle.explanation, "", *lines)
    return 0


def source(puzzle: Puzzle) -> str:
    """The broken program.  Raises SchoolError without a source checkout."""
    try:
        return (ROOT / PROGRAMS / f"{puzzle.name}.py").read_text("utf-8")
    except FileNotFoundError:
        raise SchoolError(f"there is no {PROGRAMS} in {ROOT}: puzzles need a source checkout "
                          "(git clone, then pip install -e '.[dev]')") from None


def words(puzzle: Puzzle, file: Path) -> str:
    """The options of `minipar compare` for this puzzle."""
    settings = " ".join(f"--set {setting}" for setting in puzzle.settings)
    small = " ".join(f"--{name} {value}" for name, value in SMALL.items())
    return f"--right {puzzle.right} --strategy {file}:Mine {settings} {small}"
