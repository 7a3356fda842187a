"""The package for students: it checks, and the answers are nowhere in it."""

import ast
import io
import re
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from minipar.commands.main import main
from minipar.school.course.checker.cases import read_cases
from minipar.school.course.grading.assignment import load_assignment, names_in
from minipar.school.course.grading.tasks import ASSIGNMENTS
from minipar.school.course.packaging.build import build
from minipar.school.course.packaging.handout import as_html, handout
from minipar.school.course.packaging.selection import TAG, merged_rubric, selected
from minipar.school.course.packaging.student import stub, student_files

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
    assert b"Explain and ask; do not solve." in files["AGENTS.md"]
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


def text_of(*names):
    return handout(load_assignment(ASSIGNMENTS, names, KEY), "## Help\n")


def test_a_handout_of_some_tasks_is_on_these_alone():
    text = text_of("broadcast_chain", "matmul_backward", "mean_gradients", "accept_draft")
    assert ("\nAbout 4.5 hours. 61 points for the functions below, 17 for the questions: 78 in "
            "all.\n" in text), "9 · 30/360 + 6 · 80/200 + 8 · 50/345"
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    assert heads == ["## What you will learn", "## Background", "## Tasks", "## Questions",
                     "## Check and hand in", "## Help"]
    assert text.count("Write the answers into a text") == 1
    assert re.findall(r"^(\d+)\. \(", text, re.MULTILINE) == list("12345")
    for word in ("A chain in segments", "10 rows are dealt", "A small model proposes"):
        assert word in text
    for word in ("<!--", "ZeRO-1", "paged cache", "log₂ p rounds are", "In `fewest_bytes`", "Adam",
                 "smoothed cross-entropy", "Compression and inference:"):
        assert word not in text, word


def test_a_handout_without_questions_promises_none():
    text = text_of("top_p_sample")
    assert "About 1 hour. 15 points for the functions below.\n" in text
    assert "## Questions" not in text and "## Background" not in text
    rubric = merged_rubric(load_assignment(ASSIGNMENTS, ["top_p_sample"], KEY))
    assert "questions" not in rubric and rubric.startswith("# Compression and inference: rubric\n")


@pytest.mark.parametrize("names", [["megatron_forward", "all_reduce"], ["sharding"], NAMES,
                                   ["gathered_forward"], ["bucketed_all_reduce", "clip_shards"]])
def test_the_rubric_answers_what_the_handout_asks(names):
    assignment = load_assignment(ASSIGNMENTS, names, KEY)
    text, rubric = handout(assignment, ""), merged_rubric(assignment)
    asked = re.findall(r"^(\d+)\. \((\d+) points\)", text, re.MULTILINE)
    assert asked == re.findall(r"^## (\d+)\. .+ \((\d+)\)$", rubric, re.MULTILINE) and asked
    told = re.findall(r"^(\d+) points for the questions", rubric, re.MULTILINE)
    assert sum(int(points) for _, points in asked) == sum(map(int, told))
    assert [int(number) for number, _ in asked] == list(range(1, len(asked) + 1))
    told = set(re.findall(r"^\* `(\w+)`", rubric, re.MULTILINE))
    assert told == {task.name for task in assignment.tasks}


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_marked_with_tasks_that_are_there(name):
    [part] = load_assignment(ASSIGNMENTS, [name], KEY).parts
    known = {task.name for task in part.tasks} | {"any"}
    marked = [words.split() for _, words in TAG.findall(part.handout)]
    assert len(marked) >= 9 and {word for words in marked for word in words} <= known
    whole = "\n".join(line for line in part.handout.split("\n") if not TAG.fullmatch(line))
    assert selected(part.handout, known) == re.sub(r"\n{3,}", "\n\n", whole).strip()
    for task in part.tasks:         # a task that is not in the set is not asked about
        rest = selected(part.handout, known - {task.name}).partition("## Questions")[2]
        assert f"`{task.name}`" not in rest, task.name


@pytest.mark.parametrize("chosen, supplied", [
    (["scattered_backward"], ["reduce_scatter", "all_gather", "gathered_forward"]),
    (["megatron_backward", "accept_draft"], ["all_reduce", "megatron_forward"]),
    (["all_reduce", "clip_shards"], []), (["best_schedule"], [])])
def test_what_tasks_build_on_is_supplied_and_no_more(chosen, supplied):
    """A text may say "as in another task": then students get that task's text and solution."""
    files = dict(student_files(load_assignment(ASSIGNMENTS, chosen, KEY), KEY, ""))
    assert [path for path in files if "supplied/" in path] == [
        f"supplied/{name}.py" for name in supplied]
    for name in supplied:
        text = files[f"supplied/{name}.py"].decode()
        assert len(ast.get_docstring(ast.parse(text))) > 300 and f"def {name}(" in text


def test_what_a_task_builds_on_is_said_where_it_is_graded():
    assert "a mistake costs the points of one" in text_of("all_reduce", "megatron_forward")
    assert "a mistake costs the points of one" not in text_of("megatron_forward")


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
    run = check("broadcast_chain", "--show")
    assert run.returncode == 0 and run.stdout.endswith("5 of 5 points\n")
    assert "    round 1   0→" in run.stdout
    assert check("--zip").returncode == 0
    with zipfile.ZipFile(student / "submission.zip") as archive:
        assert archive.namelist() == ["broadcast_chain.py"]
    (student / "submission.zip").unlink()
    (student / "submission.zip").mkdir()
    for words, message in ((["broadcast"], "there is no task broadcast"),
                           (["--seconds", "nan"], "--seconds takes a positive number, not nan"),
                           (["--zip"], "Is a directory"),
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
