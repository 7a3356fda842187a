"""Every strategy on arrays that refuse the host's: the same bits as on NumPy's, and no GPU needed.

The model lives on the device from its first number, and so do inputs and targets; the numbers of
samples, losses and what is saved are the host's.
"""

import numpy as np
import pytest
from cases import ALL, DEEP, MODELS, OPTIMIZERS, Case
from strict_array import StrictArray, as_cupy

from minipar.comm import Cluster
from minipar.parallel.strategy import Microbatch, accumulate


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
    strategy = ALL[name](model, comm)
    optimizer = OPTIMIZERS[case.optimizer](strategy.slabs)
    found: dict = {}
    for step in range(2):
        inputs, targets = case.batch(step)
        batches = []
        for part in case.rows_of_parts():
            mine = np.array(part)[list(strategy.rows(len(part)))].astype(int)
            batches.append(Microbatch(place(inputs[mine]), place(targets[mine]), mine))
        optimizer.zero_grad()
        found[f"loss {step}"] = accumulate(strategy, batches, 3, step)
        found[f"norm {step}"] = strategy.clip_grad_norm(0.1)
        strategy.step(optimizer)
    for slab in strategy.slabs:
        assert isinstance(slab.data, type(place(np.empty(0))))
    return found | strategy.state_dict() | optimizer.state_dict()


@pytest.mark.parametrize("name", [name for name in ALL if name != "alone"
                                  and not ("sequence" in name and "tp" not in name)])
def test_every_strategy(name):
    case = Case("gpt deep tied", "adamw", "uneven", (5, 3))
    size = 4
    host, _ = Cluster(size).run(lambda comm: train(comm, name, case, on_host))
    device, _ = Cluster(size).run(lambda comm: train(comm, name, case, on_device))
    for ours, theirs in zip(device, host):
        assert ours.keys() == theirs.keys()
        for key, values in theirs.items():
            assert type(ours[key]) is type(values), key
            np.testing.assert_array_equal(ours[key], values, err_msg=key)
