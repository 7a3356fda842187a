"""Exercises copy_to_backward and all_reduce_gradients, on the simulated cluster."""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.nn import MLP
from minipar.parallel import conjugate
from minipar.parallel.data import ddp_by_autograd as data

SIZES = [1, 2, 3, 4]


def draw(rank, *shape):
    """Whole numbers, so that sums are exact in any order."""
    return np.random.default_rng([rank, *shape]).integers(-9, 10, shape).astype(np.float64)


@pytest.mark.parametrize("p", SIZES)
def test_copy_to_sums_the_gradient_over_the_ranks(p):
    def main(comm):
        w = Tensor(draw(0, 3, 2), requires_grad=True)
        y = conjugate.copy_to(w, comm)
        assert np.array_equal(y.data, w.data)
        y.backward(draw(comm.rank, 3, 2))
        return w.grad
    expected = sum(draw(rank, 3, 2) for rank in range(p))
    for rank, grad in enumerate(Cluster(p).run(main)[0]):
        assert np.array_equal(grad, expected), \
            f"rank {rank} of {p}: the gradient of w must be the sum over the ranks"


@pytest.mark.parametrize("p", SIZES)
def test_reduce_from_passes_the_gradient_on_as_it_is(p):
    def main(comm):
        x = Tensor(draw(comm.rank, 3, 2), requires_grad=True)
        conjugate.reduce_from(x, comm).backward(draw(9, 3, 2))
        return x.grad
    for rank, grad in enumerate(Cluster(p).run(main)[0]):
        assert np.array_equal(grad, draw(9, 3, 2)), f"rank {rank} of {p}: the gradient changed"


OPERATIONS = {
    "scatter_to": lambda x, comm: conjugate.scatter_to(x, comm, dim=1),
    "gather_from": lambda x, comm: conjugate.gather_from(x, comm, dim=1),
    "all_gather": lambda x, comm: conjugate.all_gather(x, comm, dim=1),
    "reduce_scatter": lambda x, comm: conjugate.reduce_scatter(x, comm, dim=1),
    "all_to_all": lambda x, comm: conjugate.all_to_all(x, comm, split_dim=0, concat_dim=1),
}
SAME_EVERYWHERE = {"scatter_to": "input", "gather_from": "output"}


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_backward_is_the_transpose(name, p):
    """⟨A x, y⟩ = ⟨x, Aᵀ y⟩, both summed over the ranks (a value that all share counts once)."""
    def main(comm):
        mine = {value: 0 if SAME_EVERYWHERE.get(name) == value else comm.rank
                for value in ("input", "output")}
        x = Tensor(draw(mine["input"], p, 2 * p), requires_grad=True)
        out = OPERATIONS[name](x, comm)
        y = draw(10 + mine["output"], *out.shape)
        out.backward(y)
        assert x.grad.shape == x.shape
        return np.sum(out.data * y), np.sum(x.data * x.grad)
    sides = np.array(Cluster(p).run(main)[0])
    left = sides[0, 0] if SAME_EVERYWHERE.get(name) == "output" else sides[:, 0].sum()
    right = sides[0, 1] if SAME_EVERYWHERE.get(name) == "input" else sides[:, 1].sum()
    assert left == right, f"{name}: ⟨A x, y⟩ = {left}, but ⟨x, Aᵀ y⟩ = {right}"


@pytest.mark.parametrize("p", SIZES)
def test_copy_to_on_the_weights_is_data_parallelism(p):
    """The gradient of each rank's share of the batch, summed, is that of the whole batch."""
    x, labels = draw(1, 12, 4), np.arange(12) % 3

    def gradient(comm, rows):
        model = MLP([4, 5, 3]).initialize(0, dtype=np.float64)
        if comm is not None:
            data.data_parallel(model, comm)
        model.loss(x[rows], labels[rows], loss_divisor=12).backward()
        return model.slabs[0].complete_grad()
    expected = gradient(None, slice(None))
    results, _ = Cluster(p).run(lambda comm: gradient(comm, slice(comm.rank, 12, p)))
    for rank, grad in enumerate(results):
        error = np.max(np.abs(grad - expected))
        assert error < 1e-12, f"rank {rank} of {p}: off by {error:.2g} from one process"


def two_models(comm):
    """A model of two slabs, its gradients filled by an earlier step and then forgotten."""
    model = MLP([3, 4]).initialize(0, dtype=np.float64)
    model.slabs = model.slabs + MLP([2, 2]).initialize(1, dtype=np.float64).slabs
    for slab in model.slabs:
        slab.grad[...] = np.nan
        slab.zero_grad()
    return model


def fill(model, rank, skipped=()):
    """Gradients for all parameters but the skipped ones, as (slab, parameter) numbers."""
    for s, slab in enumerate(model.slabs):
        for i, parameter in enumerate(slab.parameters):
            if (s, i) not in skipped:
                parameter.slot.accumulate(draw(rank + 100 * s + 10 * i, *parameter.shape))


@pytest.mark.parametrize("p", SIZES)
def test_all_reduce_gradients_sums_every_slab(p):
    def main(comm):
        model = two_models(comm)
        fill(model, comm.rank)
        data.all_reduce_gradients(model, comm)
        return [parameter.grad.copy() for slab in model.slabs for parameter in slab.parameters]
    keys = [(0, 0, (3, 4)), (0, 1, (4,)), (1, 0, (2, 2)), (1, 1, (2,))]
    for rank, grads in enumerate(Cluster(p).run(main)[0]):
        for (s, i, shape), grad in zip(keys, grads):
            expected = sum(draw(r + 100 * s + 10 * i, *shape) for r in range(p))
            assert np.array_equal(grad, expected), \
                f"rank {rank} of {p}: parameter {i} of slab {s} is not the sum over the ranks"


def test_all_reduce_gradients_where_some_are_missing():
    def main(comm):
        model = two_models(comm)
        fill(model, comm.rank, skipped={(0, comm.rank % 2), (1, 0)})
        data.all_reduce_gradients(model, comm)
        return [parameter.grad for slab in model.slabs for parameter in slab.parameters]
    expected = [draw(1, 3, 4) + draw(3, 3, 4), draw(10, 4) + draw(12, 4), np.zeros((2, 2)),
                sum(draw(110 + r, 2) for r in range(4))]
    for rank, grads in enumerate(Cluster(4).run(main)[0]):
        for i, (grad, right) in enumerate(zip(grads, expected)):
            assert grad is not None and np.array_equal(grad, right), \
                f"rank {rank}: parameter {i}, missing on some ranks, has {grad}, not {right}"


def test_all_reduce_gradients_once_per_slab():
    def main(comm):
        model = two_models(comm)
        fill(model, comm.rank)
        data.all_reduce_gradients(model, comm)
    cluster = Cluster(4, trace=True)
    cluster.run(main)
    sent = cluster.trace.num_sent(0)
    assert sent == 2 * 2 * 3, f"{sent} messages; two slabs take 2 × 2(p - 1) = 12"
