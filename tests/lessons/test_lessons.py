"""Every lesson runs on simulated and on real ranks, shows its picture, keeps to its contract."""

import ast
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from minipar.comm import Cluster
from minipar.environment import find_mpirun, mpirun_environment
from minipar.launcher import simulate
from minipar.school.exercises import entries
from minipar.testing import worlds
from minipar.testing.worlds import SimulatedWorld

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
TIMED = (1, 2, 3, 4, 5, 8, 12, 13, 21, 28, 32)  # lessons that predict seconds of simulated ranks
ALONE = (0, 6, 20, 22, 23, 24, 25, 26, 30)  # lessons about the work within a rank
LIKE_ANOTHER = (2, 3, 5, 8, 9, 11, 13, 15, 18, 21, 32)  # real ranks: like 4, 7, 10, 12 or 14
LONGEST = 0, 28             # tests/parallel/cost and tests/step_simulation show the same
ONE = LESSONS[1]            # the lesson that the default suite also runs in its own processes
EXERCISES = entries.load(ROOT)


def run(lesson: Path, *words: str, launcher: Sequence[str] = ()) -> subprocess.CompletedProcess:
    return subprocess.run([*launcher, sys.executable, lesson, *map(str, words)], timeout=60,
                          capture_output=True, encoding="utf-8", cwd=ROOT,
                          env=mpirun_environment())


def last_line(done: subprocess.CompletedProcess) -> str:
    """Of standard error; before it matplotlib may announce its font cache."""
    return done.stderr.strip().rpartition("\n")[2]


def in_both_worlds(lessons: list[Path]) -> list:
    """Each lesson on 3 simulated and 2 real ranks; on those under `slow`, but for every fourth, and
    for those in `ALONE` or `LIKE_ANOTHER`."""
    found = []
    for lesson in lessons:
        for world in worlds(3, mpi=(2,)).mark.args[1]:
            number = int(lesson.name[:2])
            is_slow = number in LONGEST or world.marks and (
                number in ALONE + LIKE_ANOTHER or number % 4)       # real ranks: every fourth
            found.append(pytest.param(lesson, *world.values, id=f"{lesson.stem}-{world.id}",
                                      marks=[*world.marks, *[pytest.mark.slow] * bool(is_slow)]))
    return found


def test_there_are_lessons():
    numbers = {int(lesson.name[:2]) for lesson in LESSONS}
    assert {*range(29), 30, 31, 32} <= numbers


@pytest.mark.parametrize("lesson, world", in_both_worlds(LESSONS))
@pytest.mark.one_in(9)
def test_lesson(world, lesson, tmp_path, monkeypatch, capsys):
    """In this process, whose ranks may be real ones, as launch() would run it."""
    monkeypatch.syspath_prepend(lesson.parent)
    monkeypatch.setattr(sys, "argv", [str(lesson), "--out", str(tmp_path)])
    main = runpy.run_path(str(lesson))["main"]
    if isinstance(world, SimulatedWorld):
        ranks, kind = [0], "simulated"
        simulate(main, Cluster(world.size))
    else:
        ranks, kind = world.run(lambda comm: (main(comm), comm.rank)[1]), "real MPI"
    folder = tmp_path / lesson.stem[:2]
    written = {path.name for path in folder.iterdir()} if folder.exists() else set()
    printed = capsys.readouterr().out
    if 0 not in ranks:
        assert not written and not printed, "more than one rank printed"
        return
    assert f"({world.size} {kind} ranks)" in " ".join(printed.split())
    for part in ("predicted", "ratio", "Takeaway:", "Exercises"):
        assert part in printed, "a lesson prints a table of rows, a takeaway and exercises"
    assert "measured" in printed or "simulated ┃" in printed, "a table shows what was measured"
    assert printed.count("Takeaway:") == 1, "more than one takeaway, or more than one rank printed"
    assert written - {"page.html", "trace.json"} == {
        "picture.png", "report.md", "tables.json", "lesson.json"}
    shown = written - {"report.md", "tables.json", "lesson.json"}
    assert all(f": {folder / name}\n" in printed for name in shown)
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    tables = json.loads((folder / "tables.json").read_text("utf-8"))["tables"]
    assert 2 <= len(tables[0]["rows"]) <= 6, "the first table is that of the algorithm"
    assert tables and all(len(row) == len(table["columns"]) for table in tables
                          for row in table["rows"])
    assert json.loads((folder / "lesson.json").read_text("utf-8"))["ranks"] == world.size
    named = re.findall(r"exercise start (\w+)", printed)
    assert set(named) <= set(EXERCISES), "an exercise that is not in the catalog"
    number = int(lesson.stem[:2])
    own = {name for name, entry in EXERCISES.items() if entry.lesson == number}
    assert own <= set(named), "an exercise of this lesson that it does not list"
    later = {name for name in named if EXERCISES[name].lesson > number}
    assert not later, "an exercise of a later lesson"
    if kind == "simulated" and number in TIMED:
        assert re.search("predicted ┃ +simulated", printed), "virtual seconds are not measured"


