"""`minipar lessons`: the lessons as one path; what each asks, and how far you are."""

from collections import Counter

from ...environment import minipar_command
from ...school.course.lessons import default_out, has_run, lessons
from ...school.course.milestones.goal import milestones, reached
from ...school.exercises.workspace import Workspace
from ...school.toml_files import SchoolError
from ...train.option import CommandOptions
from ..tables import Column, Output, Table
from .exercise import ROOT


def main(options: CommandOptions, output: Output) -> None:
    """List the lessons, and the milestones.  Raises SchoolError."""
    known = lessons()
    all_of, passed = exercises_by_lesson()
    table = Table.of("lessons", "", Column("the question", is_text=True), "exercises",
                     Column("", is_text=True))
    done = [has_run(lesson, default_out()) for lesson in known]
    for lesson, ran in zip(known, done):
        count = f"{passed[lesson.number]} of {all_of[lesson.number]}" \
            if all_of[lesson.number] else "–"
        table.add(f"{lesson.number:02}", lesson.question, count, "run" if ran else "")
    output.table(table)
    state = reached(ROOT)
    goals = Table.of("milestones", "milestone", Column("your own functions train", is_text=True),
                     Column("", is_text=True))
    for name, milestone in milestones().items():
        goals.add(name, milestone.title, "reached" if state[name] else "")
    output.table(goals)
    following = next((lesson for lesson, ran in zip(known, done) if not ran), None)
    if following is not None:
        output.text(f"{sum(done)} of {len(known)} run.  To go on: "
                    + minipar_command(f"lesson {following.number:02}"))


def exercises_by_lesson() -> tuple[Counter[int], Counter[int]]:
    """(number of exercises, number of passed ones) by lesson; empty without a source tree."""
    all_of: Counter[int] = Counter()
    passed: Counter[int] = Counter()
    try:
        workspace = Workspace(ROOT)
    except SchoolError:             # installed by pip: exercises need a source tree
        return all_of, passed
    for exercise in workspace.exercises.values():
        all_of[exercise.lesson] += 1
        passed[exercise.lesson] += workspace.state(exercise) == "passed"
    return all_of, passed
