"""`start` hides what would be the answer: other functions, and formulas in comments."""

import pytest

from minipar.commands.course import exercise as command
from minipar.school.exercises import entries, source
from minipar.school.exercises.workspace import Workspace

EXERCISES = entries.load(command.ROOT)
FILES = {name: "minipar/comm/collectives/" + name
         for name in ("all_reduce.py", "reduce_scatter.py", "all_gather.py")}


@pytest.mark.slow
def test_the_halves_of_a_ring_all_reduce_are_hidden(learner):
    status, said = learner("start", "ring_all_reduce")
    assert status == 0
    assert "Easier after: ring_reduce_scatter, ring_all_gather" in said
    for file in ("reduce_scatter.py", "all_gather.py"):
        assert f"Hidden until you restore: ring of {FILES[file]}" in said
        assert "sendrecv(sent" not in (text := (learner.tree / FILES[file]).read_text())
        assert "sendrecv(known" not in text
    learner.write("ring_all_reduce", """
        chunks = [flat[start:stop] for start, stop in chunk_bounds(flat.size, comm.size)]
        ring_reduce_scatter(comm, chunks, find_operator(op))
        ring_all_gather(comm, chunks)
        """)
    status, said = learner("check", "ring_all_reduce")
    assert status == 1 and "NotImplementedError: hidden by exercise ring_all_reduce" in said
    learner.write("ring_all_reduce", EXERCISES["ring_all_reduce"].solution)
    status, said = learner("check", "ring_all_reduce")
    assert status == 0 and "4 points" in said


def test_what_is_hidden_is_hidden_from_the_check_too(learner):
    """Even if it was put back into the file."""
    path = learner.tree / FILES["all_gather.py"]
    reference = path.read_text()
    learner("start", "ring_all_reduce")
    path.write_text(reference)
    learner.write("ring_all_reduce", "ring_all_gather(comm, [flat] * comm.size)")
    assert "hidden by exercise ring_all_reduce" in learner("check", "ring_all_reduce")[1]
    learner("restore", "ring_all_reduce")
    assert path.read_text() == reference


@pytest.mark.slow
def test_two_exercises_that_cut_one_function_take_turns(learner):
    learner("start", "ring_all_gather")
    learner.write("ring_all_gather", "return None       # mine")
    before = learner.snapshot()
    status, said = learner("start", "ring_all_reduce")
    assert status == 2 and said == (
        "minipar: ring_all_gather is started and also replaces ring of minipar/comm/collectives/"
        "all_gather.py: restore ring_all_gather first (your version is kept)\n")
    assert learner.snapshot() == before
    learner("start", "global_grad_norm")
    assert "global_grad_norm is started" in learner("start", "norm_of_parts")[1]
    learner("restore", "ring_all_gather")
    assert learner("start", "ring_all_reduce")[0] == 0
    assert "ring_all_reduce is started" in learner("start", "ring_all_gather")[1]
    # what is hidden has its reference, for proofs and for other exercises
    workspace = Workspace(learner.tree)
    for name in ("ring_all_gather", "ring_reduce_scatter"):
        assert "sendrecv(" in workspace.reference(EXERCISES[name].targets[0])
    assert learner("prove", "ring_all_gather")[0] == 0


def test_what_was_written_into_a_hidden_function_is_kept(learner):
    learner("start", "one_f_one_b")
    path = learner.tree / "minipar/parallel/pipeline/schedule/schedules.py"
    text = path.read_text()
    path.write_text(text.replace(source.hidden_body(EXERCISES["one_f_one_b"]), "return []"))
    assert learner("restore", "one_f_one_b")[0] == 0
    assert "return []" in (learner.tree / ".exercises/one_f_one_b.hidden1.yours.py").read_text()
    reference = command.ROOT / "minipar/parallel/pipeline/schedule/schedules.py"
    assert path.read_text() == reference.read_text()


@pytest.mark.slow
def test_a_mutant_must_not_fail_by_what_is_hidden(learner):
    path = learner.tree / entries.catalog_file("collectives")
    head, tail = path.read_text().split("[ring_all_reduce.mutants.whole_arrays]")
    path.write_text(head + "[ring_all_reduce.mutants.whole_arrays]" + tail.replace(
        "body = '''\n", "body = '''\nring_all_gather(comm, [flat])\n", 1))
    status, said = learner("prove", "ring_all_reduce")
    assert status == 1
    assert "whole_arrays must fail because of its result, but" in said and "hidden by" in said


@pytest.mark.parametrize("name, answer", [
    ("softmax_backward", "g - Σ g y"), ("matmul_backward", "g bᵀ"), ("matmul_backward", "xᵀ g"),
    ("layer_norm_backward", "mean(d u)"), ("layer_norm_backward", "Σ g u"),
    ("straight_through", "dx = g inside"),
    ("advance_lane", "e ← max"), ("row_linear", "added once"),
    ("zero_points", "K z y"), ("in_flight", "needs it while it runs"),
    ("stochastic_rounding", "probability d"),
    ("one_f_one_b", "zip(forwards"), ("ring_all_reduce", "sendrecv(known")])
@pytest.mark.one_in(3)
def test_the_answer_goes_with_the_body(learner, name, answer):
    files = {learner.tree / target.file for target in EXERCISES[name].targets}
    assert any(answer in file.read_text() for file in files)
    learner("start", name)
    assert not any(answer in file.read_text() for file in files)
