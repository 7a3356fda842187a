"""The grading program: one submission, or a folder of them.

    course = read_course(folder)                what `course build` wrote for the instructor
    grade_one(course, place, settings, out)     ─▶ out, as Gradescope reads it
    grade_each(course, folder, out, settings)   ─▶ out/NAME.json for each, summary.csv,
                                                   leaderboard.csv

It needs nothing but Python and NumPy, so it travels alone into a container.
"""

import csv
import io
import json
import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from ...toml_files import SchoolError
from ..checker.outcome import Outcome, by_task
from ..checker.ranks.frames import clean
from ..checker.runner import Worker
from ..checker.service import Limits
from .assignment import Assignment, load_assignment
from .grade import check_sandbox, grade
from .readers import is_litter
from .results import gradescope, leaderboard, write_whole
from .rules import Rules, days_late
from .submission import find_tasks, name_of, read_submission

COURSE = "course.json"


class Course(NamedTuple):
    """A course that was built: its assignment and rules, and the secret that draws its cases."""

    secret: str
    assignment: Assignment
    rules: Rules


class SubmissionRow(NamedTuple):
    """A submission in the summary: its outcomes, None if it could not be graded; what was wrong."""

    name: str
    outcomes: list[Outcome] | None
    problems: Sequence[str]
    days_late: int = 0


class Settings(NamedTuple):
    """Settings of grading: seconds of a case, seconds of a submission, the sandbox, days late."""

    seconds: float = 5.0
    budget: float = float("inf")
    sandbox: bool = True
    late: Mapping[str, int] = {}


def read_course(folder: Path) -> Course:
    """The course in a folder that `course build` has written, or in its instructor's folder."""
    for place in (folder / "instructor", folder):
        if (place / COURSE).is_file():
            try:
                saved = json.loads((place / COURSE).read_text(encoding="utf-8"))
                key, secret, tasks = str(saved["key"]), str(saved["secret"]), list(saved["tasks"])
                rules = Rules(**saved.get("rules", {}))
            except (ValueError, KeyError, TypeError):
                raise SchoolError(f"{place / COURSE} is not what `course build` wrote: build "
                                  "again, with the same --key") from None
            return Course(secret, load_assignment(place / "assignments", tasks, key), rules)
    raise SchoolError(f"there is no {COURSE} in {folder}, nor in its folder instructor: give the "
                      "folder that `course build --out` has written")


def grade_one(course: Course, place: Path, settings: Settings,
              out: Path | None = None) -> SubmissionRow:
    """Grade one submission, with a worker of its own."""
    with Worker(Limits(settings.seconds), settings.sandbox) as worker:
        check_sandbox(worker, allow_none=not settings.sandbox)
        return graded(course, place, settings, worker, out)


def graded(course: Course, place: Path, settings: Settings, worker: Worker,
           out: Path | None) -> SubmissionRow:
    """Grade a submission; write the results to `out` while cases run, so that none is lost.

    Raises SchoolError if it cannot be read.
    """
    tasks = course.assignment.tasks
    submission = find_tasks(read_submission(place, [task.name for task in tasks]), tasks)
    days = settings.late.get(place.name, settings.late.get(place.stem))
    submission = submission._replace(days_late=days_late(place) if days is None else days)
    outcomes: list[Outcome] = []

    def saved() -> list[Outcome]:
        """The outcomes with the points that they earn, now written to `out`."""
        found = course.rules.credited(outcomes)
        if out is not None:
            write_whole(out, json.dumps(gradescope(found, submission, course.rules), indent=1,
                                        ensure_ascii=False) + "\n")
        return found
    last, deadline = 0.0, time.monotonic() + settings.budget
    for outcome in grade(submission, course.assignment, course.secret, worker, deadline):
        outcomes.append(outcome)
        if time.monotonic() - last > 5:
            last = time.monotonic()
            saved()
    return SubmissionRow(submission.name, saved(), submission.problems, submission.days_late)


def submissions_in(folder: Path, out: Path) -> list[Path]:
    """The submissions of a folder: all in it, except litter and the folder of the results."""
    if not folder.is_dir():
        raise SchoolError(f"{folder} is no folder of submissions: with --each give one; unpack an "
                          "archive of all of them first")
    if os.path.realpath(folder) == os.path.realpath(out):
        raise SchoolError(f"--out {out} is the folder of the submissions: give another one")
    found = sorted(path for path in folder.iterdir() if not is_litter(path.name)
                   and os.path.realpath(path) != os.path.realpath(out))
    if not found:
        raise SchoolError(f"{folder} has no submissions: folders, archives or .py files")
    return found


