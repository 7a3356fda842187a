"""The parts of an assignment's texts that belong to the chosen tasks.

In handout.md a line names the tasks of the lines below it, up to the next such line or heading:

    <!-- for: matmul_backward cross_entropy_backward -->        kept if one of them was chosen
    <!-- with: all_reduce reduce_scatter -->                    kept if all of them were
    <!-- for: any -->                                           kept, as are the lines at the top

The rubric has an answer for each question, by number, and mistakes that name their task.
"""

import re
from collections.abc import Collection
from itertools import count

from ..grading.assignment import Assignment, AssignmentPart

HEAD = re.compile(r"^## (.+)$", re.MULTILINE)
TAG = re.compile(r"<!-- (for|with): (.+) -->")
MISTAKE = re.compile(r"^\* `(\w+)`")


def selected(text: str, names: Collection[str]) -> str:
    """The lines of a text that are on the tasks with these names."""
    lines, is_kept = [], True
    for line in text.split("\n"):
        tag = TAG.fullmatch(line)
        if tag is not None:
            words = tag[2].split()
            is_kept = words == ["any"] or (any if tag[1] == "for" else all)(
                word in names for word in words)
        elif is_kept or line.startswith("## "):
            is_kept = True
            lines.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def sections(text: str) -> dict[str, str]:
    """The sections of a text by their heads of level 2; what stands above them is under ""."""
    above, *rest = HEAD.split(text)
    return {"": above.strip(), **{head: body.strip() for head, body in zip(rest[::2], rest[1::2])}}


def names_in(part: AssignmentPart) -> set[str]:
    """The names of a part's tasks."""
    return {task.name for task in part.tasks}


def questions_of(part: AssignmentPart) -> tuple[str, dict[str, str]]:
    """(what stands above the questions on a part's tasks, those questions by number)."""
    body = sections(selected(part.handout, names_in(part))).get("Questions", "")
    above, *items = re.split(r"\n(?=\d+\. \()", f"\n{body}")
    split = [item.partition(". ") for item in items]
    return above.strip(), {number: text.strip() for number, _, text in split}


def merged(assignment: Assignment) -> dict[str, str]:
    """The sections of the handout by head, each once, with what its parts say on their tasks.

    The questions are numbered as one list; there is no such section if none is on these tasks.
    """
    found: dict[str, list[str]] = {}
    questions: list[str] = []
    for part in assignment.parts:
        texts = sections(selected(part.handout, names_in(part)))
        above, asked = questions_of(part)
        questions += asked.values()
        for head, body in {**texts, "Questions": above if asked else ""}.items():
            if body and body not in found.setdefault(head, []):
                found[head].append(body)
    listed = [f"{number}. {text}" for number, text in enumerate(questions, 1)]
    merged = {head: "\n\n".join(bodies) for head, bodies in found.items() if bodies}
    return {**merged, "Questions": "\n".join([merged["Questions"] + "\n", *listed])} if listed \
        else merged


def merged_rubric(assignment: Assignment) -> str:
    """The rubric for the questions that `merged` asks, by the same numbers, and for the tasks."""
    numbers, rubrics = count(1), []
    for part in assignment.parts:
        _, asked = questions_of(part)
        points = sum(map(points_of, asked.values()))
        for head, body in sections(part.rubric).items():
            number, _, title = head.partition(". ")
            if not head:
                name, _, rule = body.partition("\n\n")
                rubrics += [name, re.sub(r"\d+ points for", f"{points} points for", rule)] \
                    if asked else [name]
            elif number in asked:
                rubrics.append(f"## {next(numbers)}. {title}\n\n{body}")
            elif not number.isdigit():
                rubrics.append(f"## {head}\n\n{on_tasks(body, names_in(part))}")
    return "\n\n".join(rubrics) + "\n"


def points_of(question: str) -> int:
    """The points that a question begins with: "(4 points) …"."""
    return int(question[1:].partition(" ")[0])


def on_tasks(text: str, names: Collection[str]) -> str:
    """The text without the paragraphs on mistakes in tasks other than `names`."""
    return "\n\n".join(paragraph for paragraph in text.split("\n\n")
                       if not (task := MISTAKE.match(paragraph)) or task[1] in names)
