"""Sentences of docstrings are short; drawings, tables and lists do not count."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.repository.test_layering import ROOT

LIMIT = 25
NOT_PROSE = re.compile(r"^ {4}|^[-*] |\S {3,}\S|[│▓░─▶◀]")
END = re.compile(r"(?<=[.!?])[)\"'`]*\s+|(?<=:)\s+(?=[^\W\d_a-z]|[`(\"])|\n\s*\n")
WORD = re.compile(r"`[^`]*`|[^\W\d_][\w'-]+")       # two letters or more: no symbols of formulas


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, its classes and functions, each with the number of its line."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def long_sentences(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """The sentences of more than LIMIT words, each with the number of its line."""
    prose = "\n".join("" if NOT_PROSE.search(line) else line for line in text.split("\n"))
    starts = [0, *(end.end() for end in END.finditer(prose)), len(prose)]
    for start, stop in zip(starts, starts[1:]):
        if len(WORD.findall(prose[start:stop])) > LIMIT:
            yield first + prose[:start].count("\n"), " ".join(prose[start:stop].split())


def test_sentences_are_short():
    found = [f"{file.relative_to(ROOT)}:{line}: {sentence}"
             for file in sorted((ROOT / "minipar").rglob("*.py"))
             for first, text in docstrings(file) for line, sentence in long_sentences(text, first)]
    assert not found, f"more than {LIMIT} words: make two sentences of each\n" + "\n".join(found)


def test_a_long_sentence_is_found():
    long = "This " + "very " * LIMIT + "end."
    assert [*long_sentences(f"Short.\n\n    {long}\n\nA. {long}\nShort.")] == [(5, long)]
    assert not [*long_sentences(f"{long[:60]}.  {long[60:]}")]
