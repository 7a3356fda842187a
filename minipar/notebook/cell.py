"""A cell's code, and the names that each rank has while the cell runs.

    names of the notebook     np, mp, batch …     the same objects on all ranks
    names of a rank           loss, model …       bound there by cells of `%%ranks`; they come first
    comm, rank, size                              new in every cell

A rank's names stay for the cells that follow, as those of an engine do under ipyparallel's `%%px`.
"""

import ast
import linecache
from collections.abc import Mapping
from types import CodeType
from typing import Any

from ..comm import Communicator

EVERY_CELL = ("comm", "rank", "size")


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
    """The names of one rank, in a dict that stays the same: functions of earlier cells look there.
    """

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
