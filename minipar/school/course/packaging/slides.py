"""Slides of a lesson: one file of HTML that prints, a section for each slide.

    head            the question, the idea, the drawing and the formula
    page            what to guess, the derivation in steps, the questions without answers
    script          the algorithm
    a run           the picture, and the sentence to remember

A lesson that has not run yet is run first, on four simulated ranks.
"""

import ast
import base64
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ....atomic_files import write_text
from ...toml_files import SchoolError
from ..lessons import Lesson, has_run, lessons_folder
from .handout import as_markup, html_page

MOST_LINES, MOST_CODE, RANKS = 15, 22, "4"      # of text and of code on a slide


def write_slides(lesson: Lesson, out: Path, runs: Path) -> Path:
    """Write the slides of a lesson into `out`; lessons write their runs into `runs`.

    Raises SchoolError if the lesson does not run.
    """
    number = f"{lesson.number:02}"
    if not has_run(lesson, runs):
        run = subprocess.run([sys.executable, str(lesson.script), "--ranks", RANKS, "--out",
                              str(runs)], capture_output=True, text=True)
        if run.returncode:
            raise SchoolError(f"lesson {number} does not run: minipar lesson {number} shows why")
    body = "\n".join(f"<section>{as_markup(text)}<footer>minipar {number} · {i}</footer></section>"
                     for i, text in enumerate(slides_of(lesson, runs / number), 1))
    return write_text(out / f"{lesson.script.stem}.html",
                      html_page(f"{number} {lesson.title}", "slides.css", body))


def slides_of(lesson: Lesson, run: Path) -> Iterator[str]:
    """The slides in Markdown."""
    page = page_module()
    words, shown = page.sections(lesson.script.stem), page.shown(lesson.script.stem)
    head = ast.get_docstring(ast.parse(lesson.script.read_text(encoding="utf-8"))) or ""
    _, *idea = re.split(r"\n\n+", head)
    idea = [re.sub(r"\s*The library's:\s.+", "", part, flags=re.S) for part in idea
            if "python lessons/" not in part]
    yield f"# {lesson.question}"
    yield from paged("The idea", idea)
    if page.GUESS in words:
        yield from paged(page.GUESS, [words[page.GUESS]])
    code = re.sub(r"\n{3,}", "\n\n", shown.text).split("\n") if shown else []
    for part in pages_of_code(code):
        yield f"## {page.ALGORITHM}\n\n```python\n{part}\n```"
    if page.DERIVATION in words:
        yield from paged(page.DERIVATION, re.split(r"\n(?=\d+\. |\n)", words[page.DERIVATION]))
    picture = base64.b64encode((run / "picture.png").read_bytes()).decode()
    yield (f"## What a run shows\n\n![The picture of lesson {lesson.number}]"
           f"(data:image/png;base64,{picture})")
    report = (run / "report.md").read_text(encoding="utf-8")
    takeaway = re.findall(r"^\*\*Takeaway:\*\* (.+?)(?=\n\n|\Z)", report, re.M | re.S)
    yield from paged("To remember", takeaway)
    yield from paged(page.QUESTIONS, [f"* {question}" for question in page.answers_of(
        lesson.script.stem)])


def paged(title: str, parts: list[str]) -> Iterator[str]:
    """Parts of a text on as many slides as they need: a part is never cut."""
    now: list[str] = []
    for part in [part for part in parts if part.strip()]:
        if now and sum(map(lines_of, [*now, part])) > MOST_LINES:
            yield "\n\n".join([f"## {title}", *now])
            now = []
        now.append(part)
    if now:
        yield "\n\n".join([f"## {title}", *now])


def lines_of(part: str) -> float:
    """About how many lines a part takes on a slide."""
    lines = part.split("\n")
    if "    " in part[:4]:
        return 0.75 * len(lines) + 1
    return len(textwrap.wrap(" ".join(lines), 84)) + 0.6


def pages_of_code(lines: list[str]) -> Iterator[str]:
    """Code on slides, cut at an empty line where there is one."""
    while len(lines) > MOST_CODE:
        cut = next((i for i in range(MOST_CODE, MOST_CODE // 2, -1) if not lines[i].strip()),
                   MOST_CODE)
        yield "\n".join(lines[:cut]).strip("\n")
        lines = lines[cut:]
        while lines and not lines[0].strip():
            lines = lines[1:]
    if any(lines):
        yield "\n".join(lines)


def page_module() -> ModuleType:
    """The module that reads a lesson's page; it is beside the lessons, not in the package."""
    folder = str(lessons_folder())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return import_module("support.page")
