"""Correct layouts are never called different, in float64 and in float32."""

import numpy as np
import pytest

from minipar.comm.mesh import DeviceMesh
from minipar.data.batches import Batches
from minipar.nn import MLP
from minipar.parallel.registry import STRATEGIES, make_strategy
from minipar.parallel.strategy import Strategy
from minipar.testing import find_difference, record
from tests.compare_runs.programs import BATCHES, CONFIG, GPT, compared, plain

PLAIN = [name for name, entry in STRATEGIES.items() if entry.specification is Strategy]
MESHES = [{"dp": 2, "tp": 2}, {"dp": 3}, {"cp": 2, "dp": 2}, {"cp": 2}, {"pp": 2, "tp": 2},
          {"tp": 2}, {"pp": 2, "dp": 2}, {"pp": 2}]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.one_in(3)
def test_every_strategy(name, dtype):
    def mine(comm, dtype):
        return make_strategy(name, GPT(CONFIG).initialize(0, dtype), comm)
    found = find_difference(plain, mine, BATCHES, ranks=(1, 2), dtype=dtype, microbatches=(1, 2))
    assert found.verdict == {"float64": "equal", "float32": "rounding"}[dtype], str(found)
    assert 0 < found.distance < 1e-10


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.one_in(4)
def test_meshes(mesh):
    found = compared(mesh, dtype="float32", microbatches=2, steps=2)
    assert found.verdict == "rounding" and found.cause == "", str(found)
    phases = {gap.key[1] for gap in found.gaps}
    assert phases == {"initial", "forward", "loss", "backward", "local gradient", "gradient",
                      "norm", "state", "parameter"}


@pytest.mark.parametrize("schedule", ["gpipe", "zb_h1", "interleaved"])
@pytest.mark.one_in(2)
def test_schedules(schedule):
    found = compared({"pp": 2}, microbatches=4, schedule=schedule)
    assert found.verdict == "equal", str(found)


def test_sequence_parallelism():
    assert compared({"tp": 2}, sequence_parallel=True).verdict == "equal"


def test_two_layouts_of_many_ranks():
    def on(mesh):
        return lambda comm, dtype: make_strategy("zero1", GPT(CONFIG).initialize(0, dtype),
                                                 DeviceMesh(comm, **mesh))
    found = find_difference(on({"dp": 2}), on({"dp": 3}), BATCHES, ranks=(2, 3), steps=1)
    assert found.verdict == "rounding", str(found)


def test_an_mlp():
    rng = np.random.default_rng(0)
    batches = Batches(rng.standard_normal((20, 6)), rng.integers(0, 4, 20), 7, seed=0)


    def mine(mesh):
        def program(comm, dtype):
            return make_strategy("ddp", MLP([6, 8, 8, 4]).initialize(0, "float64"),
                                 DeviceMesh(comm, **mesh))
        return program
    found = find_difference(mine({"dp": 1}), mine({"tp": 2}), batches, dtype="float64")
    assert found.verdict == "equal" and any(gap.key[1] == "forward" for gap in found.gaps)


def test_an_object_of_ones_own():
    class Mine:
        def __init__(self, model):
            self.model = model

        def forward_backward(self, microbatches):
            losses = [self.model.loss(m.inputs, m.targets, 6 * 12) for m in microbatches]
            for loss in losses:
                loss.backward()
            return sum(float(loss.data) for loss in losses)

    config = CONFIG.__class__(**vars(CONFIG) | {"dropout": 0.0})

    def program(comm, dtype):
        return Mine(GPT(config).initialize(0, dtype))
    found = find_difference(program, program, BATCHES, ranks=(1, 1), microbatches=(1, 2), steps=1)
    assert found.verdict == "rounding", str(found)


def test_programs_that_record_by_themselves():
    whole = np.arange(12.0).reshape(6, 2)

    def left(comm):
        record("x", whole)
        record("y", whole * 2)

    def right(comm):
        rows = (2 * comm.rank, 2 * comm.rank + 2)
        record("x", whole[slice(*rows)], shape=(6, 2), box=[[rows], None])
        record("y", whole[:, ::-1] * 2 if comm.rank == 1 else whole * 2)
    found = find_difference(left, right, ranks=(1, 3), dtype="float64", steps=1)
    assert found.first.key == (0, "forward", "y") and found.first.ranks == (1,)
    assert len(found.gaps) == 2 and found.gaps[0].distance == 0
