"""Every strategy on arrays that refuse the host's: the same bits as on NumPy's, and no GPU needed.

The model lives on the device from its first number, and so do inputs and targets; the numbers of
samples, losses and what is saved are the host's.
"""

import numpy as np
import pytest

from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.support.case_models import DEEP, MODELS
from tests.support.cases import (
    ALL,
    CONTEXT_PARALLEL,
    HYBRIDS,
    OPTIMIZERS,
    PIPELINES,
    Case,
)
from tests.support.strict_array import StrictArray, as_cupy


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    with as_cupy(monkeypatch) as module:
        yield module


def on_host(array):
    return array


def on_device(array):
    return StrictArray(np.array(array))


def train(comm, name, case, place) -> dict:
    """Two clipped steps of two microbatches: all that can be known, as host arrays."""
    model = {**MODELS, **DEEP}[case.model]().initialize(0, np.float64, place(np.empty(0)))
    strategy = (ALL | CONTEXT_PARALLEL)[name](model, comm)
    optimizer = OPTIMIZERS[case.optimizer](strategy.slabs)
    found: dict = {}
    for step in range(2):
        inputs, targets = case.batch(step)
        batches = []
        for part in case.rows_of_parts():
            mine = np.array(part)[list(strategy.rows(len(part)))].astype(int)
            batches.append(Microbatch(place(inputs[mine]), place(targets[mine]), mine))
        optimizer.zero_grad()
        found[f"loss {step}"] = strategy.forward_backward(batches, 3, step)
        found[f"norm {step}"] = strategy.clip_grad_norm(0.1)
        strategy.step(optimizer)
    for slab in strategy.slabs:
        assert isinstance(slab.data, type(place(np.empty(0))))
    return found | strategy.state_dict() | optimizer.state_dict()


def check(comm, name, case) -> None:
    host, device = (train(comm, name, case, place) for place in (on_host, on_device))
    assert host.keys() == device.keys()
    for key, values in host.items():
        assert type(device[key]) is type(values), key
        np.testing.assert_array_equal(device[key], values, err_msg=key)


def case_for(name) -> Case:
    """With dropout and tied weights; a pipeline of two stages a rank takes a deep model."""
    is_deep = name in PIPELINES or name.startswith("pp")
    if name in CONTEXT_PARALLEL:            # four ranks exchange four heads
        return Case("llama", "adamw", "uneven", (4, 2))
    if name == "cp 2 × tp 2 sequence":      # tp divides the tokens of a rank of cp
        return Case("gpt long", "adamw", "uneven", (4, 2), time=8)
    return Case("gpt deep tied" if is_deep else "gpt dropout", "adamw", "uneven", (4, 2))


# A few meshes; the others are slow: on a mesh, too, a strategy's arrays are its own.
SOME_MESHES = ("pp 2 × dp 2 zero1", "dp 2 × tp 2 fsdp", "pp 2 × tp 2 sequence", "pp 2 × cp 2")
EVERYWHERE = [pytest.param(name, marks=[pytest.mark.slow] * (
                  name in HYBRIDS and name not in SOME_MESHES))
              for name in (*ALL, *CONTEXT_PARALLEL)
              if name != "alone" and ("tp" in name or "sequence" not in name)]


@worlds(4, mpi=())
@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.one_in(6)
def test_every_strategy(world, name):
    world.run(lambda comm: check(comm, name, case_for(name)))


@worlds(mpi=(4,))
@pytest.mark.parametrize("name", [pytest.param("dp", marks=pytest.mark.slow), "ddp", "fsdp",
                                  "1f1b", "dp 2 × tp 2 sequence"])
@pytest.mark.one_in(2)
def test_messages_of_real_ranks_go_through_the_host(world, name):
    world.run(lambda comm: check(comm, name, case_for(name)))


# Each strategy with one model; with the others it is slow.
PAIRS = {"dp": "gpt untied", "zero2": "gpt grouped", "zero3": "mlp", "dp 2 × tp 2": "gpt grouped"}


@worlds(4, mpi=())
@pytest.mark.parametrize("name, model", [
    pytest.param(name, model, marks=[pytest.mark.slow] * (model != PAIRS[name]))
    for name in PAIRS for model in ("gpt untied", "gpt grouped", "mlp")])
@pytest.mark.one_in(2)
def test_other_models(world, name, model):
    world.run(lambda comm: check(comm, name, Case(model, "sgd", "uneven", (4, 2))))


def test_a_host_array_beside_a_device_s_is_refused():
    x = StrictArray(np.ones(3))
    for mix in (lambda: x + np.ones(3), lambda: np.ones(3) * x, lambda: np.asarray(x),
                lambda: np.where(np.ones(3, bool), x, 0), lambda: x[np.array([0, 1])],
                lambda: np.concatenate([x, np.ones(3)]), lambda: np.take(x, np.array([0])),
                lambda: np.add.at(x, StrictArray(np.array([0])), 1.0), lambda: np.linalg.norm(x)):
        with pytest.raises(TypeError):
            mix()
    with pytest.raises(TypeError):
        x[:] = np.ones(3)
    with pytest.raises(TypeError):
        np.ones(3)[:] = x
    assert isinstance(x * 2.0 + np.float64(1), StrictArray) and float(x.sum()) == 3
    assert isinstance(np.arange(3, like=x), StrictArray)
    view = x[1:].reshape(2, 1)
    view += 1
    assert view.base is x and x.get().tolist() == [1, 2, 2]