def test_a_lesson_runs_alone(tmp_path):
    done = run(ONE, "--ranks", 3, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "(3 simulated ranks)" in " ".join(done.stdout.split())       # in 80 columns, too
    assert done.stdout.count("Takeaway:") == 1
    assert (tmp_path / ONE.stem[:2] / "picture.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
@pytest.mark.parametrize("num_ranks", [1, 4])
def test_lesson_on_other_worlds(lesson, num_ranks, tmp_path):
    done = run(lesson, "--ranks", num_ranks, "--out", tmp_path)
    if done.returncode == 2:                    # a lesson about messages needs several ranks
        assert re.match(r"minipar: this lesson needs at least \d+ ranks, not 1", last_line(done))
        assert num_ranks == 1
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("Takeaway:") == 1
        assert (tmp_path / lesson.stem[:2] / "picture.png").exists()


@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun: pip install '.[mpi]'")
def test_a_lesson_runs_on_real_ranks(tmp_path):
    """All of them do on four, in test_form.py, under `slow`."""
    done = run(ONE, "--out", tmp_path, launcher=[find_mpirun(), "-n", "2"])
    assert done.returncode == 0, done.stderr
    assert "(2 real MPI ranks)" in " ".join(done.stdout.split())        # in 80 columns, too
    assert done.stdout.count("Takeaway:") == 1
    assert (tmp_path / ONE.stem[:2] / "picture.png").exists()


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_lesson_is_short_and_says_its_question(lesson):
    text = lesson.read_text(encoding="utf-8")
    assert text.endswith('\n\nif __name__ == "__main__":\n    launch(main)\n'), \
        "a lesson ends by launching main"
    assert text.startswith(f'"""Lesson {lesson.name[:2]}. '), "its docstring begins with its number"
    assert "?" in text.splitlines()[0], "the first line of its docstring asks a question"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_functions_of_a_lesson_are_short(lesson):
    lengths = {node.name: node.end_lineno - node.lineno + 1
               for node in ast.walk(ast.parse(lesson.read_text(encoding="utf-8")))
               if isinstance(node, ast.FunctionDef)}
    long = {name: length for name, length in lengths.items() if length > 40}
    assert not long, "make steps with names of it, as lessons 09 and 12 do"


def test_rows_are_folded_until_asked_for(tmp_path):
    code = ("from support.kit import Lesson, Row; from minipar.launcher import launch\n"
            "lesson = lambda comm: Lesson(comm, 'lessons/99_x.py', 'Lesson 99. ?')\n"
            "launch(lambda comm: (one := lesson(comm)).counts([Row('bytes', 8, 8, 'B'), "
            "Row('rounds', 3, {measured})], 'the rings') or one.exercises())")
    for measured, words in ((3, []), (3, ["--all-rows"]), (4, [])):
        done = subprocess.run([sys.executable, "-c", code.format(measured=measured), *words,
                               "--out", tmp_path], capture_output=True, cwd=ROOT / "lessons",
                              timeout=60, encoding="utf-8", env=mpirun_environment())
        assert (done.returncode == 0) == (measured == 3)
        assert ("the rings: 2 values, each as predicted" in done.stdout) == (measured == 3)
        assert ("│ rounds" in done.stdout) == bool(words)
    report = (tmp_path / "99" / "report.md").read_text("utf-8")
    assert "<summary>the rings: 2 values" in report and "| rounds | = 3" in report


def test_a_wrong_option_is_one_line():
    done = run(LESSONS[0], "--rank", 4)
    assert done.returncode == 2
    assert last_line(done).startswith("minipar: unrecognized arguments: --rank 4")
    assert "Traceback" not in done.stderr


def test_a_row_that_does_not_hold_ends_the_lesson():
    code = ("from support.kit import Lesson, Row; from minipar.launcher import launch\n"
            "launch(lambda comm: Lesson(comm, 'lessons/00_x.py', 'Lesson 00. ?').table("
            "[Row('bytes', 8, 9, 'B', {rule!r})]))")
    for rule, holds in (("=", False), ("≤", False), ("≈", True)):
        done = subprocess.run([sys.executable, "-c", code.format(rule=rule)], timeout=60,
                              capture_output=True, cwd=ROOT / "lessons", encoding="utf-8",
                              env=mpirun_environment())
        assert (done.returncode == 0) == holds
        assert holds or f"bytes: predicted {rule} 8, measured 9 B" in done.stderr


def test_a_file_is_no_folder_for_results(tmp_path):
    """One line says so, before anything runs."""
    (file := tmp_path / "notes").write_text("kept")
    done = run(LESSONS[4], "--ranks", 2, "--out", file)
    assert done.returncode != 0 and file.read_text() == "kept"
    assert f"{file} is a file: name a folder" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
