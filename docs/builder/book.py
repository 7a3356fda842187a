"""The book: the source of docs/spine.txt in its order, with the docstrings as margin notes.

    # Part I: …                 a part; the text below it introduces it
    ## A model whose …          a chapter, a page
    minipar/nn/slab.py  Slab    a file, and the definitions of it to read; none: all of them
"""

import ast
import re
import textwrap
from typing import NamedTuple

from stage import ROOT, Stage

SECTION = "The book"
SPINE = ROOT / "docs" / "spine.txt"


class Chapter(NamedTuple):
    """A page of the book: its part, heading, introduction and entries (file, names)."""

    part: str
    title: str
    words: list[str]
    entries: list[tuple[str, list[str]]]


def chapters() -> list[Chapter]:
    """The chapters of all parts, without what is loaded only."""
    found: list[Chapter] = []
    part = ""
    for line in SPINE.read_text(encoding="utf-8").splitlines():
        if line.startswith(("# Called", "# Loaded")):
            break
        if line.startswith("# Part "):
            part = line[2:].partition(".")[0]
        elif line.startswith("## "):
            found.append(Chapter(part, line[3:], [], []))
        elif line.startswith("#") and found and not found[-1].entries:
            found[-1].words.append(line.strip("# "))
        elif line and not line.startswith("#"):
            file, _, names = line.partition(" ")
            found[-1].entries.append((file, re.findall(r"\w+", names)))
    return found


class Listing(NamedTuple):
    """Some lines of a file: what their docstring says, and the code without it."""

    note: str
    code: str
    line: int


def listings(file: str, names: list[str]) -> list[Listing]:
    """The head of a file, and the definitions that are read in it."""
    text = (ROOT / file).read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    first = next((node for node in tree.body if isinstance(
        node, ast.FunctionDef | ast.ClassDef)), None)
    end = len(lines) if first is None else start_of(first) - 1
    found = [] if names else [listing(tree, lines, 1, end)]
    found += [listing(node, lines, start_of(node), node.end_lineno or 0) for node in tree.body
              if isinstance(node, ast.FunctionDef | ast.ClassDef)
              and (not names or node.name in names)]
    return [one for one in found if one.code.strip()]


def start_of(node: ast.FunctionDef | ast.ClassDef) -> int:
    """The first line of a definition, its decorators included."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def listing(node: ast.Module | ast.FunctionDef | ast.ClassDef, lines: list[str], start: int,
            end: int) -> Listing:
    """Lines start … end without the docstring of the node itself."""
    note, hidden = ast.get_docstring(node) or "", range(0)
    if note:
        word = node.body[0]
        hidden = range(word.lineno, (word.end_lineno or 0) + 1)
    code = "\n".join(lines[i - 1] for i in range(start, end + 1) if i not in hidden)
    return Listing(note, code.strip("\n"), start)


def page(number: int, chapter: Chapter) -> str:
    """A chapter in Markdown."""
    parts = ["---", "hide: [toc]", "---", "", f"# {number}. {chapter.title}", "",
             f"*{chapter.part}*", "", " ".join(chapter.words), ""]
    for file, names in chapter.entries:
        parts += [f"## `{file}`", ""]
        for one in listings(file, names):
            note = textwrap.dedent(one.note)
            parts += ['<div class="listing" markdown>', '<div class="note" markdown>', "", note,
                      "", f'<span class="line">line {one.line}</span>', "", "</div>", "",
                      "```python", one.code, "```", "", "</div>", ""]
    return "\n".join(parts)


def add(stage: Stage) -> None:
    """Add the book, a page for each chapter."""
    found = chapters()
    lines = ["# The book", "", "The source of minipar in the order in which it explains itself. "
             "What the docstrings say stands beside the code. A test runs a program for each part: "
             "what it executes is what you read here.", ""]
    stage.sections[SECTION] = [{"Contents": "book/index.md"}]
    part = ""
    for number, chapter in enumerate(found, 1):
        if chapter.part != part:
            part = chapter.part
            lines += ["", f"**{part}**", ""]
        path = f"book/{number:02d}.md"
        stage.add(SECTION, f"{number}. {chapter.title}", path, page(number, chapter))
        lines.append(f"{number}. [{chapter.title}]({number:02d}.md)")
    stage.write("book/index.md", "\n".join(lines) + "\n")
