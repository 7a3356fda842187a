"""Milestones: right functions reach them, wrong ones are told where, and nothing hangs."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from minipar.commands.course import exercise as exercise_command
from minipar.commands.course import milestone as command
from minipar.commands.main import main
from minipar.school import toml_files
from minipar.school.course.milestones.attempt import compare, train
from minipar.school.course.milestones.goal import is_reached, milestones, reached
from minipar.school.exercises.source import as_block
from minipar.school.exercises.workspace import Workspace
from tests.school.exercises.conftest import PARSE, Learner, copy

RING = """
first = 0
chunks = [flat[start:stop] for start, stop in chunk_bounds(flat.size, comm.size)]
combine = find_operator(op)
p, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
for k in range(p - 1):
    goes, comes = chunks[(comm.rank - k - 1) % p], chunks[(comm.rank - k - 2) % p]
    arrived = np.empty_like(comes)
    comm.sendrecv(goes, right, arrived, left)
    combine(comes, arrived, out=comes)
for k in range(p - 1):
    comm.sendrecv(chunks[(comm.rank - k) % p], right, chunks[(comm.rank - k - 1) % p], left)
"""
REDUCE_SCATTER = """
p, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
for k in range(p - 1):
    goes, comes = chunks[(comm.rank - k - 1) % p], chunks[(comm.rank - k - 2) % p]
    arrived = np.empty_like(comes)
    comm.sendrecv(goes, right, arrived, left)
    combine(comes, arrived, out=comes)
"""
ALL_GATHER = """
p, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
for k in range(p - 1):
    comm.sendrecv(chunks[(comm.rank - k) % p], right, chunks[(comm.rank - k - 1) % p], left)
