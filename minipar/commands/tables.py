"""The output of a command: text and tables for people, or with --json the tables alone.

    output.text("…")        ─▶ terminal
    output.file(path, f, x) ─▶ f(path, x) writes a file, and the terminal says so
    output.table(table)     ─▶ terminal, or one of "tables" in
                               {"command": "schedule", "version": "0.3.0", "tables": [
                                {"title": "…", "columns": [{"name": "bytes", "unit": "B"}],
                                 "rows": [[4096]]}]}

Both forms come from the same Table.  With --json nothing else is written to stdout.
"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import HEAVY_HEAD, Box
from rich.markup import escape
from rich.table import Table as RichTable

from .. import __version__
from ..environment import launched, reader_console

WIDTH = 118             # of tables that go into a file, which has room for whole rows


class Shown(NamedTuple):
    """A cell that people see as `text`, perhaps in a style, and scripts as `value`."""

    value: Any
    text: str
    style: str = ""


class Column(NamedTuple):
    """The head of a column; `unit` is the unit of its values in JSON."""

    name: str
    unit: str = ""
    is_text: bool = False           # aligned to the left


@dataclass
class Table:
    """A table: the first column is text, the others are numbers unless they say otherwise.

    A cell is a text, a number, a Shown, or None if it is empty.
    """

    title: str
    columns: list[Column]
    rows: list[list[Any]] = field(default_factory=list)
    sections: list[int] = field(default_factory=list)       # numbers of rows with a line below

    @classmethod
    def of(cls, title: str, *columns: str | Column) -> "Table":
        """An empty table; a column may be given by its name alone."""
        return cls(title, [column if isinstance(column, Column) else Column(column, is_text=i == 0)
                           for i, column in enumerate(columns)])

    def add(self, *cells: Any) -> None:
        """Append a row."""
        self.rows.append(list(cells))

    def as_json(self) -> dict[str, Any]:
        """The table in the schema of --json."""
        return {"title": self.title,
                "columns": [{"name": column.name, "unit": column.unit} for column in self.columns],
                "rows": [[plain(cell) for cell in row] for row in self.rows]}

    def as_rich(self, box: Box | None = HEAVY_HEAD) -> RichTable:
        """The table as rich prints it."""
        made = RichTable(title=escape(self.title) or None, title_justify="left", box=box,
                         title_style="bold")
        for column in self.columns:
            made.add_column(escape(column.name), justify="left" if column.is_text else "right",
                            overflow="fold")
        for i, row in enumerate(self.rows):
            made.add_row(*map(styled, row), end_section=i in self.sections)
        return made


def plain(cell: Any) -> Any:
    """A cell as JSON has it; a number that is not finite is null."""
    if isinstance(cell, Shown):
        cell = cell.value
    if isinstance(cell, list | tuple):
        return [plain(part) for part in cell]
    if hasattr(cell, "item"):           # a NumPy number
        cell = cell.item()
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def styled(cell: Any) -> str:
    """A cell as people see it, in rich's markup."""
    if isinstance(cell, Shown):
        text = escape(cell.text)
        return f"[{cell.style}]{text}[/]" if cell.style else text
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return escape(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.4g}"


class Output:
    """The stdout of a command.  Other ranks than rank 0 print nothing.

    With --json `console` is quiet, and `end` prints the tables.
    """

    def __init__(self, command: str, as_json: bool = False):
        world = launched()
        self.command, self.as_json = command, as_json
        self.is_first = not world or world.rank == 0
        self.console = reader_console(WIDTH, soft_wrap=True, highlight=False,
                                      quiet=as_json or not self.is_first)
        self.tables: list[Table] = []
        self.has_document = False

    def text(self, *lines: str) -> None:
        """Print lines as they are, unless --json is given."""
        for line in lines:
            self.console.print(line, markup=False)

    def table(self, table: Table, box: Box | None = HEAVY_HEAD, show: bool = True) -> None:
        """Print a table; with `show` False only --json prints it, as text has said the same."""
        self.tables.append(table)
        if show:
            self.console.print(table.as_rich(box), soft_wrap=False)

    def file(self, path: Path | None, write: Callable[..., Any], *content: Any) -> None:
        """Write a file by write(path, *content), unless the path is None; say where it is.

        Raises UsageError for a path or a kind of file that cannot be written.
        """
        from ..launcher import errors_as_usage  # not above: exercises work without the library
        if path is not None and self.is_first:
            with errors_as_usage():
                write(path, *content)
            self.text(f"wrote {path}")

    def document(self, text: str) -> None:
        """Print a document such as JSON or CSV, also with --json, instead of the tables."""
        self.has_document = True
        if self.is_first:
            print(text, flush=True)

    def end(self) -> None:
        """Print the tables as JSON, if --json is given and no document was printed."""
        if self.as_json and self.is_first and not self.has_document:
            json.dump({"command": self.command, "version": __version__,
                       "tables": [table.as_json() for table in self.tables]}, sys.stdout, indent=1,
                      ensure_ascii=False, allow_nan=False)
            print(flush=True)
