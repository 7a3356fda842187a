"""The package for students: it checks, and the answers are nowhere in it."""

import ast
import io
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from minipar.commands.main import main
from minipar.course.checker.cases import read_cases
from minipar.course.grading.assignment import load_assignment, names_in
from minipar.course.grading.tasks import ASSIGNMENTS
from minipar.course.packaging.build import build
from minipar.course.packaging.handout import as_html, handout
from minipar.course.packaging.student import stub, student_files

KEY = "a key"
NAMES = names_in(ASSIGNMENTS)


def package(name):
    assignment = load_assignment(ASSIGNMENTS, [name], KEY)
    return assignment, dict(student_files(assignment, KEY, "## Policy\n"))


def bodies(text: str) -> set[str]:
    """Every function's body in a file, without its docstring, as a tree."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[ast.get_docstring(node, clean=False) is not None:]
            found.add("\n".join(map(ast.dump, body)))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_answers_are_nowhere(name):
    assignment, files = package(name)
    answers = {line.strip() for task in assignment.tasks for line in task.solution.splitlines()
               if len(line.strip()) > 30 and not line.startswith("def ")}
    trees = {body for task in assignment.tasks for body in bodies(task.module(task.solution))}
    code = {line.strip() for task in assignment.tasks for text in task.code.values()
            for line in text.splitlines() if len(line.strip()) > 30}
    for path, data in files.items():
        if path.startswith("checker/") or path.endswith(".npz"):
            assert b"solution" not in data.lower()
            continue
        text = data.decode()
        if not path.startswith("supplied/"):
            lines = {line.strip() for line in text.splitlines()}
            assert not lines & answers and not lines & code, path
        if path.endswith(".py"):
            assert not bodies(text) & trees, path
    assert not {path for path in files if "__pycache__" in path or path.endswith(".pyc")}
    assert KEY not in "".join(data.decode(errors="ignore") for data in files.values())


@pytest.mark.parametrize("name", NAMES)
def test_public_cases_are_plain_data(name):
    assignment, files = package(name)
    for task in assignment.tasks:
        with np.load(io.BytesIO(files[f"cases/{task.name}.npz"]), allow_pickle=False) as found:
            assert "head" in found.files
        assert f"def {task.signature}:" in files[f"{task.name}.py"].decode()
        shown = [case for case in task.cases if not case.is_hidden]
        assert shown and len(shown) < len(task.cases), "public and hidden cases"


@pytest.mark.parametrize("name", NAMES)
def test_the_handout_is_one_page_in_two_forms(name):
    assignment, _ = package(name)
    text = handout(assignment, "## Help\n")
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    assert heads == ["## What you will learn", "## Background", "## Tasks", "## Questions",
                     "## Check and hand in", "## Help"]
    page = as_html(text, assignment.title)
    assert page.count("<h3>") == len(assignment.tasks) and "http://" not in page
    assert "<script" not in page and page.count("<table>") >= 1


def test_a_student_checks_shows_and_hands_in(tmp_path):
    build(["broadcast_chain"], KEY, tmp_path / "course")
    student = tmp_path / "course/student"

    def check(*words):
        return subprocess.run([sys.executable, "check.py", *words], cwd=student,
                              capture_output=True, text=True)
    run = check()
    assert run.returncode == 1 and "write this: broadcast_chain" in run.stdout
    solution = (tmp_path / "course/instructor/solutions/broadcast_chain.py").read_text()
    (student / "broadcast_chain.py").write_text(solution)
    run = check("broadcast_chain", "--show", "--junit", "results.xml")
    assert run.returncode == 0 and run.stdout.endswith("5 of 5 points\n")
    assert "    round 1   0→" in run.stdout and (student / "results.xml").exists()
    assert check("--zip").returncode == 0
    with zipfile.ZipFile(student / "submission.zip") as archive:
        assert archive.namelist() == ["broadcast_chain.py"]
    for words, message in ((["broadcast"], "there is no task broadcast"),
                           (["--seconds", "nan"], "--seconds takes a positive number, not nan"),
                           (["--junit", "none/results.xml"], "No such file or directory"),
                           (["--zip"], "latin.py is not text in UTF-8: save it as such")):
        if message.startswith("latin"):
            (student / "latin.py").write_bytes(b"\xe9")
        run = check(*words)
        assert run.returncode == 2 and run.stderr.startswith("check.py: ") and message in run.stderr
        assert run.stderr.count("\n") == 1


def test_public_cases_come_back_whole(tmp_path):
    _, files = package("collectives")
    (tmp_path / "x.npz").write_bytes(files["cases/broadcast_chain.npz"])
    case = read_cases(tmp_path / "x.npz")[0]
    assert case.function == "broadcast_chain" and case.outcome.ranks == 4
    assert np.array_equal(case.expected[3]["array"], case.arguments[0]["array"])


def test_a_stub_keeps_indented_lines_as_they_are():
    [task] = [task for task in load_assignment(
        ASSIGNMENTS, ["compression_and_inference"], "a key").tasks if task.name == "block_table"]
    assert '\n    ["fork", name, child]    child is' in stub(task)
    assert "\n\n\ndef block_table(" in stub(task)


def test_tasks_of_ones_own(tmp_path, capsys):
    own = tmp_path / "own"
    shutil.copytree(ASSIGNMENTS / "collectives", own / "collectives")
    shutil.copy(ASSIGNMENTS / "policy.md", own)
    tasks = own / "collectives/tasks.toml"
    tasks.write_text(tasks.read_text().replace("[broadcast_chain", "[private_chain"))
    words = ["--from", str(own)]
    assert main(["course", "build", "--exercises", "private_chain", "--out", str(tmp_path / "out"),
                 *words]) == 0
    assert (tmp_path / "out/student/private_chain.py").exists()
    assert main(["course", "list", *words]) == 0
    assert "private_chain" in capsys.readouterr().out
