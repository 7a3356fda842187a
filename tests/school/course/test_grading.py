"""From a built course to points: right, half right, and hopeless submissions; a folder of 200."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from minipar.commands.main import main
from minipar.school.course.checker.ranks import sandbox
from minipar.school.course.grading import program
from minipar.school.course.grading.assignment import load_assignment
from minipar.school.course.grading.program import Settings, grade_one, read_course
from minipar.school.course.grading.submission import read_submission
from minipar.school.course.grading.tasks import ASSIGNMENTS, draw, load, seed_of
from minipar.school.course.packaging.build import build
from minipar.school.toml_files import SchoolError

pytestmark = pytest.mark.skipif(not sandbox.is_supported(),
                                reason="the sandbox needs Linux on x86-64 or ARM")
TASK, ALL = "broadcast_chain", 15       # and its points
HANG = "def broadcast_chain(comm, array, root):\n    while True: pass\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("course") / "spring"
    build([TASK], "a key", out)
    return out


@pytest.fixture(scope="module")
def solution(built):
    return (built / "instructor" / "solutions" / f"{TASK}.py").read_text()


def hand_in(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{TASK}.py").write_text(text)
    return folder


def points_of(built, place, seconds=20.0, **settings):
    found = grade_one(read_course(built), place, Settings(seconds, **settings)).outcomes
    return sum(one.points for one in found), found


def test_the_solution_gets_all_points_and_the_stub_none(built, solution, tmp_path):
    points, found = points_of(built, hand_in(tmp_path / "right", solution))
    assert points == sum(one.most for one in found) == ALL
    points, found = points_of(built, built / "student")
    assert points == 0 and found[0].failure.error == "NotImplementedError"


def test_half_right(built, solution, tmp_path):
    half = solution.replace("place = STEP", "assert p != 7\nplace = STEP").replace(
        "\nplace", "\n    place")
    points, found = points_of(built, hand_in(tmp_path, half))
    assert points == ALL - 3 and found[4].failure.error == "AssertionError"


def test_a_hang_costs_its_own_cases_only(built, solution, tmp_path):
    hang = solution.replace("place = STEP", "while p == 3: time.sleep(1)\nplace = STEP").replace(
        "\nplace", "\n    place").replace("import", "import time\nimport", 1)
    points, found = points_of(built, hand_in(tmp_path, hang), seconds=2.0)
    assert points == ALL - 2 and found[1].failure.error == "TooSlow"


def test_helpers_beside_the_task_can_be_imported(built, solution, tmp_path):
    place = hand_in(tmp_path, f"from mine import {TASK}\n")
    (place / "mine.py").write_text(solution)
    assert points_of(built, place)[0] == ALL


def test_a_missing_file_is_said(built, tmp_path):
    points, found = points_of(built, tmp_path)
    assert points == 0 and found[0].failure.message == f"there is no {TASK}.py in the submission"


def test_seeds_belong_to_the_submission(built, solution, tmp_path):
    seeds = []
    for name, text in (("a", solution), ("b", solution), ("c", solution + "# mine\n")):
        seeds.append([one.seed for one in points_of(built, hand_in(
            tmp_path / name, text))[1]])
    assert seeds[0] == seeds[1] != seeds[2]
    assert seed_of("k", "s", "t", 0) != seed_of("k", "s", "t", 1)


def test_a_key_draws_parameters():
    drawn = {str(draw({"STEP": [1, -1], "SEGMENTS": [3, 4, 5]}, f"key {i}")) for i in range(60)}
    assert len(drawn) == 6
    file = ASSIGNMENTS / "collectives" / "tasks.toml"
    assert load(file, "x")[TASK].parameters == load(file, "x")[TASK].parameters


def test_results_for_gradescope(built, solution, tmp_path, capsys):
    place, out = hand_in(tmp_path / "it", solution), tmp_path / "results.json"
    assert main(["course", "grade", str(built), str(place), "--out", str(out)]) == 0
    results = json.loads(out.read_text())
    assert results["score"] == ALL and capsys.readouterr().out.endswith("15 of 15 points\n")
    hidden = [test["visibility"] for test in results["tests"]]
    assert hidden == ["visible"] * 3 + ["after_published"] * 3
    assert {"name", "score", "max_score", "status", "output", "visibility"} <= set(
        results["tests"][0])


def test_results_for_autolab(built, solution, tmp_path, capsys):
    place = hand_in(tmp_path / "it", solution.replace("range", "rang"))
    main(["course", "grade", str(built), str(place), "--format", "autolab"])
    said = capsys.readouterr().out.splitlines()
    assert json.loads(said[-1])["scores"].keys() == {TASK}
    assert sum(f"{TASK}: " in line for line in said) == 3, "students see this: no hidden cases"


def test_a_folder_of_submissions_and_its_report(built, solution, tmp_path, capsys):
    folder, out = tmp_path / "all", tmp_path / "results"
    for number in range(2):
        hand_in(folder / f"right{number}", f"{solution}# {number}\n")
        hand_in(folder / f"wrong{number}", f"{solution}# {number}\n".replace("root", "0"))
    with zipfile.ZipFile(folder / "zipped.zip", "w") as archive:
        archive.writestr(f"deep/in/{TASK}.py", solution)
    (folder / "broken.zip").write_bytes(b"PK no archive")
    surrogate = solution.replace("    ", "    raise ValueError('\\ud800')\n    ", 1)
    hand_in(folder / os.fsdecode(b"caf\xe9"), surrogate)
    assert main(["course", "grade", str(built), str(folder), "--each", "--out", str(out)]) == 1
    said = capsys.readouterr().out
    assert "zipped.zip: 15 of 15 points" in said and "broken.zip: " in said
    rows = (out / "summary.csv").read_text().splitlines()
    assert rows[0] == f"submission,points,{TASK},days late,problem" and len(rows) == 8
    assert main(["course", "report", str(out)]) == 0
    said = capsys.readouterr().out
    assert "6 submissions" in said and "common failures" in said


def test_a_late_name_that_is_no_submission_is_said_first(built, solution, tmp_path, capsys):
    """A slip of the pen would waive the penalty."""
    hand_in(tmp_path / "all" / "ann", solution)
    (tmp_path / "late.csv").write_text("ann,1\nzoe,2\n")
    assert main(["course", "grade", str(built), str(tmp_path / "all"), "--each", "--out",
                 str(tmp_path / "out"), "--late", str(tmp_path / "late.csv")]) != 0
    assert "--late names zoe, and" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.json"))


def test_a_fault_of_grading_costs_one_submission(built, solution, tmp_path, capsys, monkeypatch):
    def read(place, wanted):
        if place.name == "bad":
            raise ZeroDivisionError("a fault")
        return read_submission(place, wanted)
    monkeypatch.setattr(program, "read_submission", read)
    for name in ("bad", "good"):
        hand_in(tmp_path / "all" / name, solution)
    words = ["--each", "--out", str(tmp_path / "out")]
    assert main(["course", "grade", str(built), str(tmp_path / "all"), *words]) == 1
    said = capsys.readouterr().out
    assert "bad: grading failed (ZeroDivisionError: a fault)" in said
    assert "good: 15 of 15 points" in said


def test_results_of_two_assignments_are_not_mixed(built, solution, tmp_path, capsys):
    for name, cases in (("a", "xy"), ("b", "xyz")):
        tests = [{"name": case} for case in cases]
        (tmp_path / f"{name}.json").write_text(json.dumps({"tests": tests}))
    assert main(["course", "report", str(tmp_path)]) == 2
    assert "mixes assignments: " in capsys.readouterr().err


@pytest.mark.slow
def test_two_hundred_submissions(built, solution, tmp_path):
    hang = HANG.replace("True", "comm.size == 3")           # in one case: the test takes a minute
    kinds = [solution, solution.replace("root", "0"), hang, "def f(", "import os; os._exit(0)",
             "import os\nwhile True: os.fork()", solution.replace("array", "x")]
    for number in range(200):
        hand_in(tmp_path / "all" / f"s{number:03}", f"{kinds[number % 7]}\n# {number}\n")
    assert main(["course", "grade", str(built), str(tmp_path / "all"), "--each", "--seconds", "3",
                 "--out", str(tmp_path / "out")]) == 0
    scores = [json.loads(path.read_text())["score"] for path in sorted(
        (tmp_path / "out").glob("*.json"))]
    assert len(scores) == 200
    assert [number for number, score in enumerate(scores) if score == ALL] == [*range(0, 200, 7)]


@pytest.mark.parametrize("words, message", [
    (["grade", "{tmp}", "{tmp}"], "there is no course.json in"),
    (["grade", "{built}", "{tmp}/none"], "is no submission: give a folder, a .py file, or one of"),
    (["grade", "{built}", "{tmp}", "--each"], "--each needs --out DIR"),
    (["grade", "{built}", "{tmp}/none", "--each", "--out", "{tmp}"], "is no folder of submissions"),
    (["grade", "{built}", "{tmp}", "--seconds", "0"], "--seconds takes a positive number, not 0"),
    (["build", "--exercises", "collectivs", "--out", "{tmp}/x"],
     "there is no assignment or task 'collectivs': choose from collectives, broadcast_chain"),
    (["build", "--exercises", "collectives", "--out", "{built}"], "is not empty: give a new"),
    (["report", "{tmp}"], "has no results: `course grade DIR FOLDER --each --out"),
    (["build", "--exercises", "x", "--out", "{tmp}/x", "--from", "{tmp}"],
     "has no assignments: an assignment is a folder with assignment.toml"),
    (["prove", "nothing"], "there is no assignment or task 'nothing': course list shows them"),
])
def test_mistakes_are_one_line(built, tmp_path, capsys, words, message):
    words = [word.format(tmp=tmp_path, built=built) for word in words]
    assert main(["course", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("minipar: ") and message in said and said.count("\n") == 1


def test_an_assignment_from_several_tasks_and_a_wrong_name():
    assert [task.name for task in load_assignment(ASSIGNMENTS, [TASK], "").tasks] == [TASK]
    with pytest.raises(SchoolError, match="'none'"):
        load_assignment(ASSIGNMENTS, [TASK, "none"], "")


def copy_python(root: Path) -> None:
    """Stand in for what setup.sh installs: this Python, with NumPy."""
    (root / "venv/bin").mkdir(parents=True)
    (root / "venv/bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (root / "venv/bin/python").chmod(0o755)


def test_the_archive_for_gradescope_grades(built, solution, tmp_path):
    root = tmp_path / "autograder"
    with zipfile.ZipFile(built / "instructor/gradescope.zip") as archive:
        archive.extractall(root / "source")
        assert archive.getinfo("run_autograder").external_attr >> 16 & 0o111
    copy_python(root)
    hand_in(root / "submission", solution)
    subprocess.run(["bash", root / "source/run_autograder"], check=True, capture_output=True,
                   env={"AUTOGRADER": str(root), "PATH": "/usr/bin:/bin"})
    assert json.loads((root / "results/results.json").read_text())["score"] == ALL
    shutil.rmtree(root / "results")
    (root / "source/course.json").unlink()
    subprocess.run(["bash", root / "source/run_autograder"], check=True, capture_output=True,
                   env={"AUTOGRADER": str(root), "PATH": "/usr/bin:/bin"})
    results = json.loads((root / "results/results.json").read_text())
    assert results["score"] == 0 and "not your fault" in results["output"]


def test_the_pair_for_autolab_grades(built, solution, tmp_path):
    for path in (built / "instructor/autolab").iterdir():
        shutil.copy(path, tmp_path)
    with zipfile.ZipFile(tmp_path / "handin.zip", "w") as archive:
        archive.writestr(f"{TASK}.py", solution)
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    run = subprocess.run(["make", "-s", "-f", "autograde-Makefile"], cwd=tmp_path, check=True,
                         capture_output=True, text=True,
                         env={"PATH": f"{python.parent}:/usr/bin:/bin"})
    assert json.loads(run.stdout.splitlines()[-1]) == {"scores": {TASK: ALL}}