def grade_each(course: Course, folder: Path, out: Path, settings: Settings,
               tell: Callable[[SubmissionRow], Any]) -> int:
    """Grade every submission of a folder, several at once; return how many were not graded.

    `tell(row)` is called after each.  Raises SchoolError if `settings.late` names no submission.
    """
    places, workers = submissions_in(folder, out), queue.Queue[Worker]()
    unknown = settings.late.keys() - {name for place in places for name in (place.name, place.stem)}
    if unknown:
        raise SchoolError(f"--late names {', '.join(sorted(unknown))}, and {folder} has no such "
                          "submission: write the names as they are there")
    rows: list[SubmissionRow] = []

    def one(place: Path) -> SubmissionRow:
        name, worker = name_of(place), workers.get()
        file = out / f"{place.name}.json"
        try:
            file.unlink(missing_ok=True)        # results of an earlier run do not stay
            if place.is_symlink():
                raise SchoolError(f"{clean(place)} is a link, which is not followed: put a copy "
                                  "of what it leads to into its place")
            row = graded(course, place, settings, worker, file)
            return row._replace(problems=[*row.problems, *lost_tasks(row.outcomes)])
        except SchoolError as error:
            return SubmissionRow(name, None, [str(error)])
        except Exception as error:      # a fault of grading must not cost the other submissions
            worker.stop()
            worker.start()
            return SubmissionRow(name, None, [f"grading failed ({type(error).__name__}: "
                                              f"{clean(error, 200)}): grade it by hand"])
        finally:
            workers.put(worker)

    num_workers = min(len(places), max(1, (os.cpu_count() or 1)))
    started = [Worker(Limits(settings.seconds), settings.sandbox) for _ in range(num_workers)]
    try:
        for worker in started:
            worker.start()
            check_sandbox(worker, allow_none=not settings.sandbox)
            workers.put(worker)
        with ThreadPoolExecutor(num_workers) as pool:
            for row in pool.map(one, places):
                rows.append(row)
                tell(row)
    finally:
        for worker in started:
            worker.stop()
    write_whole(out / "summary.csv", summary(course, rows))
    ranking = leaderboards(rows)
    if ranking:
        write_whole(out / "leaderboard.csv", as_csv([["measure", "place", "submission", "value"],
                                                     *ranking]))
    return sum(row.outcomes is None for row in rows)


def lost_tasks(outcomes: Sequence[Outcome]) -> list[str]:
    """For each task whose cases all fail in the same way, as for a SyntaxError: how they fail."""
    failures: dict[str, set[str]] = {}
    for outcome in outcomes:
        failure = outcome.failure
        failures.setdefault(outcome.task, set()).add(
            f"{failure.error}: {clean(failure.message, 200)}" if failure else "")
    return [f"{task}: {words}" for task, (words, *others) in failures.items()
            if words and not others and not words.startswith("Missing: ")]


def summary(course: Course, rows: Sequence[SubmissionRow]) -> str:
    """A table for a gradebook: a row for each submission, a column for each task."""
    tasks = [task.name for task in course.assignment.tasks]
    table: list[list[Any]] = [["submission", "points", *tasks, "days late", "problem"]]
    for row in rows:
        points = {task: earned for task, (earned, _) in by_task(row.outcomes or []).items()}
        table.append([as_cell(row.name), course.rules.score(sum(points.values()), row.days_late),
                      *(points.get(task, 0) for task in tasks), row.days_late,
                      as_cell("; ".join(row.problems))])
    return as_csv(table)


def leaderboards(rows: Sequence[SubmissionRow]) -> list[list[Any]]:
    """Rows (measure, place, submission, value), the best first; equal values share a place."""
    found = sorted((one["name"], one["value"], row.name) for row in rows
                   for one in leaderboard(row.outcomes or []))
    return [[name, 1 + sum(other == name and better < value for other, better, _ in found),
             as_cell(submission), value] for name, value, submission in found]


def as_csv(table: Sequence[Sequence[Any]]) -> str:
    """The rows as comma-separated values."""
    file = io.StringIO()
    csv.writer(file).writerows(table)
    return file.getvalue()


def as_cell(text: str) -> str:
    """A text such that no spreadsheet takes it for a formula: students choose names of files."""
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
