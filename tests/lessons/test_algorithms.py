"""Each function of a lesson equals the library's, and what the page says of a changed line is true.

The table of a lesson's functions and counterparts, and the check of its changed line, are in
algorithms/lesson_NN.py.  In a case `own` calls the lesson's function on this rank's data, `library`
its counterpart; both return arrays or lists of arrays.  (Those of lessons/micro.py: test_micro.py.)
"""

import re
import runpy
import sys
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from minipar.testing import worlds
from tests.lessons.test_answers import questions_of
from tests.lessons.test_form import LESSONS, ROOT, each_script, parts_of
from tests.support.sweeps import every

OF = {script: import_module(f"tests.lessons.algorithms.lesson_{script.name[:2]}")
      for script in LESSONS}
CASES = [pytest.param(script, case, id=f"{script.name[:2]}-{case.function}")
         for script, module in OF.items() for case in module.CASES]
CHANGE = re.compile(r"write `(?P<new>[^`]+)` in place of `(?P<old>[^`]+)`")


@pytest.fixture(autouse=True)
def lessons_on_path(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "lessons")
    monkeypatch.setattr(sys, "argv", ["lesson"])


@each_script
def test_every_function_is_in_the_table(script):
    defined = {node.name for node in parts_of(script)[1] if hasattr(node, "name")}
    assert defined == {case.function for case in OF[script].CASES} | getattr(
        OF[script], "PARTS", set())


@worlds(1, 3, 4, mpi=(), slow=(2, 5))
@pytest.mark.parametrize("script, case", CASES)
def test_a_function_equals_its_counterpart(world, script, case):
    compare(world, script, case)


@worlds(mpi=(4,))
@pytest.mark.parametrize("script, case", every(4, CASES))
@pytest.mark.one_in(3)
def test_it_does_on_real_ranks(world, script, case):
    compare(world, script, case)


def compare(world, script, case):
    names = runpy.run_path(str(script))

    def body(comm):
        for size in case.sizes:
            found = case.own(names[case.function], comm, size, names)
            right = case.library(comm, size)
            for one, other in zip(as_list(found), as_list(right), strict=True):
                assert np.shape(one) == np.shape(other), size
                np.testing.assert_allclose(one, other, rtol=0, atol=case.tolerance)
    world.run(body)


def as_list(result: Any) -> list:
    """The arrays of a result; a number or None counts as one."""
    if result is None:
        return [np.zeros(0)]
    return list(result) if isinstance(result, list | tuple) else [np.asarray(result)]


@each_script
def test_a_changed_line(script):
    """A question says "write `NEW` in place of `OLD`": the change is made, and the answer true."""
    changes = [match for question in questions_of(script) if (match := CHANGE.search(question))]
    assert changes, "a question changes a line"
    algorithm, main, rest = script.read_text("utf-8").partition("\ndef main(")
    for change in changes:
        assert algorithm.count(change["old"]) == 1, change["old"]
        algorithm = algorithm.replace(change["old"], change["new"])
    names = {"__name__": script.stem, "__file__": str(script)}
    exec(compile(algorithm + main + rest, str(script), "exec"), names)
    OF[script].check_change(names)
