"""The frame of every lesson: a question, tables of predicted and measured, a picture, a takeaway.

    def main(comm):
        lesson = Lesson(comm, __file__, __doc__)
        lesson.table([Row("bytes sent", predicted, measured, "B")])     # asserted equal
        lesson.picture(lambda path: draw_space_time(path, run))       # out/01_messages.png
        lesson.takeaway("…")
        lesson.exercises(questions=["…?"])

    if __name__ == "__main__":
        launch(main)

A lesson is two files, lessons/NN_title.py and docs/pages/answers/NN.md, and a row in the tables of
docs/pages/course.md and README.md.  Its rules, which tests/lessons check:

    docstring   begins with `Lesson NN. `; its first line asks a question
    length      at most 170 lines; a longer computation goes into a helper in lessons/support
    ranks       runs on any number of simulated or real ranks from `min_ranks` on; all rows are
                checked on every rank, but only rank 0 prints and draws
    tables      at least one with predicted and measured values: Row asserts counts, shows seconds
    picture     one, saved as out/NN_title.png; a page for the browser may be added
    takeaway    one: the sentence to remember
    exercises   all of the catalog with `lesson = NN`, listed automatically; name earlier ones
    questions   each is answered on the answers page, folded below the same question, word for word

`--out DIR` says where pictures go; `--answers` prints the answers, too.
"""

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table

from minipar.comm import Communicator
from minipar.comm.collectives import gather_object
from minipar.environment import cores, minipar_command
from minipar.exercises import entries
from minipar.launcher import UsageError

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out"
ANSWERS = ROOT / "docs" / "pages" / "answers"
EQUAL, AT_MOST, ABOUT = "=", "≤", "≈"


class Row(NamedTuple):
    """One line of a table: a predicted value, and the one that was counted or timed.

    `rule` says what is asserted: "=" equal (floats to 1e-9), "≤" measured is at most predicted,
    "≈" nothing: for seconds, and for other values that need not be exact.
    """

    what: str
    predicted: float
    measured: float
    unit: str = ""
    rule: str = EQUAL

    def holds(self) -> bool:
        """Return True if the measured value obeys the rule."""
        if self.rule == EQUAL:
            both_whole = isinstance(self.predicted, int) and isinstance(self.measured, int)
            return (self.predicted == self.measured if both_whole
                    else isclose(self.predicted, self.measured, rel_tol=1e-9))
        return self.rule == ABOUT or self.measured <= self.predicted


