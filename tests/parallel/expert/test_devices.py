"""Experts on arrays that refuse the host's, as CuPy's do: the same bits as on NumPy's."""

import numpy as np
import pytest

from minipar.testing import worlds
from tests.support.expert_runs import on, train
from tests.support.strict_array import StrictArray, as_cupy


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    with as_cupy(monkeypatch) as module:
        yield module


def on_device(array):
    return StrictArray(np.array(array))


@worlds(4, mpi=(4,))
@pytest.mark.parametrize(("model", "sizes", "name"), [
    ("deepseek", {"ep": 4}, "zero1"), ("probability", {"dp": 4, "ep": 2}, "fsdp"),
    ("batch", {"tp": 2, "ep": 2}, "ddp"), ("llama", {"pp": 2, "ep": 2}, "ddp")])
@pytest.mark.one_in(3)
def test_choices_are_made_on_the_host_and_rows_stay_on_the_device(world, model, sizes, name):
    def body(comm):
        host, device = (train(comm, on(sizes, name), model, parts=2, place=place)
                        for place in (np.array, on_device))
        assert host.keys() == device.keys()
        for key, values in host.items():
            np.testing.assert_array_equal(device[key], values, err_msg=key)
    world.run(body)
