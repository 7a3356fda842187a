"""The package for students: stubs, public cases, the checker, the handout, but no answers.

    handout.md, handout.html
    all_reduce.py, …    a stub for each task, with the task above it
    supplied/           solutions of tasks that these build on, and that were not chosen
    check.py            runs the public cases, from cases/TASK.npz
    checker/            the checker, as it grades
    AGENTS.md           for a student's coding agent: explain and ask, do not solve
    .github/…/check.yml a workflow that runs check.py on each push

Neither the solutions of the tasks nor the code that makes inputs and results are in the package.
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path

from ..checker.cases import ReadyCase, pack_cases
from ..grading.assignment import Assignment
from ..grading.grade import ready
from ..grading.rules import PLAIN, Rules
from ..grading.tasks import Task, seed_of
from .handout import FILES, as_html, handout

CHECKER = Path(__file__).parents[1] / "checker"
STUB = 'raise NotImplementedError("write this: {}")'


def student_files(assignment: Assignment, key: str, policy: str,
                  rules: Rules = PLAIN) -> Iterator[tuple[str, bytes]]:
    """(path, content) of every file of the package."""
    page = handout(assignment, policy, rules)
    yield "handout.md", page.encode()
    yield "handout.html", as_html(page, assignment.title).encode()
    for task in assignment.tasks:
        yield f"{task.name}.py", stub(task).encode()
        yield f"cases/{task.name}.npz", pack_cases(public_cases(task, key))
    for name, text in assignment.supplied.items():
        yield f"supplied/{name}.py", text.encode()
    for path in sorted(CHECKER.rglob("*.py")):
        yield f"checker/{path.relative_to(CHECKER)}", path.read_bytes()
    for name, place in (("check.py", "check.py"), ("check.yml", ".github/workflows/check.yml"),
                        ("gitignore", ".gitignore"), ("agents.md", "AGENTS.md"),
                        ("requirements.txt", "requirements.txt")):
        yield place, (FILES / name).read_bytes()


def stub(task: Task) -> str:
    """The file that a student begins with."""
    words = [line for paragraph in task.text.split("\n\n")
             for line in [*(paragraph.split("\n") if paragraph.startswith("    ") else
                            textwrap.wrap(" ".join(paragraph.split()), 92)), ""]]
    head = "\n".join([f'"""{task.title}', "", *words]).rstrip()
    return f'{head}\n"""\n\n{task.module(STUB.format(task.name))}'


def public_cases(task: Task, key: str) -> list[ReadyCase]:
    """The cases that students see."""
    return [ready(task, case, seed_of(key, "public", task.name, case.number))
            for case in task.cases if not case.is_hidden]