class Lesson:
    """A lesson's output; constructing it reads the command line and prints the header.

    `file` is the lesson's __file__, and `docstring` its __doc__, whose first line has the question
    that the header asks.  Raises UsageError for an unknown option, or if there are fewer
    than `min_ranks` ranks.
    """

    def __init__(self, comm: Communicator, file: str, docstring: str, min_ranks: int = 1):
        self.comm, self.name = comm, Path(file).stem
        self.options = _options(sys.argv[1:], Path(file).name)
        if comm.size < min_ranks:
            raise UsageError(f"this lesson needs at least {min_ranks} ranks, not {comm.size}: "
                             f"--ranks {min_ranks}, or mpirun -n {min_ranks}")
        self.console = Console(quiet=comm.rank > 0, highlight=False,
                               width=None if sys.stdout.isatty() else 110)
        kind = "simulated" if comm.is_simulated else "real MPI"
        self.clock = "simulated" if kind == "simulated" else "measured"     # the kind of seconds
        ranks = f"{comm.size} {kind} rank{'s' if comm.size > 1 else ''}"
        number, _, title = self.name.partition("_")
        self.console.rule(f"[bold]Lesson {number}: {title.replace('_', ' ')}")
        question = docstring.partition("\n")[0].partition(". ")[2]
        self.console.print(f"[bold]{question}[/]  [dim]({ranks})[/]\n")
        crowded = _crowded(comm)
        if crowded:
            self.console.print(f"[yellow]{crowded}[/]\n")

    def say(self, text: str) -> None:
        """Print a paragraph, in Markdown."""
        self.console.print(Markdown(text), "", sep="\n")

    def table(self, rows: Sequence[Row], title: str = "", found: str = "measured") -> None:
        """Print predicted beside measured.  Raises AssertionError for a row that breaks its rule.

        `found` is the head of the second column: "simulated" for times of a simulated cluster.
        """
        for row in rows:
            assert row.holds(), (f"{row.what}: predicted {row.rule} {row.predicted!r}, {found} "
                                 f"{row.measured!r} {row.unit}")
        self.grid([title or "", "predicted", found, "ratio"],
                  [(row.what, f"{row.rule} {number(row.predicted)} {row.unit}",
                    f"{number(row.measured)} {row.unit}", _ratio(row)) for row in rows])

    def grid(self, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print any other table, with the first column left-aligned, the others right-aligned."""
        table = Table(*headers[:1])
        for header in headers[1:]:
            table.add_column(header, justify="right")
        for row in rows:
            table.add_row(*map(str, row))
        self.console.print(table, "")

    def picture(self, draw: Callable[[Path], Any]) -> None:
        """Call draw(path) on rank 0 and print where the picture is."""
        self._write("Picture", draw, self.options.out / f"{self.name}.png")

    def page(self, write: Callable[[Path], Any]) -> None:
        """Call write(path) on rank 0 and print where the page for the browser is."""
        self._write("Page", write, self.options.out / f"{self.name}.html")

    def _write(self, what: str, write: Callable[[Path], Any], path: Path) -> None:
        if self.comm.rank == 0:
            write(path)
        self.console.print(f"{what}: {path}\n", soft_wrap=True, markup=False)

    def takeaway(self, text: str) -> None:
        """Print the sentence to remember."""
        self.console.print(f"[bold green]Takeaway:[/] {text}\n")

    def exercises(self, *names: str, questions: Sequence[str] = ()) -> None:
        """Print the catalog's exercises of this lesson, others by name, and the questions."""
        self.console.print("[bold]Exercises[/]")
        number = int(self.name.partition("_")[0])
        own = [name for name, exercise in entries.load(ROOT).items() if exercise.lesson == number]
        for name in dict.fromkeys([*own, *names]):
            self.console.print(f"  • {minipar_command(f'exercise start {name}')}", soft_wrap=True)
        answers = answers_of(self.name) if self.options.answers else {}
        for question in questions:
            self.console.print(f"  • {question}", markup=False)
            if answers:
                self.console.print(Padding(Markdown(answers[question]), (1, 0, 1, 4)))
        if questions and not answers:
            self.console.print(f"[dim]The answers: --answers, or {_page(self.name)}[/]")


def _page(name: str) -> Path:
    """The page with the answers to a lesson's questions, relative to the source checkout."""
    return (ANSWERS / f"{name.partition('_')[0]}.md").relative_to(ROOT)


def answers_of(name: str) -> dict[str, str]:
    """The answers to the questions of a lesson, in Markdown, by question."""
    text = (ROOT / _page(name)).read_text(encoding="utf-8")
    folded = re.findall(r"<summary>(.+?)</summary>(.+?)</details>", text, re.DOTALL)
    return {" ".join(question.split()): answer.strip() for question, answer in folded}


def _crowded(comm: Communicator) -> str:
    """On rank 0 of real ranks a warning if ranks share cores; otherwise ""."""
    if comm.is_simulated:
        return ""
    here = [seen for node, seen in gather_object(comm, (comm.node_of(comm.rank), cores())) or []
            if node == comm.node_of(comm.rank)]
    num_cores = len(set().union(*here))
    return "" if len(here) <= num_cores else (
        f"{len(here)} ranks share {num_cores} core{'s' * (num_cores > 1)}: counts are exact, but "
        "times and shares of time mean little.")


def number(value: float) -> str:
    """A number for people: 12,345 if it is whole or large, otherwise with three digits."""
    whole = isinstance(value, int) or abs(value) < 1e15 and (value >= 1000 or value == int(value))
    return f"{value:,.0f}" if whole else f"{value:.3g}"


def _ratio(row: Row) -> str:
    if row.rule == AT_MOST or not row.predicted:
        return "–"
    return "1" if row.predicted == row.measured else f"{row.measured / row.predicted:.4f}"


def _options(words: list[str], program: str) -> Namespace:
    class Parser(ArgumentParser):
        def error(self, message: str):
            raise UsageError(f"{message}: {self.format_usage().strip()}")

    parser = Parser(program, description="A lesson; runs on simulated ranks (--ranks N), or on "
                                         "real ranks under mpirun.")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for its pictures")
    parser.add_argument("--answers", action="store_true", help="print the answers, too")
    return parser.parse_args(words)
