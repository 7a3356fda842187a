"""Docstrings keep their drawings wherever they are shown: help(), a site of API pages.

All of these show `inspect.cleandoc` of a docstring, which takes away the indentation that all lines
after the first have in common.  Where that is the drawing's own, it becomes flowing text.
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from tests.repository.test_layering import ROOT, tree_of

LEVEL = 4       # spaces: what is indented so far, after cleaning, is shown as it stands


def docstrings(file: Path) -> Iterator[tuple[str, str, int]]:
    """Name, docstring and its place in the line, of a module, its classes and functions."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield getattr(node, "name", "the module"), text, node.body[0].col_offset


def loses_its_drawing(text: str, place: int) -> bool:
    """True if cleaning takes more indentation away than the docstring's own."""
    below = [line for line in text.split("\n")[1:] if line.strip()]
    drawn = [line for line in below if line.startswith(" " * (place + LEVEL))]
    cleaned = inspect.cleandoc(text).split("\n")[1:]
    return bool(drawn) and not any(line.startswith(" " * LEVEL) for line in cleaned)


def test_no_drawing_is_lost():
    lost = [f"{file.relative_to(ROOT)}: {name}" for file in (ROOT / "minipar").rglob("*.py")
            for name, text, place in docstrings(file) if loses_its_drawing(text, place)]
    lost += [f"{file.relative_to(ROOT)}" for file in (ROOT / "lessons").glob("*.py")
             if loses_its_drawing(ast.get_docstring(ast.parse(file.read_text()), False) or "", 0)]
    assert not lost, ("all that follows the first line is indented, so its indentation is lost: "
                      "add a line that is not to " + "; ".join(lost))


def test_a_lost_drawing_is_found():
    assert loses_its_drawing("Ring.\n\n    0 ─▶ 1\n", 0)
    assert not loses_its_drawing("Ring.\n\n    0 ─▶ 1\n\nPatarasuk & Yuan 2009.\n", 0)
    assert not loses_its_drawing("Ring.\n\nPatarasuk & Yuan 2009.\n", 0)
    assert not loses_its_drawing("Ring.", 0)
    assert loses_its_drawing("Ring.\n\n        0 ─▶ 1\n    ", 4)
    assert not loses_its_drawing("Ring.\n\n        0 ─▶ 1\n\n    So.\n    ", 4)
