"""The page of a lesson, docs/pages/lessons/NN.md: guess, derivation, answers; and its algorithm.

    # Lesson NN. Its question?
    ## Guess first                      what to write down before reading on
    ## Where the formula comes from     the derivation, in numbered steps
    ## Questions                        each with its answer, folded

The algorithm that is shown with it are the lines of the script between its imports and `main`.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]                    # of the source tree, or of what was installed
PAGES = ROOT / "docs" / "pages" / "lessons"
GUESS, DERIVATION = "Guess first", "Where the formula comes from"
ALGORITHM, QUESTIONS = "The algorithm", "Questions"


class Excerpt(NamedTuple):
    """Some lines of a file; `line`: the number of the first."""

    file: str
    line: int
    text: str


def sections(name: str) -> dict[str, str]:
    """The text below each heading of a lesson's page; {} if there is no page."""
    path = PAGES / f"{name.partition('_')[0]}.md"
    if not path.exists():
        return {}
    parts = re.split(r"^## (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {head.strip(): text.strip() for head, text in zip(parts[1::2], parts[2::2])}


def shown(name: str) -> Excerpt | None:
    """The algorithm of a lesson; None for a name that is no lesson's."""
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
    return Excerpt(f"lessons/{script.name}", start + blank + 1,
                   "\n".join(lines[blank:]).rstrip())


def answers_of(name: str) -> dict[str, str]:
    """The answers to the questions of a lesson, in Markdown, by question."""
    folded = re.findall(r"<summary>(.+?)</summary>(.+?)</details>",
                        sections(name).get(QUESTIONS, ""), re.DOTALL)
    return {" ".join(question.split()): answer.strip() for question, answer in folded}
