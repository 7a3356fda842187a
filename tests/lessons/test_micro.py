"""lessons/micro.py is short, and each of its functions does what the library's counterpart does."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minipar import autograd
from minipar.comm import collectives
from minipar.comm.mesh import DeviceMesh
from minipar.environment import find_mpirun, mpirun_environment
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.parallel import conjugate
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.testing import worlds
from tests.repository.test_layering import lines_of_code

ROOT = Path(__file__).parents[2]
FILE = ROOT / "lessons" / "micro.py"
LAYERS, WIDTH, ROWS = 8, 8, 13
LIBRARY = {         # of each way to train
    "data_parallel": lambda model, comm: make_strategy("ddp", model, comm),
    "zero3": lambda model, comm: make_strategy("zero3", model, comm),
    "tensor_parallel": lambda model, comm: Strategy(model, DeviceMesh(comm, tp=comm.size)),
    "one_f_one_b": lambda model, comm: Strategy(model, DeviceMesh(comm, pp=comm.size),
                                                schedule="1f1b")}


@pytest.fixture(scope="module")
def micro():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FILE.parent)
        import micro
        return micro


def drawn():
    """Weights, rows and labels; the same on every rank."""
    rng = np.random.default_rng(3)
    return (rng.standard_normal((LAYERS, WIDTH, WIDTH)) / 2, rng.standard_normal((ROWS, WIDTH)),
            rng.integers(0, WIDTH, ROWS))


def mlp_of(weights) -> MLP:
    """The library's MLP with these weights, and biases of 0."""
    model = MLP([WIDTH] * (LAYERS + 1)).initialize(0, np.float64)
    for i, weight in enumerate(weights):
        model[2 * i].weight.data[...] = weight
        model[2 * i].bias.data[...] = 0
    return model


def test_it_is_short():
    assert len(lines_of_code(FILE.read_text("utf-8"))) <= 130


def test_backward_is_that_of_the_library(micro):
    weights, x, labels = drawn()
    model = mlp_of(weights)
    loss = model.loss(x, labels, ROWS)
    autograd.backward(loss)
    ws = [micro.Tensor(w) for w in weights]
    found = micro.cross_entropy(micro.mlp(micro.Tensor(x), ws), labels, ROWS)
    micro.backward(found)
    assert float(found.data) == pytest.approx(loss.item(), rel=1e-14)
    for i, w in enumerate(ws):
        np.testing.assert_allclose(w.grad, model[2 * i].weight.grad, rtol=1e-12, atol=1e-14)


@worlds(1, 2, 3, 4, 5, 6, 7, 8)
@pytest.mark.parametrize("size", [0, 1, 7, 64])
def test_the_ring_is_that_of_the_library(world, micro, size):
    def body(comm):
        mine = np.arange(float(size)) * (comm.rank + 1)
        piece = micro.reduce_scatter(comm, mine)
        assert np.array_equal(piece, collectives.reduce_scatter(comm, mine, algorithm="ring"))
        assert np.array_equal(micro.all_gather(comm, piece, size), collectives.all_gather(
            comm, piece, total=size, algorithm="ring"))
        assert np.array_equal(micro.all_reduce(comm, mine), collectives.all_reduce(
            comm, mine, algorithm="ring"))
    world.run(body)


@worlds(1, 2, 3, 5)
@pytest.mark.parametrize("name", ["copy_to", "reduce_from"])
def test_operations_that_send(world, micro, name):
    def body(comm):
        x, grad = np.arange(6.0) + comm.rank, np.arange(6.0) * (comm.rank + 2)
        theirs, mine = autograd.Tensor(x, requires_grad=True), micro.Tensor(x)
        y = getattr(conjugate, name)(theirs, comm)
        autograd.backward(y, grad)
        z = getattr(micro, name)(mine, comm)
        micro.backward(z, grad)
        assert np.array_equal(z.data, y.data) and np.array_equal(mine.grad, theirs.grad)
    world.run(body)


@worlds(1, 2, 3, 4, 5, 6, 7, 8)
@pytest.mark.parametrize("name", LIBRARY)
def test_each_way_to_train_is_that_of_the_library(world, micro, name):
    """A step of SGD with a learning rate of 1 subtracts the gradient."""
    weights, x, labels = drawn()

    def body(comm):
        strategy = LIBRARY[name](mlp_of(weights), comm)
        rows = strategy.rows(ROWS)
        strategy.forward_backward([Microbatch(x[i], labels[i], np.array(i)) for i in (
            np.array_split(rows, 4) if name == "one_f_one_b" else [np.array(rows, int)])])
        strategy.step(SGD(strategy.slabs, lr=1.0))
        after = strategy.state_dict()
        whole = [weights[i] - after[f"{2 * i}.weight"] for i in range(LAYERS)]
        expected = {
            "data_parallel": whole, "one_f_one_b": micro.part(comm, whole),
            "zero3": [micro.part(comm, grad.reshape(-1)) for grad in whole],
            "tensor_parallel": [micro.part(comm, grad, 1 - i % 2) for i, grad in enumerate(whole)]}
        for found, right in zip(getattr(micro, name)(comm, weights, x, labels), expected[name],
                                strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-14)
    world.run(body)


@worlds(1, 2, 3, 4, 5, 6, 7, 8)
def test_it_compares_itself_with_one_process(world, micro, capsys):
    ranks = world.run(lambda comm: (micro.main(comm), comm.rank)[1])
    printed = capsys.readouterr().out
    assert printed.count("the gradients of one process") == 4 * (0 in ranks)


@pytest.mark.parametrize("words", [[], ["--ranks", "3"], ["mpirun"]])
def test_the_commands_of_its_head(words):
    if words == ["mpirun"] and find_mpirun() is None:
        pytest.skip("there is no mpirun: pip install '.[mpi]'")
    before, after = ([find_mpirun(), "-n", "4"], []) if words == ["mpirun"] else ([], words)
    done = subprocess.run([*before, sys.executable, FILE, *after], capture_output=True, timeout=60,
                          encoding="utf-8", env=mpirun_environment())
    assert done.returncode == 0, done.stderr
    assert f"one_f_one_b on {3 if words == ['--ranks', '3'] else 4} ranks: " in done.stdout
