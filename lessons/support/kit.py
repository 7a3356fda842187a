"""The frame of every lesson: a question, its algorithm, predicted beside measured, a takeaway.

A lesson's script is its algorithm.  It has these parts, in this order:

    head         `Lesson NN. ` and its question, the idea, a drawing, the formula, how to run it
    algorithm    15 to 60 lines of code on comm.send, recv, isend, irecv, sendrecv, NumPy and
                 micro.py only: what one would write on a whiteboard
    main         the algorithm on a tiny input, equal to one process, in one table of 2 to 6 rows

    def main(comm):
        lesson = Lesson(comm, __file__, __doc__)
        lesson.table([Row("rounds", p - 1, found)])         # asserted equal
        compare_with_library(lesson, ring=ring)             # support/lesson_NN.py
        lesson.takeaway("…")
        lesson.exercises(questions=["…?"])

    if __name__ == "__main__":
        launch(main)

`compare_with_library` has all the rest: the library's counterpart, equal to the lesson's functions,
on a real model, with bytes, memory, times, faults, and the picture.  A lesson is these two files,
its page (`page.py`), and a row in the table of docs/pages/course.md.  Constructing a Lesson prints
the question, and from the page what to guess, the algorithm, and the derivation.  The rules, which
tests/lessons check:

    length      at most 120 lines, and 40 for a function
    imports     of minipar no more than Communicator and launch
    algorithm   each function equals its counterpart in the library: a row for it in the table of
                tests/lessons/algorithms/lesson_NN.py
    ranks       runs on any number of simulated or real ranks from `min_ranks` on; all rows are
                checked on every rank, but only rank 0 prints and draws
    tables      Row asserts counts, shows seconds; `counts` folds a long table of equal rows
    picture     one, saved as out/NN/picture.png; a page for the browser may be added
    takeaway    one: the sentence to remember
    exercises   all of the catalog with `lesson = NN`, listed automatically; name earlier ones
    questions   each is answered on the page, folded below the same question, word for word; one
                says "write `NEW` in place of `OLD`" of a line of the script, and the test of its
                answer (`check_change` beside the table) makes that change

`--out DIR` says where the folder NN goes.  `--answers` prints the answers, too, and `--all-rows`
the rows that are folded.  `--no-introduction` leaves out guess, algorithm and derivation, which a
notebook has in its own cells.  Beside the picture the folder gets report.md (the run in Markdown),
tables.json, and trace.json if there is a trace.  It also gets lesson.json: the lesson is done.
"""

import json
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.markdown import Markdown
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table

import minipar
from minipar import __version__
from minipar.atomic_files import write_text
from minipar.comm import Communicator
from minipar.comm.collectives import gather_object
from minipar.commands.tables import plain
from minipar.environment import cores, minipar_command, reader_console
from minipar.launcher import UsageError
from minipar.school.exercises import entries
from minipar.school.notebook import show_in_notebook
from minipar.viz import write_perfetto
from support import kept_trace, page
from support.page import ROOT
from support.rows import ABOUT, AT_MOST, EQUAL, Row, as_markdown, number, ratio

