"""Late days, partial credit, a text for students; the leaderboard; the guide for assistants."""

import csv
import json
import os

import pytest

from minipar.commands.main import main
from minipar.school.course.checker.outcome import Outcome
from minipar.school.course.checker.ranks import sandbox
from minipar.school.course.checker.service import RunFailure
from minipar.school.course.grading.assignment import load_assignment, names_in
from minipar.school.course.grading.rules import Rules, days_late, read_late
from minipar.school.course.grading.tasks import ASSIGNMENTS
from minipar.school.course.packaging.build import guide
from minipar.school.course.packaging.handout import handout
from minipar.school.toml_files import MIN_MUTANTS, SchoolError

pytestmark = pytest.mark.skipif(not sandbox.is_supported(),
                                reason="the sandbox needs Linux on x86-64 or ARM")
FEWEST = "import numpy as np\nfrom all_reduce import all_reduce\ndef fewest_bytes(comm, array):\n" \
         "    return all_reduce(comm, array, 'sum')\n"


def table(path):
    return [*csv.DictReader(path.read_text().splitlines())]


def outcome(task, most, passes=True):
    failure = None if passes else RunFailure(0, "WrongValue", "no")
    return Outcome(task, 0, "2 ranks", 2, most, False, "seed 1", 0.1, failure)


@pytest.mark.parametrize("days, points", [(0, 80), (2, 80), (3, 72), (5, 56), (12, 0), (99, 0)])
def test_days_late(days, points):
    assert Rules(late_days=2, late_penalty=10).score(80, days) == points
    assert Rules().score(80, days) == 80


def test_a_task_can_count_as_a_whole():
    found = [outcome("a", 3), outcome("a", 4, False), outcome("b", 5)]
    assert [one.points for one in Rules().credited(found)] == [3, 0, 5]
    assert [one.points for one in Rules(partial_credit=False).credited(found)] == [0, 0, 5]


@pytest.mark.parametrize("created, days", [
    ("2026-03-01T12:00:00.5-07:00", 0), ("2026-03-01T23:00:01-07:00", 1),
    ("2026-03-04T06:00:00+00:00", 2), ("", 0), ("no date", 0)])
def test_gradescope_tells_when_it_came(tmp_path, created, days):
    told = {"created_at": created, "assignment": {"due_date": "2026-03-01T23:00:00-07:00"}}
    (tmp_path / "submission_metadata.json").write_text(json.dumps(told if created else []))
    assert days_late(tmp_path / "submission") == days
    assert days_late(tmp_path / "deeper" / "submission") == 0


def test_a_list_of_days_late(tmp_path):
    file = tmp_path / "late.csv"
    file.write_text("anna,3\n\nbo , 0.5\n")
    assert read_late(file) == {"anna": 3, "bo": 1}
    file.write_text("anna three\n")
    with pytest.raises(SchoolError, match="each line should be NAME,DAYS, as anna,3"):
        read_late(file)


def test_rules_reach_points_and_students_and_the_leaderboard_has_places(tmp_path, capsys):
    """From `course build` to summary.csv: one right and early, one right and late, one wrong."""
    course, folder, out = tmp_path / "course", tmp_path / "all", tmp_path / "out"
    assert main(["course", "build", "--exercises", "fewest_bytes", "all_reduce", "--out",
                 str(course), "--late-days", "1", "--late-penalty", "25", "--whole-tasks",
                 "--feedback", "Ask on Tuesday."]) == 0
    page = (course / "student/handout.md").read_text()
    assert "but the first 1 costs 25 % of the points." in page and "Ask on Tuesday." in page
    assert "A task counts if all its cases pass" in page and (course / "student/AGENTS.md").exists()
    right = {name: (course / f"instructor/solutions/{name}.py").read_text()
             for name in ("fewest_bytes", "all_reduce")}
    for who, files in (("early", right), ("late", right),
                       ("wrong", {**right, "fewest_bytes": FEWEST})):
        (folder / who).mkdir(parents=True)
        for name, text in files.items():
            (folder / who / f"{name}.py").write_text(text)
    (tmp_path / "late.csv").write_text("late,3\n")
    assert main(["course", "grade", str(course), str(folder), "--each", "--out", str(out),
                 "--late", str(tmp_path / "late.csv"), "--seconds", "20"]) == 0
    rows = {row["submission"]: row for row in table(out / "summary.csv")}
    assert [float(rows[who]["points"]) for who in ("early", "late", "wrong")] == [38, 19, 18]
    assert rows["late"]["days late"] == "3" and rows["wrong"]["fewest_bytes"] == "0"
    board = table(out / "leaderboard.csv")
    assert [(row["measure"], row["place"], row["submission"]) for row in board] == [
        ("bytes", "1", "early"), ("bytes", "1", "late")], "equal ones share it; the wrong has none"
    results = json.loads((out / "late.json").read_text())
    assert results["score"] == 19 and results["leaderboard"][0]["name"] == "bytes"
    assert results["output"].startswith("3 days late: 50 % off\nAsk on Tuesday.")
    assert main(["course", "grade", str(course), str(folder / "late"), "--seconds", "20"]) == 0
    assert "Ask on Tuesday." in capsys.readouterr().out and os.path.exists(course / "README.md")


def test_the_guide_says_how_a_mistake_shows_and_what_to_say():
    assignment = load_assignment(ASSIGNMENTS, ["scattered_backward", "broadcast_chain"], "a key")
    text = guide(assignment)
    assert text.count("* Say: ") == text.count("* It shows as: ") == 2 * MIN_MUTANTS
    assert "deadlock" in text.lower() and "expected" in text
    assert "class RunFailure" not in text and "ImportError" not in text


def test_the_commonest_mistakes_have_words_for_the_student():
    for name in names_in(ASSIGNMENTS):
        for task in load_assignment(ASSIGNMENTS, [name], "a key").tasks:
            for wrong in list(task.mutants.values())[:MIN_MUTANTS]:
                assert 30 < len(wrong.say) < 200 and wrong.say[-1] in ".?", (task.name, wrong.say)


def test_a_handout_without_rules_says_nothing_of_them():
    assert "deadline" not in handout(load_assignment(ASSIGNMENTS, ["all_reduce"], "k"), "")
