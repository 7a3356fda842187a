"""A cell's code, and the names that each rank has while the cell runs.

    names of the notebook     np, mp, batch …     the same objects on all ranks
    names of a rank           loss, model …       bound there by cells of `%%ranks`; they come first
    comm, rank, size                              new in every cell

A rank's names stay for the cells that follow, as an engine's do under ipyparallel's `%%px`.  Each
line that a rank prints begins with its number, as `[2] loss 3.14`.
"""

import ast
import linecache
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from io import TextIOBase
from types import CodeType
from typing import Any, TextIO

from ...comm import Communicator

EVERY_CELL = ("comm", "rank", "size")
# The rank whose code runs; each rank of the simulated cluster has a context of its own.
current_rank: ContextVar[int | None] = ContextVar("current_rank", default=None)


class Cell:
    """Compiled code; `last` is the expression whose value the cell shows, if it ends with one.

    `name` stands for the file in reports.  Raises SyntaxError.
    """

    def __init__(self, text: str, name: str):
        tree = ast.parse(text, name)
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        self.last: CodeType | None = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";"):
            value = tree.body.pop()
            assert isinstance(value, ast.Expr)
            self.last = compile(ast.Expression(value.value), name, "eval")
        self.body = compile(tree, name, "exec")

    def run(self, names: dict[str, Any]) -> Any:
        """Run the code; return the value of its last expression, or None."""
        exec(self.body, names)
        return None if self.last is None else eval(self.last, names)


class RankNames:
    """The names of one rank, in one dict for all cells: functions of earlier cells look there."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}          # what a cell began with
        self.own: set[str] = set()              # names that cells bound on this rank

    def begin(self, notebook: Mapping[str, Any], comm: Communicator) -> None:
        """Take the notebook's names, but for those that this rank has bound itself."""
        self.names.update((name, value) for name, value in notebook.items() if name not in self.own)
        self.names.update(comm=comm, rank=comm.rank, size=comm.size, __name__="__main__")
        self.seen = dict(self.names)

    def end(self) -> dict[str, Any]:
        """Note which names the cell has bound; return all that cells bound on this rank."""
        missing = object()
        bound = {name for name, value in self.names.items()
                 if value is not self.seen.get(name, missing)}
        self.own |= bound.difference(EVERY_CELL, ("__builtins__",))
        self.own &= self.names.keys()           # without what was deleted
        self.seen = {}
        return {name: self.names[name] for name in self.own}


class RankLines(TextIOBase):
    """A stream that passes on the lines of each rank when they are whole, with the rank's number.

    Text that no rank prints goes through as it is.
    """

    encoding = "utf-8"

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.parts: dict[int, str] = defaultdict(str)       # by rank: a line not yet complete

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Write the lines that are complete now, and keep the rest."""
        rank = current_rank.get()
        if rank is None:
            return self.stream.write(text)
        *lines, self.parts[rank] = (self.parts[rank] + text).split("\n")
        for line in lines:
            self.stream.write(f"[{rank}] {line}\n")
        return len(text)

    def flush(self) -> None:
        """Flush the stream; lines that are not complete wait."""
        self.stream.flush()

    def finish(self) -> None:
        """Write the lines that were not completed."""
        for rank in sorted(self.parts):
            if self.parts[rank]:
                self.stream.write(f"[{rank}] {self.parts[rank]}\n")
        self.parts.clear()


@contextmanager
def numbered_lines() -> Iterator[None]:
    """Context in which each line that a rank prints begins with its number."""
    out, errors = RankLines(sys.stdout), RankLines(sys.stderr)
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            yield
    finally:
        out.finish()
        errors.finish()