"""
OWN = {"ring_reduce_scatter": REDUCE_SCATTER, "ring_all_gather": ALL_GATHER,
       "ring_all_reduce": RING}


@pytest.fixture
def learner(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(toml_files.tomllib, "loads", PARSE)
    ignored = shutil.ignore_patterns("files", "bench", "*.pyc.*")
    for part in ("minipar", "tests/school/exercises"):
        shutil.copytree(exercise_command.ROOT / part, tmp_path / part, ignore=ignored,
                        copy_function=copy)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return Learner(tmp_path, capsys)


def write_all(learner, monkeypatch, own):
    """Start all exercises of the ring and write them; those that hide others are written last."""
    for name in ("ring_reduce_scatter", "ring_all_gather"):
        learner("start", name)
        learner.write(name, own[name])
        workspace = Workspace(learner.tree)
        entry = workspace.find(name)
        workspace.note_passed(entry, workspace.block(entry), True)
        learner("restore", name)
    learner("start", "ring_all_reduce")
    learner.write("ring_all_reduce", own["ring_all_reduce"])


def run(learner, *words):
    status = main(["milestone", *words])
    said = learner.capsys.readouterr()
    return status, said.out + said.err


@pytest.fixture
def one_run(monkeypatch):
    ring = milestones()["ring"]
    ring = dataclasses.replace(ring, runs={"ddp": f"{ring.runs['ddp']} --steps 2"})
    monkeypatch.setattr(command, "find", lambda name: ring)
    return ring


@pytest.mark.slow
def test_right_functions_reach_the_ring_in_all_its_runs(learner, monkeypatch):
    assert reached(learner.tree)["ring"] is False
    write_all(learner, monkeypatch, OWN)
    status, said = run(learner, "ring")
    assert status == 0 and "Reached. Four ranks sum their gradients through your ring" in said, said
    assert reached(learner.tree)["ring"] is True


def test_right_functions_reach_the_ring(learner, monkeypatch, one_run):
    write_all(learner, monkeypatch, OWN)
    status, said = run(learner, "ring")
    assert status == 0 and "Reached. Four ranks sum their gradients through your ring" in said, said
    assert (learner.tree / "out/milestones/ring.png").read_bytes().startswith(b"\x89PNG")
    assert is_reached(Workspace(learner.tree), one_run)
    learner.write("ring_all_reduce", RING.replace("first = 0", "first = 1"))
    assert not is_reached(Workspace(learner.tree), one_run), "the function has changed"


def test_a_wrong_function_is_named_with_its_line(learner, monkeypatch, one_run):
    wrong = ALL_GATHER.replace("comm.sendrecv(", "comm.send(").replace(
        ", chunks[(comm.rank - k - 1) % p], left", "")
    write_all(learner, monkeypatch, {**OWN, "ring_all_gather": wrong})
    status, said = run(learner, "ring")
    assert status == 1 and "deadlock: no rank can go on" in said
    assert "ring_all_gather alone in the reference: step 0: Deadlock" in said
    assert "ring_reduce_scatter alone" not in said and "ring_all_reduce alone" not in said


@pytest.mark.slow
def test_an_exception_is_told_with_the_line_of_the_file(learner, monkeypatch, one_run):
    write_all(learner, monkeypatch, {**OWN, "ring_all_reduce": "x = 0\nreturn 1 / x\n"})
    status, said = run(learner, "ring")
    assert status == 1 and "ZeroDivisionError: division by zero" in said
    assert "at minipar/comm/collectives/all_reduce.py:" in said and "return 1 / x" in said


def test_nothing_is_written_yet(learner, monkeypatch):
    status, said = run(learner, "ring")
    assert status == 2 and "still to write: ring_reduce_scatter, ring_all_gather" in said
    learner("start", "ring_all_gather")
    assert "ring_all_gather" in run(learner, "ring")[1], "a stub is not written"
    learner.write("ring_all_gather", "this is no python")
    status, said = run(learner, "ring")
    assert status == 2 and "all_gather.py, line" in said and "Traceback" not in said


def test_all_are_listed(capsys):
    assert main(["milestone"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in milestones())
    assert main(["milestone", "rong"]) == 2
    assert "there is no milestone 'rong': choose from ring, ddp" in capsys.readouterr().err


# Of each exercise a mutant that the training shows; others are for the exercise's own tests: the
# training never takes a maximum, has no empty stages, and no unused parameters.
SHOWN = {
    "ring": {"ring_reduce_scatter": "overwrites", "ring_all_gather": "stops_early",
             "ring_all_reduce": "averages"},
    "ddp": {"assign_buckets": "count_goes_on", "in_order_ready": "all_at_the_end",
            "accumulate_microbatches": "own_targets"},
    "zero": {"shard_overlap": "places_in_the_flat", "gather_parameters": "result_dropped",
             "transient_gradient_take": "whole_stays", "global_grad_norm": "own_shards_only",
             "fsdp_reshard_others": "nothing_goes", "fsdp_predict_next": "never"},
    "pipeline": {"cut_evenly": "greedy", "one_f_one_b": "gpipe",
                 "pipeline_post_recv": "wrong_boundary", "pipeline_shared": "not_summed"},
    "tensor": {"copy_to_backward": "passed_through", "row_linear": "forgotten_g",
               "heads_by_rank": "as_they_come", "vocabulary_cross_entropy": "own_sum",
               "gather_tokens": "gather_from", "shared_weight": "as_it_is"},
}
FAST = {"gpipe"}


def test_every_exercise_has_a_mutant_that_shows():
    assert {name: set(chosen) for name, chosen in SHOWN.items()} == {
        name: set(milestone.exercises) for name, milestone in milestones().items()}


@pytest.mark.parametrize("name, exercise, mutant", [
    pytest.param(name, exercise, mutant, marks=[pytest.mark.slow] * (mutant not in FAST))
    for name, chosen in SHOWN.items() for exercise, mutant in chosen.items()])
def test_training_shows_a_wrong_function(name, exercise, mutant):
    workspace = Workspace(Path(__file__).parents[3])
    entry = workspace.find(exercise)
    body = next(wrong.body for wrong in entry.mutants if wrong.name == mutant)
    differences = []
    for options in milestones()[name].runs.values():
        reference, wrong = train(workspace, workspace.patches([]), options), workspace.patches([])
        assert not reference.fault
        wrong.setdefault(entry.file, []).append((entry.function, as_block(body)))
        differences.append(compare(reference, train(workspace, wrong, options)))
        if differences[-1]:
            break
    assert any(differences)


@pytest.mark.slow
@pytest.mark.parametrize("name", milestones())
def test_the_reference_trains_alike_twice(name):
    workspace = Workspace(Path(__file__).parents[3])
    for options in milestones()[name].runs.values():
        first, second = (train(workspace, workspace.patches([]), options) for _ in range(2))
        assert first == second and not first.fault
