"""A folder of hand-ins, as an instructor has it: litter, links, other endings."""

import csv
import io
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from minipar.commands.main import main
from minipar.school.course.checker.check import main as check
from minipar.school.course.checker.ranks import sandbox
from minipar.school.course.grading.__main__ import main as grade_alone
from minipar.school.course.packaging.build import build

pytestmark = pytest.mark.skipif(not sandbox.is_supported(),
                                reason="the sandbox needs Linux on x86-64 or ARM")
TASK, ALL = "block_table", "20"         # one process: quick; its points
LITTER = ["__MACOSX", "__pycache__", "venv", ".git", ".ipynb_checkpoints", ".idea", "node_modules"]
LITTER_FILES = [".DS_Store", "Thumbs.db", "desktop.ini", "._team.py", "~$report.docx", "a.pyc",
                "submission_metadata.yml"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("course") / "spring"
    build([TASK], "a key", out)
    return out


@pytest.fixture(scope="module")
def solution(built):
    return built / "instructor/solutions" / f"{TASK}.py"


def grade(built, folder: Path, out: Path, status: int = 0) -> dict[str, dict[str, str]]:
    """The rows of the summary by name; an error of the command is a failure of the test."""
    words = ["--each", "--seconds", "60", "--out", str(out)]
    assert main(["course", "grade", str(built), str(folder), *words]) == status
    with (out / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {row["submission"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def hand_in(solution: Path, folder: Path, name: str = f"{TASK}.py") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(solution, folder / name)


def test_litter_has_no_row(built, solution, tmp_path):
    for name in ("team1", *LITTER):
        hand_in(solution, tmp_path / "all" / name)
    for name in LITTER_FILES:
        hand_in(solution, tmp_path / "all", name)
    for _ in range(2):                  # the results lie in the folder, the second time
        rows = grade(built, tmp_path / "all", tmp_path / "all/results")
        assert [*rows] == ["team1"] and rows["team1"]["problem"] == ""


def test_every_hand_in_has_points_or_a_problem(built, solution, tmp_path):
    folder = tmp_path / "all"
    hand_in(solution, tmp_path / "one")
    for name, form in (("a.TGZ", "gztar"), ("b.tar.xz", "xztar"), ("c.ZIP", "zip"),
                       ("moodle/submission.zip", "zip")):
        packed = shutil.make_archive(str(tmp_path / "packed"), form, tmp_path / "one")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(packed, folder / name)
    hand_in(solution, folder, "smith_12_34_block-table-1.Py")
    for name in ("d.7z", "e.rar", "f.ipynb", "g.zip", "h", "i.pdf"):
        (folder / name).write_text("")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to(tmp_path / "one")
    (folder / "nowhere.py").symlink_to("nowhere")
    rows = grade(built, folder, tmp_path / "out", status=1)
    assert {*rows} == {path.name for path in folder.iterdir()}
    right = {name for name, row in rows.items() if row["points"] == ALL}
    assert right == {"a.TGZ", "b.tar.xz", "c.ZIP", "moodle", "smith_12_34_block-table-1.Py"}
    assert all(row["problem"] for name, row in rows.items() if name not in right)
    assert rows["empty"]["problem"] == f"there is no {TASK}.py; other files: none"
    assert "is a link, which is not followed" in rows["link"]["problem"]
    assert "block-table-1.Py was graded" in rows["smith_12_34_block-table-1.Py"]["problem"]


def test_a_task_that_cannot_run_says_why_in_the_summary(built, solution, tmp_path):
    for name, text in (("syntax", "def block_table(:"), ("function", "x = 1"),
                       ("import", "import helpers\ndef block_table(*a): pass")):
        hand_in(solution, tmp_path / "all" / name)
        (tmp_path / "all" / name / f"{TASK}.py").write_text(text)
    rows = grade(built, tmp_path / "all", tmp_path / "out")
    assert rows["syntax"]["problem"] == f"{TASK}: SyntaxError: invalid syntax ({TASK}.py, line 1)"
    assert f"LookupError: {TASK}.py has no function {TASK}" in rows["function"]["problem"]
    assert "there is no module helpers here" in rows["import"]["problem"]


def test_names_alike_have_a_row_each_and_no_cell_is_a_formula(built, solution, tmp_path):
    names = [os.fsdecode(b"caf\xe9"), os.fsdecode(b"caf\xe8"), "=1+1", "-x"]
    (nothing_to_run := tmp_path / "notes").write_text("no function of the task")
    for name in names:
        hand_in(nothing_to_run, tmp_path / "all" / name, "notes.txt")
    assert main(["course", "grade", str(built), str(tmp_path / "all"), "--each", "--out",
                 str(tmp_path / "out")]) == 0
    with (tmp_path / "out/summary.csv").open(newline="") as file:
        assert [row[0] for row in csv.reader(file)][1:] == ["'-x", "'=1+1", "caf?", "caf?"]


def test_results_of_an_earlier_run_do_not_stay(built, solution, tmp_path):
    hand_in(solution, tmp_path / "all/team.zip")        # a folder, first
    grade(built, tmp_path / "all", tmp_path / "out")
    assert (tmp_path / "out/team.zip.json").exists()
    shutil.rmtree(tmp_path / "all/team.zip")
    (tmp_path / "all/team.zip").write_bytes(b"")
    grade(built, tmp_path / "all", tmp_path / "out", status=1)
    assert not (tmp_path / "out/team.zip.json").exists()


def test_problems_are_printed(built, solution, tmp_path, capsys):
    hand_in(solution, tmp_path / "one", "mine\x1b[2J.py")
    (tmp_path / "one/latin.py").write_bytes(b"# \xe9")
    for form in ("gradescope", "autolab"):
        assert main(["course", "grade", str(built), str(tmp_path / "one"), "--format", form]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said[:2] == ["latin.py is not text in UTF-8: save it as UTF-8", f"there is no {TASK}"
                            f".py: mine[2J.py was graded, which defines {TASK}"]


def test_the_folder_itself_takes_no_results(built, solution, tmp_path, capsys):
    hand_in(solution, tmp_path / "team")
    words = ["course", "grade", str(built), str(tmp_path), "--each", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "is the folder of the submissions: give another one" in capsys.readouterr().err
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(solution, f"team/{TASK}.py")
    assert main([*words[:3], str(tmp_path / "all.zip"), *words[4:]]) == 2
    assert "unpack an archive of all of them first" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["minipar", "school.course.grading", "check.py"])
@pytest.mark.one_in(2)
def test_a_terminal_without_utf_8_shows_the_points(built, solution, tmp_path, monkeypatch, program):
    hand_in(solution, tmp_path / "日本")
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    words = [str(built), str(tmp_path), "--each", "--seconds", "60", "--out", f"{tmp_path}/out"]
    monkeypatch.setattr(sys, "argv", ["grading", *words])
    status = {"minipar": lambda: main(["course", "grade", *words]),
              "school.course.grading": grade_alone,
              "check.py": lambda: check(built / "student", [])}[program]()
    terminal.flush()
    said = terminal.buffer.getvalue().decode()
    if program == "check.py":
        assert status == 1 and f"? {TASK}: " in said and "0 of 7 points" in said
    else:
        assert status == 0 and said == "??: 20 of 20 points\n"
