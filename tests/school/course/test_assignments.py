"""Every assignment: its tasks are proven, its texts are complete, its numbers are true."""

import dataclasses
import math
import re

import pytest

from minipar.school.course.checker.broker import Delivery
from minipar.school.course.checker.compare import Measure
from minipar.school.course.checker.service import RunResult
from minipar.school.course.grading.assignment import load_assignment, names_in
from minipar.school.course.grading.proof import prove, try_nothing, try_version
from minipar.school.course.grading.tasks import ASSIGNMENTS, make_case, variants
from minipar.school.exercises import entries

NAMES = names_in(ASSIGNMENTS)
TASKS = [(name, task.name) for name in NAMES
         for task in load_assignment(ASSIGNMENTS, [name], "a key").tasks]
EXERCISES = entries.load(ASSIGNMENTS.parents[3])


@pytest.mark.parametrize("name, task_name", TASKS, ids=[task for _, task in TASKS])
@pytest.mark.one_in(3)
def test_one_draw_is_proven(worker, name, task_name):
    """And one of its mutants is told; `make test-all` tries all of them."""
    assignment = load_assignment(ASSIGNMENTS, [name], "a key")
    task = next(task for task in assignment.tasks if task.name == task_name)
    mutant, wrong = next(iter(task.mutants.items()))
    versions = {"solution": task.solution, "stub": "raise NotImplementedError", mutant: wrong.body}
    for version, body in versions.items():
        finding = try_version(task, version, body, worker, assignment.supplied)
        assert not finding.surprise, finding


@pytest.mark.slow
@pytest.mark.parametrize("name, task_name", TASKS, ids=[task for _, task in TASKS])
def test_every_draw_is_proven(worker, name, task_name):
    supplied = load_assignment(ASSIGNMENTS, [name], "a key").supplied
    for findings in prove(ASSIGNMENTS / name / "tasks.toml", worker, supplied,
                          (task_name,)):
        assert not [finding for finding in findings if finding.surprise]


@pytest.mark.parametrize("name", NAMES)
def test_an_assignment_is_whole(name):
    assignment = load_assignment(ASSIGNMENTS, [name], "a key")
    [part] = assignment.parts
    questions = re.findall(r"^(\d+)\. \((\d+) points\)", part.handout, re.MULTILINE)
    answers = re.findall(r"^## (\d+)\. .+ \((\d+)\)$", part.rubric, re.MULTILINE)
    assert len(questions) >= 4 and questions == answers, "each question has its answer"
    total = sum(int(points) for _, points in questions)
    assert f"{total} points for the questions" in part.rubric
    for grade in "ABCF":
        assert part.rubric.count(f"**{grade}**") >= len(questions), "a sample of each grade"
    assert 3 <= len(assignment.tasks) <= 8
    assert 0.5 < part.meta["hours"] / (sum(task.minutes for task in assignment.tasks) / 60) < 3
    for task in assignment.tasks:
        assert not task.exercise or task.exercise in EXERCISES, task.exercise
        assert 8 <= task.points <= 25 and 60 <= len(task.text.split()) <= 260, task.name


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_does_nothing_earns_nothing(name):
    for task in load_assignment(ASSIGNMENTS, [name], "a key").tasks:
        assert not try_nothing(task).surprise, try_nothing(task)


@pytest.mark.parametrize("case, result", [
    ({"ranks": 1, "n": 5, "root": 0}, "None"), ({"ranks": 1, "n": 5, "root": 0}, "array")])
def test_a_case_that_is_given_away_is_told(case, result):
    """The chain of one rank has nothing to do; here the result is returned, too."""
    [task] = [task for task in variants(ASSIGNMENTS / "collectives/tasks.toml")
              if task.name == "broadcast_chain"][:1]
    if result == "array":
        task = dataclasses.replace(task, code={**task.code, "expected": task.code[
            "expected"].replace('"array":', '"return":')})
    given = dataclasses.replace(task, cases=(make_case("here", 0, dict(case, points=3)),))
    assert try_nothing(given).surprise == ("earns 3 points: 1 rank, n 5, root 0: "
                                           + result), try_nothing(given)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_drawn_in_every_variant(name):
    for task in variants(ASSIGNMENTS / name / "tasks.toml"):
        assert "$" not in task.text.replace("$$", "") and "$" not in task.title


