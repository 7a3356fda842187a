"""Find a function in its source file, and replace its body.

    def backward(ctx, g):            ┐ ┐ header: signature and docstring
        \"""dx = y (g - Σ g y).\"""    │ ┘
        (y,) = ctx.saved             │ ┐ body: a stub has the same number of lines,
        return [lambda: …]           ┘ ┘ so that every other line keeps its number
                                     block: header and body, without decorators

`stub` and `replace_block` change the text that the learner edits.  `patch_function` changes a
syntax tree for the tests: there too the rest of the file keeps its line numbers.
"""

import ast
import re
import textwrap
from typing import NamedTuple

from ..toml_files import SchoolError
from .entries import Exercise

Patches = dict[str, list[tuple[str, str]]]       # by file: (function, block)


class Rows(NamedTuple):
    """Where a function is: the indices of its header, its body and its end among the lines."""

    first: int
    body: int
    end: int


def parse_block(block: str) -> ast.FunctionDef:
    """The syntax tree of one function, indented or not.  Raises SyntaxError."""
    indented = block[:1].isspace()
    tree = ast.parse("if True:\n" + block if indented else block)
    return tree.body[0].body[0] if indented else tree.body[0]


def as_block(body: str) -> str:
    """A body from the catalog, as a function."""
    return "def _():\n" + textwrap.indent(body.strip("\n"), "    ")


def body_nodes(function: ast.FunctionDef) -> list[ast.stmt]:
    """The statements of a function, without its docstring."""
    return function.body[ast.get_docstring(function, clean=False) is not None:]


def same_body(a: ast.FunctionDef, b: ast.FunctionDef) -> bool:
    """True if two bodies are the same apart from comments and layout."""
    return [ast.dump(n) for n in body_nodes(a)] == [ast.dump(n) for n in body_nodes(b)]


def num_statements(function: ast.FunctionDef) -> int:
    """The number of statements of a body, nested ones included."""
    return sum(isinstance(n, ast.stmt) for node in body_nodes(function) for n in ast.walk(node))


def find_function(tree: ast.Module, function: str) -> ast.FunctionDef | None:
    """The definition of `Class.method`, `function` or `outer.inner`; None if there is none."""
    node = tree
    for name in function.split("."):
        node = next((n for n in getattr(node, "body", ())
                     if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name), None)
    return node if isinstance(node, ast.FunctionDef) else None


def patch_function(tree: ast.Module, function: str, block: str) -> None:
    """Give `function` the body of `block`, in place.  Raises LookupError if there is none."""
    target = find_function(tree, function)
    if target is None:
        raise LookupError(function)
    num_kept = len(target.body) - len(body_nodes(target))
    target.body[num_kept:] = body_nodes(parse_block(block))


def locate(text: str, function: str) -> Rows | None:
    """The place of `function`; None if it is missing, or if its body shares a line with its header.

    Raises SyntaxError.
    """
    node, lines = find_function(ast.parse(text), function), text.split("\n")
    if node is None or not body_nodes(node):
        return None
    first = body_nodes(node)[0]
    body = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", ()))]) - 1
    if lines[body][:first.col_offset].strip():
        return None                                     # the body is on the header's line
    while body > node.lineno and _is_comment(lines[body - 1]):
        body -= 1
    return Rows(node.lineno - 1, body, _end_with_comments(lines, node.end_lineno, node.col_offset))


def guess(text: str, function: str) -> Rows | None:
    """`locate` for a file that does not parse: by indentation alone, with a one-line header."""
    lines, row, indent = text.split("\n"), -1, -1
    for name in function.split("."):
        definition = re.compile(rf"\s*(?:def|class)\s+{name}\b")
        row = next((i for i in range(row + 1, len(lines))
                    if definition.match(lines[i]) and _indent(lines[i]) > indent), None)
        if row is None:
            return None
        indent = _indent(lines[row])
    end = row + 1
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > indent
                                or lines[end].strip().startswith(")")):
        end += 1
    while not lines[end - 1].strip():
        end -= 1
    return Rows(row, row + 1, end)


def block_at(text: str, rows: Rows) -> str:
    """The block at `rows`, unchanged."""
    return "\n".join(text.split("\n")[rows.first:rows.end])


def replace_block(text: str, rows: Rows, block: str) -> str:
    """`text` with `block` in place of the block at `rows`."""
    lines = text.split("\n")
    return "\n".join([*lines[:rows.first], block, *lines[rows.end:]])


def stub(text: str, rows: Rows, exercise: Exercise) -> str:
    """The block at `rows` with a body of as many lines that raises, and the task where it fits."""
    return _replace_body(text, rows, stub_body(exercise), exercise.task.strip())


def hidden_stub(text: str, rows: Rows, exercise: Exercise) -> str:
    """The stub of a function that the exercise hides."""
    return _replace_body(text, rows, hidden_body(exercise))


def stub_body(exercise: Exercise) -> str:
    """The one statement of a stub."""
    return f'raise NotImplementedError("write this: exercise {exercise.name}")'


def hidden_body(exercise: Exercise) -> str:
    """The one statement of a function that the exercise hides."""
    return f'raise NotImplementedError("hidden by exercise {exercise.name}, until you restore it")'


def _replace_body(text: str, rows: Rows, statement: str, task: str = "") -> str:
    """The block at `rows` with `statement` for its body, after comments that keep its length."""
    lines = text.split("\n")
    indent = " " * min(_indent(line) for line in lines[rows.body:rows.end]
                       if line.strip() and not line.strip().startswith("#"))
    missing = rows.end - rows.body - 1
    words = [line for paragraph in task.split("\n")
             for line in textwrap.wrap(paragraph, 95 - len(indent)) or [""]]
    comments = words if len(words) <= missing else []
    comments += [""] * (missing - len(comments))
    comments = [f"{indent}# {line}".rstrip() for line in comments]
    return "\n".join([*lines[rows.first:rows.body], *comments, indent + statement])


def parse_file(text: str, file: str) -> ast.Module:
    """The syntax tree of a file.  Raises SchoolError with the line that is not Python."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise SchoolError(f"{file}, line {error.lineno}: {error.msg}"
                          + (f": {line}" if line else "")) from None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_comment(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _end_with_comments(lines: list[str], end: int, indent: int) -> int:
    """`end`, moved past the comments that belong to the function: those indented deeper."""
    row = end
    while row < len(lines) and _is_comment(lines[row]):
        row += 1
        if lines[row - 1].strip() and _indent(lines[row - 1]) > indent:
            end = row
        elif lines[row - 1].strip():
            break
    return end
