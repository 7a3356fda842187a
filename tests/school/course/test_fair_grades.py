"""What a grade stands for: no guessed key, and no mistake that counts twice, on any machine."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minipar.school.course.checker import outcome, runner
from minipar.school.course.checker.ranks import sandbox
from minipar.school.course.checker.runner import Job, Worker, WorkerError
from minipar.school.course.grading import grade, program
from minipar.school.course.grading.assignment import load_assignment
from minipar.school.course.grading.program import Settings, grade_one, read_course
from minipar.school.course.grading.tasks import ASSIGNMENTS
from minipar.school.course.packaging.build import build

pytestmark = pytest.mark.skipif(not sandbox.is_supported(),
                                reason="the sandbox needs Linux on x86-64 or ARM")
TASK, ALL = "broadcast_chain", 15       # and its points


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("course") / "spring"
    build([TASK], "a key", out)
    return out


def test_time_for_all_cases(built, tmp_path, monkeypatch):
    """By a clock on which a case takes a second, however busy the machine is."""
    seconds, run_case = [0.0], grade.run_case

    def one_second(*case):
        seconds[0] += 1.0
        return run_case(*case)
    clock = SimpleNamespace(monotonic=lambda: seconds[0])
    monkeypatch.setattr(grade, "run_case", one_second)
    for module in (grade, program):
        monkeypatch.setattr(module, "time", clock)
    (tmp_path / f"{TASK}.py").write_text(
        f"import time\ndef {TASK}(comm, array, root):\n    time.sleep(60)\n")
    found = grade_one(read_course(built), tmp_path, Settings(seconds=1.0, budget=1.5)).outcomes
    assert [one.failure.error for one in found] == ["TooSlow"] * 2 + ["NoTimeLeft"] * 4


GUESS = """
import hashlib, sys
import numpy as np
def {task}(comm, array, root):
    files = sys.meta_path[0].files
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    for case, (p, n) in enumerate({cases}):
        for key in {keys}:
            seed = hashlib.sha256(f"{{key}}/{{digest}}/{task}/{{case}}".encode()).digest()[:6]
            rng = np.random.default_rng(int.from_bytes(seed))
            arrays = [rng.standard_normal(n) for _ in range(p)]
            if p == comm.size and np.array_equal(arrays[comm.rank], array):
                array[:] = arrays[root]
"""


def test_a_key_that_was_guessed_tells_no_value_that_is_graded(built, tmp_path):
    """A submission knows its own digest, and makes all ranks' arrays of a seed that it knows."""
    saved = json.loads((built / "instructor/course.json").read_text())
    sizes = [(case.ranks, case.sizes["n"]) for case in
             load_assignment(ASSIGNMENTS, [TASK], "a key").tasks[0].cases]

    def earned(*keys):
        text = GUESS.format(task=TASK, cases=sizes, keys=keys)
        return by_name(built, tmp_path / f"cheat{len(keys)}", **{TASK: text})[1][TASK]
    assert earned("a key", "") == 0
    assert earned(saved["secret"]) == ALL, "the cheat works if it knows"
    student = b"".join(path.read_bytes() for path in (built / "student").rglob("*")
                       if path.is_file())
    assert saved["secret"].encode() not in student and len(saved["secret"]) >= 32


def test_the_same_key_builds_the_same_package_and_another_secret(built, tmp_path):
    build([TASK], "a key", tmp_path / "again")
    assert (tmp_path / "again/student.zip").read_bytes() == (built / "student.zip").read_bytes()
    assert read_course(tmp_path / "again").secret != read_course(built).secret


WRONG = "def all_reduce(comm, array, op):\n    return array\n"


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A course with a task, and another one that calls it."""
    out = tmp_path_factory.mktemp("both") / "spring"
    build(["all_reduce", "megatron_forward"], "a key", out)
    return out


def by_name(course, folder, **files):
    for name, text in files.items():
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
    found = grade_one(read_course(course), folder, Settings(seconds=20.0)).outcomes
    return found, {task: earned for task, (earned, _) in outcome.by_task(found).items()}


@pytest.mark.parametrize("below", [WRONG, "def all_reduce(", "", None])
@pytest.mark.one_in(2)
def test_one_wrong_function_costs_its_own_points_only(both, tmp_path, below):
    right = (both / "instructor/solutions/megatron_forward.py").read_text()
    files = {} if below is None else {"all_reduce": below}
    _, points = by_name(both, tmp_path / "it", megatron_forward=right, **files)
    assert points == {"all_reduce": 0, "megatron_forward": 15}


def test_helpers_in_the_module_below_still_count(both, tmp_path):
    """With the solution in its place there would be no such helper."""
    names = ("all_reduce", "megatron_forward")
    below, right = ((both / f"instructor/solutions/{name}.py").read_text() for name in names)
    _, points = by_name(
        both, tmp_path / "it", all_reduce=below + "\n\nmine = all_reduce\n",
        megatron_forward=right.replace("import all_reduce", "import mine as all_reduce"))
    assert points == {"all_reduce": 18, "megatron_forward": 15}


def test_solutions_help_no_wrong_function_and_are_shown_to_none(both, tmp_path):
    below = (both / "instructor/solutions/all_reduce.py").read_text()
    body = ("import sys\ndef {0}({1}):\n    text = sys.meta_path[0].files['all_reduce']\n"
            "    print(text)\n    raise ValueError(text)\n")
    found, points = by_name(
        both, tmp_path / "it", all_reduce="from megatron_forward import all_reduce",
        megatron_forward=body.format("megatron_forward", "comm, x, w1, b1, w2, b2"))
    assert points == {"all_reduce": 0, "megatron_forward": 0}
    shown = "".join(outcome.describe(one) for one in found)
    assert "from megatron_forward" in shown and below.splitlines()[-2] not in shown


def test_numpy_may_be_on_pythonpath_alone(built, tmp_path):
    """The processes of the ranks have another environment, and find it, too."""
    with zipfile.ZipFile(built / "instructor/gradescope.zip") as archive:
        archive.extractall(tmp_path / "source")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    place = built / "instructor/solutions"

    def grade(*folders):
        return subprocess.run(
            [tmp_path / "bare/bin/python", "-P", "-m", "school.course.grading", tmp_path / "source",
             place],
            env={"PYTHONPATH": os.pathsep.join(map(str, folders))}, capture_output=True, text=True)
    run = grade(tmp_path / "source", Path(np.__file__).parents[1])
    assert run.returncode == 0 and run.stdout.endswith("15 of 15 points\n"), run.stderr


def test_a_worker_that_cannot_start_or_has_ended_says_so(monkeypatch):
    monkeypatch.setattr(runner, "NUMPY", "/none")
    monkeypatch.setattr(runner.sys, "executable", "/bin/false")
    with pytest.raises(WorkerError, match="/bin/false cannot start ranks: it ended"):
        Worker().start()
    monkeypatch.undo()
    with Worker() as started:
        started.process.kill()
        with pytest.raises(WorkerError, match="the process that starts ranks has ended"):
            started.run(Job({"f": "def f(comm): pass"}, "f", "f", [{}]))
