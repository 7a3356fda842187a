"""Build an assignment: a package for students, and what the instructor needs.

    DIR/README.md               the purpose of each file, and the commands to run
    DIR/student/                the package, and a template repository; DIR/student.zip
    DIR/instructor/             private: key and secret, tasks with solutions, rubric, guide
                    gradescope.zip, autolab/autograde.tar, autolab/autograde-Makefile
"""

import io
import json
import os
import secrets
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...toml_files import MIN_MUTANTS, SchoolError
from ..checker.runner import Worker
from ..checker.service import Limits
from ..grading.assignment import Assignment, load_assignment, names_in
from ..grading.program import COURSE
from ..grading.proof import try_version
from ..grading.rules import PLAIN, Rules
from ..grading.tasks import ASSIGNMENTS, Task
from .handout import FILES, as_html, text_of
from .selection import merged_rubric
from .student import student_files

SCHOOL = Path(__file__).parents[2]
TIME = (2026, 1, 1, 0, 0, 0)            # of files in archives: one key gives students equal bytes
EXECUTABLE = ("setup.sh", "run_autograder")
Files = Iterable[tuple[str, bytes]]


def build(wanted: list[str], key: str, out: Path, folder: Path = ASSIGNMENTS,
          rules: Rules = PLAIN) -> Assignment:
    """Build the assignment with these tasks into `out`, a new folder.  Raises SchoolError."""
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise SchoolError(f"{out} is not empty: give a new folder, or remove it")
    assignment = load_assignment(folder, wanted, key)
    policy = (folder / "policy.md").read_text(encoding="utf-8")
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        student = list(student_files(assignment, key, policy, rules))
        private = list(private_files(assignment, key, folder, rules))
        grader = [*private, *grader_files()]
        write(draft / "student", student)
        (draft / "student.zip").write_bytes(zipped(student))
        write(draft / "instructor", [*private, *answers(assignment)])
        (draft / "instructor/gradescope.zip").write_bytes(
            zipped([*grader, *((name, (FILES / name).read_bytes()) for name in EXECUTABLE)]))
        write(draft / "instructor/autolab", [
            ("autograde.tar", tarred(grader)),
            ("autograde-Makefile", (FILES / "autograde-Makefile").read_bytes())])
        (draft / "README.md").write_text(readme(assignment, key, out), encoding="utf-8")
        draft.chmod(0o755)
        if out.exists():
            out.rmdir()
        draft.rename(out)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return assignment


def private_files(assignment: Assignment, key: str, folder: Path,
                  rules: Rules) -> Iterator[tuple[str, bytes]]:
    """The files that grading reads: the tasks' names, the rules, the assignments, and a secret.

    The secret draws the values of the cases that are graded.  A key can be guessed, from words and
    from what students see of its draws.  The secret cannot, and each build has a new one.
    """
    names = [task.name for task in assignment.tasks]
    course = {"key": key, "secret": secrets.token_hex(), "tasks": names,
              "rules": rules._asdict()}
    yield COURSE, (json.dumps(course, indent=1) + "\n").encode()
    for name in names_in(folder):       # all: a task may build on one of any other assignment
        for path in sorted((folder / name).iterdir()):
            if path.is_file():
                yield f"assignments/{name}/{path.name}", path.read_bytes()


def grader_files() -> Iterator[tuple[str, bytes]]:
    """The grading program, with what it needs of this package."""
    grader = ("__init__.py", "toml_files.py", "course/__init__.py", "course/checker/**/*.py",
              "course/grading/*.py")
    for pattern in grader:
        for path in sorted(SCHOOL.glob(pattern)):
            yield f"school/{path.relative_to(SCHOOL)}", path.read_bytes()


def answers(assignment: Assignment) -> Iterator[tuple[str, bytes]]:
    """For the instructor: solutions with the course's parameters, rubric, guide."""
    for task in assignment.tasks:
        yield f"solutions/{task.name}.py", task.module(task.solution).encode()
    yield "rubric.md", merged_rubric(assignment).encode()
    page = guide(assignment)
    yield "guide.md", page.encode()
    yield "guide.html", as_html(page, f"{assignment.title}: guide").encode()


def guide(assignment: Assignment) -> str:
    """The guide for teaching assistants in Markdown: the commonest mistakes, and what to say.

    They are the first mutants of each task, run with the course's draw.  So the guide shows what
    the checker tells a student who makes this mistake.
    """
    with Worker(Limits(seconds=5.0)) as worker:
        tasks = [on_task(task, assignment, worker) for task in assignment.tasks]
    return "\n".join([text_of("guide.md").format(title=assignment.title), *tasks])


def on_task(task: Task, assignment: Assignment, worker: Worker) -> str:
    """The guide's section on a task: its commonest mistakes."""
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


def readme(assignment: Assignment, key: str, out: Path) -> str:
    """The page that tells the instructor what to do with the folder."""
    drawn = [f"`{task.name}`: " + ", ".join(f"{name} = {value!r}" for name, value in
                                            task.parameters.items())
             for task in assignment.tasks if task.parameters]
    return text_of("instructor.md").format(
        title=assignment.title, key=key, out=out, points=assignment.points,
        drawn="\n".join(f"* {line}" for line in drawn))


def write(folder: Path, content: Files) -> None:
    """Write files below a folder."""
    for path, data in content:
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def zipped(content: Files) -> bytes:
    """The bytes of a zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content:
            entry = zipfile.ZipInfo(path, TIME)
            entry.external_attr = (0o755 if path in EXECUTABLE else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return file.getvalue()


def tarred(content: Files) -> bytes:
    """The bytes of a tar archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for path, data in content:
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()