__all__ = ["ABOUT", "AT_MOST", "EQUAL", "OUT", "Lesson", "Row", "number"]
PACKAGE = Path(minipar.__file__).parents[1]         # where minipar/ is
OUT = (ROOT if (ROOT / "setup.cfg").exists() else Path()) / "out"


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
        self.console = reader_console(110, quiet=comm.rank > 0, highlight=False)
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
        self.folder, self.started = self.options.out / number, time.monotonic()
        self.tables: list[dict[str, Any]] = []
        self.report: list[str] = []             # what is said and found, in Markdown
        if not self.options.no_introduction:
            self._introduce(page.sections(self.name))

    def _introduce(self, text: dict[str, str]) -> None:
        """Print what to guess, the algorithm, and the derivation."""
        if page.GUESS in text:
            self.console.print("[bold cyan]Guess first[/]")
            self._print(text[page.GUESS])
        found = page.shown(self.name)
        if found:
            self.console.print(f"[bold cyan]{page.ALGORITHM}[/]  {found.file}:{found.line}")
            self.console.print(Padding(Syntax(found.text, "python", theme="ansi_dark",
                                              background_color="default"), (0, 0, 1, 4)))
        if page.DERIVATION in text:
            self.console.print("[bold cyan]Where the formula comes from[/]")
            self._print(text[page.DERIVATION])

    def say(self, text: str) -> None:
        """Print a paragraph, in Markdown."""
        self.report.append(text)
        self._print(text)

    def _print(self, text: str) -> None:
        self.console.print(Markdown(text), "", sep="\n")

    def table(self, rows: Sequence[Row], title: str = "", found: str = "measured") -> None:
        """Print predicted beside measured.  Raises AssertionError for a row that breaks its rule.

        `found` is the head of the second column: "simulated" for times of a simulated cluster.
        """
        self._print_grid(*self._checked(rows, title, found))

    def counts(self, rows: Sequence[Row], title: str, found: str = "measured") -> None:
        """Check rows as `table` does, and print that they hold in one line.

        The rows themselves are folded in the report, and printed with `--all-rows`.
        """
        headers, lines = self._checked(rows, title, found)
        if not lines:                           # as on ranks that count nothing
            return
        text = f"{title}: {len(lines)} value{'s' * (len(lines) > 1)}, each as predicted"
        self.report.append(f"<details markdown>\n<summary>{text}</summary>\n\n"
                           f"{as_markdown(headers, lines)}\n\n</details>")
        shows_all = self.options.all_rows
        self.console.print(text + ("." if shows_all else " (--all-rows shows them)."), "", sep="\n",
                           markup=False)
        if shows_all:
            self.console.print(_grid(headers, lines), "")

    def _checked(self, rows: Sequence[Row], title: str, found: str) -> tuple[list, list]:
        """Headers and lines of a table whose rows hold; it is kept for tables.json."""
        for row in rows:
            assert row.holds(), (f"{row.what}: predicted {row.rule} {row.predicted!r}, {found} "
                                 f"{row.measured!r} {row.unit}")
        self.tables.append({
            "title": title, "columns": [{"name": name, "unit": ""} for name in (
                "quantity", "predicted", "rule", found, "unit")],
            "rows": [[row.what, plain(row.predicted), row.rule, plain(row.measured), row.unit]
                     for row in rows]})
        return ([title or "", "predicted", found, "ratio"],
                [(row.what, f"{row.rule} {number(row.predicted)} {row.unit}",
                  f"{number(row.measured)} {row.unit}", ratio(row)) for row in rows])

    def grid(self, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print any other table, with the first column left-aligned, the others right-aligned."""
        self.tables.append({"title": headers[0], "rows": [list(map(str, row)) for row in rows],
                            "columns": [{"name": name, "unit": ""} for name in headers]})
        self._print_grid(headers, rows)

    def _print_grid(self, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.report.append(as_markdown(headers, rows))
        self.console.print(_grid(headers, rows), "")

    def picture(self, draw: Callable[[Path], Any]) -> None:
        """Call draw(path) on rank 0 and print where the picture is."""
        self._write("Picture", draw, self.folder / "picture.png")
        self.report.append("![The picture that this lesson draws](picture.png)")

    def page(self, write: Callable[[Path], Any]) -> None:
        """Call write(path) on rank 0 and print where the page for the browser is."""
        self._write("Page", write, self.folder / "page.html")

    def _write(self, what: str, write: Callable[[Path], Any], path: Path) -> None:
        if self.comm.rank == 0:
            written = write(path)
            if what == "Picture":
                show_in_notebook(written)
        self.console.print(f"{what}: {path}\n", soft_wrap=True, markup=False)

    def takeaway(self, text: str) -> None:
        """Print the sentence to remember."""
        self.report.append(f"**Takeaway:** {text}")
        self.console.print(f"[bold green]Takeaway:[/] {text}\n")

    def exercises(self, *names: str, questions: Sequence[str] = ()) -> None:
        """Print the catalog's exercises of this lesson, others by name, and the questions."""
        self.console.print("[bold]Exercises[/]")
        number = int(self.name.partition("_")[0])
        own = [name for name, exercise in entries.load(PACKAGE).items()
               if exercise.lesson == number]
        for name in dict.fromkeys([*own, *names]):
            self._print_command("  • ", f"exercise start {name}")
        answers = page.answers_of(self.name) if self.options.answers else {}
        for question in questions:
            self.console.print(f"  • {question}", markup=False)
            if answers:
                self.console.print(Padding(Markdown(answers[question]), (1, 0, 1, 4)))
        if questions and not answers:
            self._print_command("The answers: ", f"lesson {self.folder.name} --answers", "dim")
        self._write_results()

    def _print_command(self, before: str, words: str, style: str = "") -> None:
        """Print `minipar WORDS`, in two lines of the shell where one is too long."""
        line = before + minipar_command(words)
        if len(line) > self.console.width:
            line = before + minipar_command(f"\\\n      {words}")
        self.console.print(line, style=style, markup=False, soft_wrap=True)

    def _write_results(self) -> None:
        """Write report, tables, trace and the mark that the lesson was run to its end."""
        trace = kept_trace.take()
        if self.comm.rank:
            return
        if kept_trace.num_events(trace):
            write_perfetto(self.folder / "trace.json", trace)
            self.console.print(f"\nTrace, for ui.perfetto.dev: {self.folder / 'trace.json'}",
                               soft_wrap=True, markup=False)
        seconds = round(time.monotonic() - self.started, 1)
        for name, content in (
                ("tables", {"command": f"lesson {self.folder.name}", "version": __version__,
                            "tables": self.tables}),
                ("lesson", {"lesson": self.name, "ranks": self.comm.size, "clock": self.clock,
                            "seconds": seconds})):
            text = json.dumps(content, indent=1, ensure_ascii=False)
            write_text(self.folder / f"{name}.json", text + "\n")
        write_text(self.folder / "report.md", "\n\n".join(self.report) + "\n")


def _grid(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(*headers[:1])
    for header in headers[1:]:
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(*map(str, row))
    return table


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


def _options(words: list[str], program: str) -> Namespace:
    class Parser(ArgumentParser):
        def error(self, message: str):
            raise UsageError(f"{message}: {' '.join(self.format_usage().split())}")

    parser = Parser(program, description="A lesson; runs on simulated ranks (--ranks N), or on "
                                         "real ranks under mpirun.")
    parser.add_argument("--out", type=_folder, default=OUT, help="where its folder NN goes")
    parser.add_argument("--answers", action="store_true", help="print the answers, too")
    parser.add_argument("--all-rows", action="store_true", help="print folded rows, too")
    parser.add_argument("--no-introduction", action="store_true",
                        help="without guess, algorithm and derivation")
    return parser.parse_args(words)


def _folder(word: str) -> Path:
    if Path(word).is_file():
        raise ArgumentTypeError(f"{word} is a file: name a folder, which may be new")
    return Path(word)
