"""The page of a lesson, docs/pages/lessons/NN.md: guess, derivation, answers; and its algorithm.

    # Lesson NN. Its question?
    ## Guess first                      what to write down before reading on
    ## Where the formula comes from     the derivation, in numbered steps
    ## Questions                        each with its answer, folded

The algorithm that is shown with it are the lines of the script between its imports and `main`.

A lesson of the older form has no algorithm in its script.  After the guess its page has a section
"The source", whose line names a file, a function, and the first words of the first and the last
line to show:

    `minipar/comm/collectives/reduce_scatter.py`, `ring`, from `p, r =` to `combine(`

So the lines are always those that run; if the words are gone, the lesson says so, and a test fails.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import minipar

ROOT = Path(__file__).parents[2]                    # of the source tree, or of what was installed
PACKAGE = Path(minipar.__file__).parents[1]         # where minipar/ is
PAGES = ROOT / "docs" / "pages" / "lessons"
GUESS, SOURCE, DERIVATION = "Guess first", "The source", "Where the formula comes from"
ALGORITHM, QUESTIONS = "The algorithm", "Questions"
MOST_LINES = 14
EXCERPT = re.compile(r"`(?P<file>[^`]+)`, `(?P<function>[^`]+)`, from `(?P<first>[^`]+)` to "
                     r"`(?P<last>[^`]+)`")


class Excerpt(NamedTuple):
    """Some lines of a function, or of several ("" as its name); `line`: the number of the first."""

    file: str
    function: str
    line: int
    text: str


def sections(name: str) -> dict[str, str]:
    """The text below each heading of a lesson's page; {} if there is no page."""
    path = PAGES / f"{name.partition('_')[0]}.md"
    if not path.exists():
        return {}
    parts = re.split(r"^## (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {head.strip(): text.strip() for head, text in zip(parts[1::2], parts[2::2])}


def has_algorithm(name: str) -> bool:
    """True if a lesson's script contains its algorithm; False in the older form."""
    return SOURCE not in sections(name)


def source_title(name: str) -> str:
    """The heading above what `shown` returns."""
    return ALGORITHM if has_algorithm(name) else SOURCE


def shown(name: str) -> Excerpt | None:
    """The lines that a lesson is about: its algorithm, or what "The source" of its page names.

    None for a name that is no lesson's.
    """
    if not has_algorithm(name):
        return excerpt(sections(name)[SOURCE])
    path = ROOT / "lessons" / f"{name}.py"
    return algorithm(path) if path.exists() else None


def algorithm(script: Path) -> Excerpt:
    """The lines of a script between its imports and `main`."""
    text = script.read_text(encoding="utf-8")
    body = ast.parse(text).body
    start = max(node.end_lineno or 0 for node in body if isinstance(
        node, ast.Import | ast.ImportFrom))
    end = next(node.lineno for node in body if getattr(node, "name", "") == "main") - 1
    lines = text.splitlines()[start:end]
    blank = next(i for i, line in enumerate(lines) if line.strip())
    return Excerpt(f"lessons/{script.name}", "", start + blank + 1,
                   "\n".join(lines[blank:]).rstrip())


def excerpt(line: str) -> Excerpt:
    """The lines that a line below "The source" names.

    Raises ValueError if it does not name them in this form, or if the source has no such lines.
    """
    named = EXCERPT.search(" ".join(line.split()))
    if named is None:
        raise ValueError("below `## The source` stands: `FILE`, `FUNCTION`, from `first words` to "
                         f"`last words`, not {line!r}")
    file, function = named["file"], named["function"]
    text = (PACKAGE / file).read_text(encoding="utf-8")
    node: ast.AST | None = ast.parse(text)
    for part in function.split("."):
        node = next((inner for inner in getattr(node, "body", ())
                     if getattr(inner, "name", None) == part), None)
    if node is None:
        raise ValueError(f"{file} has no {function}")
    lines = text.splitlines()
    inside = range(node.lineno - 1, node.end_lineno)            # type: ignore[attr-defined]
    first = next((i for i in inside if lines[i].strip().startswith(named["first"])), None)
    last = None if first is None else next(
        (i for i in inside if i >= first and lines[i].strip().startswith(named["last"])), None)
    if first is None or last is None:
        raise ValueError(f"{function} of {file} has no line that begins with "
                         f"{named['first' if first is None else 'last']!r}")
    shown = lines[first:last + 1]
    indent = min(len(one) - len(one.lstrip()) for one in shown if one.strip())
    return Excerpt(file, function, first + 1, "\n".join(one[indent:] for one in shown))


def answers_of(name: str) -> dict[str, str]:
    """The answers to the questions of a lesson, in Markdown, by question."""
    folded = re.findall(r"<summary>(.+?)</summary>(.+?)</details>",
                        sections(name).get(QUESTIONS, ""), re.DOTALL)
    return {" ".join(question.split()): answer.strip() for question, answer in folded}
