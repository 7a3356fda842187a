"""Data parallelism equals one process: losses, gradients and trained parameters, in float64."""

import numpy as np
import pytest

from minipar.autograd import count_targets
from minipar.comm import Cluster
from minipar.comm.collectives import broadcast, sum_over_ranks
from minipar.data import shard_range
from minipar.nn import GPT, MLP, GPTConfig
from minipar.nn.step_context import training_step
from minipar.optim import SGD, AdamW, clip_grad_norm
from minipar.parallel.data.ddp_by_autograd import all_reduce_gradients, data_parallel
from minipar.testing import worlds

VOCABULARY, TIME, BATCH = 11, 6, 5
DRAW = np.random.default_rng(0)
IDS = DRAW.integers(0, VOCABULARY, (3, BATCH, TIME))        # for three steps
IMAGES = DRAW.standard_normal((3, BATCH, 4))


def gpt(**changes):
    sizes = {"context": TIME, "num_layers": 2, "num_heads": 2, "width": 8, **changes}
    return lambda: GPT(GPTConfig(VOCABULARY, **sizes))


MODELS = {"gpt tied": gpt(), "gpt untied": gpt(tied=False),
          "gpt grouped": gpt(num_heads=4, num_kv_heads=2), "gpt dropout": gpt(dropout=0.3),
          "mlp": lambda: MLP([4, 7, VOCABULARY])}
OPTIMIZERS = {"sgd": lambda slabs: SGD(slabs, lr=0.3, momentum=0.9),
              "adamw": lambda slabs: AdamW(slabs, lr=0.01)}

TARGETS = {"all": DRAW.integers(0, VOCABULARY, (BATCH, TIME))}
TARGETS["uneven"] = np.where(DRAW.random((BATCH, TIME)) < 0.6, -100, TARGETS["all"])
TARGETS["one in the whole batch"] = np.full((BATCH, TIME), -100)
TARGETS["one in the whole batch"][3, 2] = 7
TARGETS["none on rank 0"] = TARGETS["all"].copy()
TARGETS["none on rank 0"][0:3] = -100
TARGETS["none at all"] = np.full((BATCH, TIME), -100)


def run(comm, model_name: str, form: str, targets_name: str = "uneven", optimizer: str = "sgd"):
    """Three steps; returns losses, the gradients of each step, and the parameters at the end."""
    model = MODELS[model_name]().initialize(seed=0, dtype=np.float64)
    if form == "graph":
        data_parallel(model, comm)
    stepper, losses, gradients = OPTIMIZERS[optimizer](model.slabs), [], []
    rows = shard_range(BATCH, comm.rank, comm.size)
    mine = slice(rows.start, rows.stop)
    for step in range(3):
        targets = TARGETS[targets_name][mine]
        inputs = IDS[step, mine]
        if model_name == "mlp":
            inputs, targets = IMAGES[step, mine], targets[:, 2]
        num_targets = sum_over_ranks(comm, count_targets(targets))
        stepper.zero_grad()
        with training_step(5, step, step * BATCH + np.arange(BATCH)[mine]):
            loss = model.loss(inputs, targets, num_targets)
        loss.backward()
        if form == "slab":
            all_reduce_gradients(model, comm)
        losses.append(sum_over_ranks(comm, float(loss.data)))
        gradients.append(model.slabs[0].complete_grad().copy())
        clip_grad_norm(model.slabs, 0.5)
        stepper.step()
    return losses, gradients, model.slabs[0].data


def check(world, *what):
    expected = Cluster(1).run(lambda comm: run(comm, what[0], "alone", *what[2:]))[0][0]

    def body(comm):
        for ours, alone in zip(run(comm, *what), expected):
            np.testing.assert_allclose(ours, alone, rtol=1e-10, atol=1e-13)
    world.run(body)


@worlds(1, 3, 6, mpi=(4,), slow=(2, 4), slow_mpi=(2,))         # 6: more ranks than samples
@pytest.mark.parametrize("form", ["graph", "slab"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.one_in(2)
def test_equals_one_process(world, model, form):
    check(world, model, form)


@worlds(2, 3, mpi=(4,))
@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")       # a mean of no targets
def test_whatever_the_mask(world, targets):
    check(world, "gpt tied", "slab", targets)


@worlds(2, 4, mpi=(4,))
@pytest.mark.parametrize("form", ["graph", "slab"])
def test_with_adamw(world, form):
    check(world, "gpt tied", form, "uneven", "adamw")


def test_all_ranks_hold_the_same_bits():
    results = Cluster(3).run(lambda comm: run(comm, "gpt tied", "slab"))[0]
    for losses, _, parameters in results[1:]:
        assert losses == results[0][0] and np.array_equal(parameters, results[0][2])


@pytest.mark.parametrize("p", [2, 3, 4])
def test_the_graph_form_reduces_once_per_use(p):
    """n bytes of gradients cost 2 n (p-1) over all ranks; tied weights, used twice, go twice."""
    def sent(form):
        cluster = Cluster(p, trace=True)
        model = MODELS["gpt tied"]().initialize(dtype=np.float64)
        cluster.run(lambda comm: run(comm, "gpt tied", form))
        return cluster.trace, model.slabs[0].data.nbytes, model.wte.weight.data.nbytes
    trace, n, tied = sent("slab")
    assert trace.bytes_sent() == trace.bytes_sent(label="all_reduce") == 3 * 2 * (p - 1) * n
    # Per step one sum for the count and one for the loss: 8 bytes of each rank reach all others.
    assert trace.bytes_sent(label="control") == 3 * 2 * p * (p - 1) * 8
    trace, n, tied = sent("graph")
    assert trace.bytes_sent(label="all_reduce") == 3 * 2 * (p - 1) * (n + tied)
    assert trace.bytes_sent(label="broadcast") == (p - 1) * n       # parameters, at the start


@worlds(3, mpi=(3,))
def test_parameters_come_from_rank_0(world):
    def body(comm):
        model = MLP([3, 4, 2]).initialize(seed=comm.rank)
        for slab in model.slabs:
            broadcast(comm, slab.data, out=slab.data)
        expected = MLP([3, 4, 2]).initialize(seed=0)
        assert np.array_equal(model.slabs[0].data, expected.slabs[0].data)
    world.run(body)


def test_a_parameter_that_only_some_ranks_use():
    """Different ranks missing different parameters: no hang, zeros count as zeros."""
    def body(comm):
        model = MLP([3, 4, 2]).initialize(dtype=np.float64)
        weight = model[0 if comm.rank == 0 else 2].weight       # the other one gets no gradient
        (weight * 2.0).sum().backward()
        all_reduce_gradients(model, comm)
        return model.slabs[0].grad
    for gradient in Cluster(2).run(body)[0]:
        model = MLP([3, 4, 2])
        expected = {"0.weight": 2.0, "0.bias": 0.0, "2.weight": 2.0, "2.bias": 0.0}
        parts = [np.full(p.size, expected[name]) for name, p in model.named_parameters()]
        assert np.array_equal(gradient, np.concatenate(parts))