def test_the_numbers_of_the_rubric_on_collectives():
    alpha, beta, n = 1e-5, 1e-10, 4 * 2**20

    def chain(k):
        return (7 + k - 1) * (alpha + n * beta / k)
    assert min(range(1, 100), key=chain) == 16 and 15.8 < math.sqrt(6 * n * beta / alpha) < 15.95
    assert round(chain(16) * 1e6) == 797 and round(chain(1) * 1e6) == 3006
    text = (ASSIGNMENTS / "collectives" / "rubric.md").read_text(encoding="utf-8")
    for size in (2**10, 2**20, 2**30):
        for seconds in (3 * alpha + 3 * size * beta, 14 * alpha + 1.75 * size * beta):
            shown = f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
            assert shown in text, shown
    assert math.isclose(11 * alpha / (1.25 * beta), 880_000)


FREE_SUMS = """
total = np.zeros_like(array)
for i, value in enumerate(array):
    for bit in range(16):
        mine = int(value) >> bit & 1
        group = comm.split(mine)
        total[i] += (group.size if mine else comm.size - group.size) << bit
return total
"""


def test_the_capstone_on_bytes_counts_what_costs_none(worker):
    task = load_assignment(ASSIGNMENTS, ["fewest_bytes"], "a key").tasks[0]
    sums = try_version(task, "sums by the sizes of groups", FREE_SUMS, worker, {})
    assert sums.points == 0 and "more than 16 splits" in sums.failure
    empty = [Delivery(0, 1, 0, 1)] * 3
    assert task.measure(task.cases[0]).apply(RunResult([None] * 2, empty)) == (None, {"bytes": 48})


def test_the_numbers_of_the_rubric_on_model_parallelism():
    n, d, k, p = 4096, 4096, 16384, 8
    text = (ASSIGNMENTS / "model_parallelism" / "rubric.md").read_text(encoding="utf-8")
    for num_bytes in (7 / 8 * n * (k + d) * 2, 2 * 7 / 8 * n * d * 2, 7 / 8 * n * k * 2):
        assert f"{num_bytes / 1e6:.1f} MB" in text
    assert (k + d) / (2 * d) == 2.5 and (8 + p // 2 - 1) * 3 == 33 and f"{900 / 105:.1f} %" in text
    task = load_assignment(ASSIGNMENTS, ["best_schedule"], "a key").tasks[0]
    space: dict = {}
    exec(task.module(task.solution), space)
    for cap, wanted in ((4, 29), (5, 27), (8, 27)):
        sizes = {"stages": 4, "m": 8, "costs": (1, 1, 1), "cap": [cap] * 4}
        rows = space["best_schedule"](4, 8, (1, 1, 1), [cap] * 4)
        measure = task.measure(task.cases[0])._replace(sizes=sizes)
        assert measure.apply(RunResult([{"return": rows}])) == (None, {"time": wanted})


@pytest.mark.parametrize("rows, sentence", [
    (None, "not of the form"), ([], "the schedule has 0 rows, but there are 4 stages"),
    ([[("F", 0)]] * 4, "stage 0 does F for microbatches [0], but there are 0 … 7"),
    ([[(k, i) for i in range(8) for k in "IFW"]] * 4, "stage 0 does I of microbatch 0 before"),
    ([[(k, i) for k in "FIW" for i in range(8)]] * 4, "stage 0 keeps 5 microbatches at F"),
    ([[(k, i) for i in range(8) for k in "FIW"]] + [[(k, i) for i in range(7, -1, -1)
     for k in "FIW"]] * 3, "stands still: stage 0 before ('I', 0)"),
])
def test_a_schedule_that_breaks_a_rule_is_told(rows, sentence):
    task = load_assignment(ASSIGNMENTS, ["best_schedule"], "a key").tasks[0]
    failure, _ = task.measure(task.cases[0]).apply(RunResult([{"return": rows}]))
    assert failure.error == "Invalid" and sentence in failure.message, failure.message


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_measure_that_is_not_finite_is_a_failure(value):
    """JSON has neither: Gradescope would refuse all results of the submission."""
    failure, numbers = Measure("return {'time': results[0]['return']}", {}, {}).apply(
        RunResult([{"return": float(value)}]))
    assert failure.error == "Invalid" and "which is not finite" in failure.message and not numbers
