"""The guide for teaching assistants: the commonest wrong answers of each task, and what to say.

They are the first mutants of the task.  Each is run here with the course's draw, so the guide shows
what the checker tells the student who made this mistake.
"""

import os

from ..checker.runner import Worker
from ..checker.service import Limits
from ..grading.assignment import Assignment
from ..grading.proof import try_version
from ..grading.tasks import MIN_MUTANTS, Task
from .handout import text_of


def guide(assignment: Assignment) -> str:
    """The guide in Markdown."""
    with Worker(Limits(seconds=5.0)) as worker:
        tasks = [on_task(task, assignment, worker) for task in assignment.tasks]
    return "\n".join([text_of("guide.md").format(title=assignment.title), *tasks])


def on_task(task: Task, assignment: Assignment, worker: Worker) -> str:
    """The mistakes in a task."""
    files = assignment.supplied | assignment.solutions_below(task)
    lines = [f"## `{task.name}`: {task.title}\n"]
    for name, wrong in list(task.mutants.items())[:MIN_MUTANTS]:
        failure = ""
        if hasattr(os, "fork"):                             # Windows starts no ranks
            failure = try_version(task, name, wrong.body, worker, files).failure
        lines.append(f"**{wrong.why[0].upper()}{wrong.why[1:]}**\n")
        lines += [f"* Say: {wrong.say}"] if wrong.say else []
        lines += [f"* It shows as: `{failure.splitlines()[0]}`"] if failure else []
        lines.append("")
    return "\n".join(lines)
