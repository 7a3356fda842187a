"""What must not pass: wrong rows, missing records, wrong updates, NaN, replicas that drift.

A recording is what a program on simulated ranks records; each test spoils one.
"""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.compare_runs.difference import compare_recordings
from minipar.compare_runs.recorder import Recorder, read
from minipar.compare_runs.run import ProgramRun, Side, TrainingPlan, adamw
from minipar.nn import GPT
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.testing import find_difference, record
from tests.compare_runs.programs import BATCHES, CONFIG, compared, on_mesh, plain

# 1. Each row of the global batch is read once.

class RowTwice(DistributedDataParallel):
    def rows(self, num_rows):
        mine = super().rows(num_rows)
        return range(mine.start - bool(self.dp.rank), mine.stop)


class LastDropped(DistributedDataParallel):
    def rows(self, num_rows):
        return super().rows(num_rows - 1)


class FirstRows(DistributedDataParallel):
    def rows(self, num_rows):
        return range(num_rows // self.dp.size)


class LastTwice(DistributedDataParallel):
    def rows(self, num_rows):
        return [*super().rows(num_rows), -1] if self.dp.rank == 0 else super().rows(num_rows)


class RowsByStage(DistributedDataParallel):
    def rows(self, num_rows):
        return range(3) if self.comm.rank else range(3, 6)


class NoRows(DistributedDataParallel):
    def rows(self, num_rows):
        return range(num_rows) if self.dp.rank == 0 else range(0)


ROWS = {    # mesh, strategy, microbatches; the ranks, words of the cause
    "a row twice": ({"dp": 2}, RowTwice, 1, (0, 1), ["read 2 times: row 2 of 6"]),
    "twice, in a pipeline": ({"pp": 2, "dp": 2}, RowTwice, 2, (0, 1, 2, 3),
                             ["read 2 times: row 2 of 6"]),
    "the last dropped": ({"dp": 2}, LastDropped, 1, (), ["read 0 times: row 5 of 6"]),
    "the last dropped, in a pipeline": ({"pp": 2}, LastDropped, 2, (), ["times: row 5 of 6"]),
    "the first for all": ({"dp": 3}, FirstRows, 1, (0, 1, 2),
                          ["read 3 times: rows 0, 1 of 6",
                           "read 0 times: rows 2, 3, 4, 5 of 6"]),
    "the last twice": ({"dp": 2}, LastTwice, 1, (0, 1), ["read 2 times: row 5 of 6"]),
    "others by stage": ({"pp": 2}, RowsByStage, 1, (0, 1),
                        ["rank 1 reads rows 0, 1, 2, rank 0", "dp rows 3, 4, 5"]),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_are_not_read_once(name):
    mesh, kind, microbatches, ranks, words = ROWS[name]
    found = compared(mesh, kind, microbatches)
    assert found.verdict == "different" and found.first.key[1:] == ("layout", "rows of the batch")
    assert found.first.ranks == ranks and all(word in found.cause for word in words), str(found)


def test_a_rank_without_rows_is_no_mistake():
    for mesh in {"dp": 2}, {"dp": 2, "pp": 2}:
        found = compared(mesh, NoRows, 2)
        assert found.verdict == "equal", str(found)


# 2. What is missing.

def recorded(program, ranks=1, dtype="float32", steps=2, optimizer=adamw):
    """The records of a program, of all ranks."""
    def main(comm):
        run = ProgramRun(comm, Side(program, ranks), dtype, TrainingPlan(BATCHES, steps, optimizer))
        return [each for step in range(steps) for each in run.step(step)]
    return Cluster(ranks).run(main)[0][0]


@pytest.fixture(scope="module")
def left():
    return recorded(plain)


@pytest.fixture(scope="module")
def halves():
    return recorded(*on_mesh({"tp": 2}))


def test_two_recordings_are_rounding(left, halves):
    found = compare_recordings(left, halves)
    assert found.verdict == "rounding", str(found)
    assert "assumed" in str(found) and " of " in str(found)


def keep(records, wanted):
    """The records that are wanted."""
    return [each for each in records if wanted(each)]


LOST = {        # what is kept of the records; what is said
    "nothing": (lambda each: False, "recording has no ranks"),
    "a step": (lambda each: each.step == 0, "has steps? 0.* one steps? 0"),
    "a rank": (lambda each: each.rank == 0, "has rank 0 of 2"),
    "the first rank": (lambda each: each.rank == 1, "has rank 1 of 2"),
}


@pytest.mark.parametrize("name", LOST)
def test_a_recording_that_is_not_whole_is_refused(left, halves, name):
    wanted, said = LOST[name]
    with pytest.raises(ValueError, match=said):
        compare_recordings(left, keep(halves, wanted))
    if name != "a step":
        with pytest.raises(ValueError, match=said):
            compare_recordings(keep(halves, wanted), left)


@pytest.mark.parametrize("phase", ["loss", "gradient", "norm", "state", "parameter"])
@pytest.mark.parametrize("step", [0, 1])
def test_an_array_that_one_side_lacks_is_different(left, halves, phase, step):
    name = next(each.name for each in left if each.phase == phase)
    fewer = keep(halves, lambda each: each.key != (step, phase, name))
    for pair in (left, fewer), (fewer, left):
        found = compare_recordings(*pair)
        assert found.verdict == "different" and found.first.key == (step, phase, name), str(found)
        assert f"no rank on the {'right' if pair[0] is left else 'left'} has it" in found.cause


@pytest.mark.parametrize("phase", ["forward", "backward", "gradient", "parameter", "state"])
def test_half_of_a_box_that_is_missing_is_different(left, halves, phase):
    key = next(each.key for each in halves if each.phase == phase and each.rank == 1
               and each.values.size < np.prod(each.shape))
    fewer = keep(halves, lambda each: each.rank != 1 or each.key != key)
    for pair in (left, fewer), (fewer, left):
        found = compare_recordings(*pair)
        assert found.verdict == "different" and found.first.key == key, str(found)
        assert "are on no rank" in found.cause


def test_outputs_of_other_names_are_different(left):
    renamed = [each._replace(name=f"model.{each.name}") if each.phase == "forward" else each
               for each in left]
    found = compare_recordings(left, renamed)
    assert found.verdict == "different" and found.first.key[:2] == (0, "forward"), str(found)
    assert "no rank on the right has it" in found.cause


def test_an_output_that_one_side_lacks_is_told(left, halves):
    fewer = keep(halves, lambda each: each.key != (0, "forward", "h.0.mlp"))
    found = compare_recordings(left, fewer)
    assert found.verdict == "rounding" and "not compared: forward of h.0.mlp" in str(found)


def test_a_step_of_nothing_does_not_make_rounding_equal():
    def program(factor):
        def main(comm, dtype):
            record("x", np.arange(3.0, dtype=dtype) * factor)
        return main
    found = find_difference(program(1), program(1 + 1e-14), steps=3, ranks=(1, 1))
    assert found.verdict == "rounding", str(found)
    with pytest.raises(ValueError, match="nothing was recorded"):
        find_difference(lambda comm: None, lambda comm: None)


def test_a_name_that_one_program_lacks_is_different():
    found = find_difference(lambda comm: record("x", [1.0]), lambda comm: record("y", [1.0]))
    assert found.verdict == "different" and found.first.key == (0, "forward", "x"), str(found)


def test_files_that_are_no_whole_recording(tmp_path):
    each = Recorder()
    each.record("x", np.arange(100.0))
    whole = each.write(tmp_path / "a.npz").read_bytes()
    for content in whole[:-40], whole[:200], b"", b"no recording", whole[:300] + b"?" + whole[301:]:
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match="is no whole recording"):
            read(tmp_path / "a.npz")


def test_recordings_that_do_not_fit_together(left):
    double = recorded(plain, dtype="float64")
    with pytest.raises(ValueError, match="left recording has float32, the right one float64"):
        compare_recordings(left, double)
    assert compare_recordings(left, left, double).verdict == "rounding"
    with pytest.raises(ValueError, match="leave --exact out"):
        compare_recordings(double, double, double)
    with pytest.raises(ValueError, match="--exact has no .*loss"):
        compare_recordings(left, left, keep(double, lambda each: each.phase != "loss"))
    wider = [each._replace(shape=(9,), box=(((0, 9),),), values=np.ones(9))
             if each.phase == "forward" else each for each in double]
    with pytest.raises(ValueError, match="--exact has no forward of "):
        compare_recordings(left, left, wider)
    other = [each._replace(shape=(9, *each.shape[1:])) if each.rank == 1 and each.phase == "norm"
             else each for each in recorded(*on_mesh({"dp": 2}))]
    with pytest.raises(ValueError, match="norm: ranks recorded it with the global shapes"):
        compare_recordings(left, other)


# 3. Updates in float32.

def with_rate(rate):
    return lambda slabs: adamw(slabs).__class__(slabs, lr=rate, weight_decay=0.1)


@pytest.mark.parametrize("rate", [4e-3, 1.1e-3, 0.0])
@pytest.mark.parametrize("measured", [False, True])
def test_another_learning_rate_is_no_rounding(left, rate, measured):
    right = recorded(plain, optimizer=with_rate(rate))
    exact = recorded(plain, dtype="float64") if measured else []
    found = compare_recordings(left, right, exact)
    assert found.verdict == "different" and found.first.key[:2] == (0, "parameter"), str(found)


def test_an_element_whose_gradient_is_rounding_may_move_the_other_way():
    def run(sign, small):
        each = Recorder()
        gradient = np.array([1.0, -2.0, small * sign], np.float32)
        each.record("w", np.ones(3, np.float32), "initial")
        each.record("w", gradient, "gradient")
        each.record("w", 1 - np.float32(1e-3) * np.sign(gradient), "parameter")
        return each.records
    assert compare_recordings(run(1, 1e-9), run(-1, 1e-9)).verdict == "rounding"
    found = compare_recordings(run(1, 1e-9), [
        each if each.phase != "parameter" else each._replace(values=each.values + np.float32(
            [1e-3, 0, 0])) for each in run(1, 1e-9)])
    assert found.verdict == "different" and found.first.key[1] == "parameter"


# 4. NaN.

def spoiled(records, phase, rank=0, value=np.nan):
    """The records with a NaN in the last array of a phase in the first step."""
    at = max(i for i, each in enumerate(records)
             if each.phase == phase and each.step == 0 and each.rank == rank)
    values = records[at].values.copy()
    values.reshape(-1)[-1] = value
    return [*records[:at], records[at]._replace(values=values), *records[at + 1:]]


@pytest.mark.parametrize("phase", ["forward", "loss", "gradient", "parameter"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_numbers_are_different_on_either_side(left, phase, value):
    bad = spoiled(left, phase, value=value)
    for pair, words in (((bad, left), "on the left"), ((left, bad), "on the right"),
                        ((bad, bad), "on both sides")):
        found = compare_recordings(*pair)
        assert found.verdict == "different" and found.first.key[:2] == (0, phase), str(found)
        assert "no numbers" in found.cause and words in found.cause, found.cause


def test_no_numbers_in_float64_and_in_float32():
    class NaN(DistributedDataParallel):
        def finish(self):
            super().finish()
            self.slabs[0].grad[-1] = np.nan
    program, _ = on_mesh({"dp": 1}, NaN)
    for sides in (program, plain), (plain, program), (program, program):
        found = find_difference(*sides, BATCHES, ranks=(1, 1), steps=1)
        assert found.verdict == "different" and "no numbers" in found.cause, str(found)


def test_a_step_that_both_skip_after_an_overflow_is_told(left):
    """Scaled gradients of float16 that are too large: no norm, no step; what was not compared."""
    double = recorded(plain, dtype="float64")
    low = keep(left, lambda each: each.key[:2] != (0, "norm"))
    for phase in "backward", "local gradient", "gradient":
        low = spoiled(low, phase, value=np.inf)
    found = compare_recordings(low, low, double)
    assert found.verdict == "rounding" and "not compared: backward of" in str(found), str(found)
    assert compare_recordings(left, low, double).verdict == "different"


# 5. Replicas that drift.

class Drifts(DistributedDataParallel):
    """From the second step on rank 1 has other parameters."""

    def parameters_changed(self):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 2 and self.comm.rank == 1:
            self.slabs[0].data[:3] += 1e-4
        super().parameters_changed()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_replicas_that_drift_are_named_on_their_side(side, dtype):
    drifting, right = on_mesh({"dp": 3}, Drifts)[0], on_mesh({"dp": 3})[0]
    programs = (drifting, right) if side == "left" else (right, drifting)
    found = find_difference(*programs, BATCHES, ranks=(3, 3), steps=4, dtype=dtype)
    assert found.verdict == "different" and found.first.key[:2] == (1, "parameter"), str(found)
    assert found.first.ranks == (1,) and ("of the left" in str(found)) == (side == "left")
    assert "replicas drift from step 1 on" in found.cause, found.cause


def test_the_first_replica_may_be_the_one_that_drifts(left):
    pair = recorded(*on_mesh({"dp": 2}), steps=1)
    bad = spoiled(pair, "parameter", rank=0, value=7.0)
    assert compare_recordings(pair, bad).first.ranks == (0,)
    found = compare_recordings(bad, pair)
    assert found.first.ranks == (0,) and "of the left" in str(found), str(found)


# An object in the place of a program.

class Mine:
    def __init__(self, divisor=72.0, **options):
        self.model = GPT(CONFIG.__class__(**vars(CONFIG) | {"dropout": 0.0})).initialize(0)
        self.divisor = divisor

    def forward_backward(self, microbatches):
        losses = [self.model.loss(m.inputs, m.targets, self.divisor) for m in microbatches]
        for loss in losses:
            loss.backward()
        return sum(losses[1:], losses[0])


def test_objects_of_ones_own_are_compared():
    left, right = Mine(), Mine()
    before = left.model.wte.weight.data.copy()
    found = find_difference(left, right, BATCHES, ranks=(1, 1), microbatches=(1, 2), steps=2)
    assert found.verdict == "rounding", str(found)
    np.testing.assert_array_equal(left.model.wte.weight.data, before)
    found = find_difference(left, Mine(36.0), BATCHES, ranks=(1, 1), steps=1)
    assert found.verdict == "different" and found.first.key == (0, "loss", "loss"), str(found)


@pytest.mark.parametrize("given, said", [
    (Mine(), "is an object on 2 ranks"), (7, "7 is not a callable"),
    (lambda comm: object(), "cannot be trained"),
    (lambda comm: type("M", (), {"forward_backward": print})(), "cannot be trained")])
def test_what_is_no_program_is_refused(given, said):
    with pytest.raises((TypeError, ValueError), match=said):
        find_difference(plain, given, BATCHES)
