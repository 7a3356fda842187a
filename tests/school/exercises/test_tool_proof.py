"""`exercise prove`: it must find what is wrong with an exercise, and change nothing."""

from dataclasses import replace

import pytest

from minipar.school.exercises import entries, source
from minipar.school.exercises.judge import judge
from minipar.school.exercises.workspace import Workspace


@pytest.mark.slow
def test_the_proof_finds_what_is_wrong(learner):
    def edit(topic, old, new):
        path = learner.tree / entries.catalog_file(topic)
        path.write_text(path.read_text().replace(old, new, 1))

    edit("optimizers", "m *= beta1\nm += (1 - beta1) * g\n", "moment *= beta1\n")
    edit("autograd", "return [lambda: g * y() * (1 - y())]\n",
         "return [lambda: (g - row_dot(g, y())) * y()]\n")
    (learner.tree / "tests/school/exercises/test_exercise_optim.py").write_text(
        (learner.tree / "tests/school/exercises/test_exercise_optim.py").read_text().replace(
            "num_warmup + 1", "num_warmup").replace("[0.25, 0.5, 0.75, 1.0]", "[0, 0, 0, 0]"))
    before = learner.snapshot()
    status, said = learner("prove", "softmax_backward", "adam_update", "warmup_cosine")
    assert status == 1
    assert "softmax_backward: diagonal_only passes, so the tests do not tell it from" in said
    assert "adam_update: without_correction must fail because of its result, but" in said
    assert "NameError" in said or "UnboundLocalError" in said
    assert "warmup_cosine: reference must pass, but tests/school/exercises/" in said
    assert learner.snapshot() == before, "prove changed the work tree"


@pytest.mark.slow
def test_a_variant_that_never_ends_is_named(learner):
    exercise = Workspace(learner.tree).find("copy_to_backward")
    endless = [(exercise.function, source.as_block("while True:\n    pass"))]
    outcomes = judge(learner.tree, exercise, {"endless": {exercise.file: endless}, "next": {}},
                     limit=2)
    assert outcomes["endless"].failures[0].error == "EndlessLoop"
    assert "next" not in outcomes


def test_a_variant_is_found_by_whoever_imports_its_module_from_the_package(learner):
    test = learner.tree / "tests/school/exercises/test_exercise_by_module.py"
    test.write_text("import numpy as np\nfrom minipar.number_formats import rounding\n\n\n"
                    "def test_one():\n"
                    "    assert rounding.nearest_by_bits(np.array([11]), 3) == 8\n")
    exercise = replace(Workspace(learner.tree).find("nearest_by_bits"),
                       tests=("tests/school/exercises/test_exercise_by_module.py::test_one",))
    wrong = [(exercise.function, source.as_block("return bits << drop"))]
    outcomes = judge(learner.tree, exercise, {"reference": {}, "wrong": {exercise.file: wrong}})
    assert outcomes["reference"].passed and not outcomes["wrong"].passed


def test_a_mutant_that_is_no_python_is_refused(learner):
    path = learner.tree / entries.catalog_file("tensor parallelism")
    path.write_text(path.read_text().replace("return [g]\n", "return [g\n", 1))
    status, said = learner("prove", "copy_to_backward")
    assert status == 2 and "[copy_to_backward.mutants.passed_through]" in said, said


def test_a_mutant_that_names_a_method_there_is_not_is_no_result(learner):
    path = learner.tree / entries.catalog_file("inference")
    path.write_text(path.read_text().replace("self.free[block] = None", "self.unused[block] = None",
                                             1))
    status, said = learner("prove", "block_release")
    assert status == 1 and "must fail because of its result" in said and "AttributeError" in said
