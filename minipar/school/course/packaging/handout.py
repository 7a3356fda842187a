"""The handout of an assignment: one page in Markdown, and the same in HTML."""

import html
import re
from importlib.resources import files

from markdown_it import MarkdownIt

from ..grading.assignment import Assignment
from ..grading.rules import PLAIN, Rules
from ..grading.tasks import Task
from .selection import merged

FILES = files(__package__) / "files"


def handout(assignment: Assignment, policy: str, rules: Rules = PLAIN) -> str:
    """The handout in Markdown, with the texts that concern the tasks of the assignment."""
    tasks, texts = assignment.tasks, merged(assignment)
    hours = max(0.5, round(2 * sum(part.share * part.meta["hours"]
                                   for part in assignment.parts)) / 2)
    asked = sum(map(int, re.findall(r"^\d+\. \((\d+) ", texts.get("Questions", ""), re.M)))
    points = f"{assignment.points} points for the functions below" + (
        f", {asked} for the questions: {assignment.points + asked} in all" if asked else "")
    rows = [f"| `{task.name}` | {task.title} | {task.points} | {task.minutes} |" for task in tasks]
    longest = max((task.name for task in tasks), key=len)
    parts = [f"# {assignment.title}",
             *filter(None, [" ".join(part.meta["summary"] for part in assignment.parts
                                     if part.share == 1)]),
             f"About {hours:g} hour{'s' * (hours != 1)}. {points}.",
             "\n".join(["| file | task | points | minutes |", "| --- | --- | ---: | ---: |",
                        *rows])]
    if assignment.supplied:
        first = next(iter(assignment.supplied))
        parts.append("What these tasks build on comes with them, in `supplied/`; import it "
                     f"by name, as in `from {first} import {first}`: " +
                     ", ".join(f"`{name}`" for name in assignment.supplied) + ".")
    if any(map(assignment.solutions_below, tasks)):
        parts.append("A task that builds on another one of these is graded with your function; if "
                     "a case fails, also with the solution. So a mistake costs the points of one "
                     "task.")
    questions = texts.pop("Questions", "")
    parts += [f"## {head}\n\n{text}" for head, text in texts.items()]
    parts += ["## Tasks", *map(task_text, tasks)]
    parts += [f"## Questions\n\n{questions}"] if questions else []
    check = text_of("check.md").format(task=longest)
    return "\n\n".join([*parts, check.strip(), *rules.sentences(), policy.strip()]) + "\n"


def task_text(task: Task) -> str:
    """A task in the handout."""
    cases = ", ".join(f"{case} ({case.points})" for case in task.cases if not case.is_hidden)
    hidden = sum(case.points for case in task.cases if case.is_hidden)
    return (f"### {task.title}\n\n`{task.name}.py`, {task.points} points, about {task.minutes} "
            f"minutes\n\n```python\ndef {task.signature}:\n```\n\n{task.text}\n\n"
            f"Public cases (points): {cases}. Hidden cases: {hidden} points.")


def as_html(text: str, title: str) -> str:
    """A page in HTML from Markdown."""
    return html_page(title, "handout.css", as_markup(text))


def as_markup(text: str) -> str:
    """Markdown as HTML, without a page around it."""
    return MarkdownIt("commonmark").enable("table").render(text)


def html_page(title: str, style: str, body: str) -> str:
    """A page that is complete in itself: no script, no foreign address."""
    return (f'<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(title)}</title>\n<style>{text_of(style)}</style>\n{body}"
            "</html>\n")


def text_of(name: str) -> str:
    """The text of a file in files/."""
    return (FILES / name).read_text(encoding="utf-8")
