"""Conjugate pairs: ⟨A x, y⟩ = ⟨x, Aᵀ y⟩ for every operation and its backward, in both worlds.

The inner product of two values spread over the ranks: both are whole on every rank (I), or every
rank has its own part or its own share of the use (V, R with P), and the parts add up.
"""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.comm.collectives import sum_over_ranks
from minipar.parallel import conjugate as pairs
from minipar.testing import worlds

DUAL = {"I": "I", "R": "P", "P": "R", "V": "V"}     # the type of a value's gradient

TABLE = {       # operation, type of its input, type of its output
    "copy_to": (pairs.copy_to, "I", "R"),
    "reduce_from": (pairs.reduce_from, "P", "I"),
    "scatter_to": (pairs.scatter_to, "I", "V"),
    "gather_from": (pairs.gather_from, "V", "I"),
    "all_gather": (pairs.all_gather, "V", "R"),
    "reduce_scatter": (pairs.reduce_scatter, "P", "V"),
    "all_to_all": (lambda x, comm: pairs.all_to_all(x, comm, 0, 1), "V", "V"),
    "all_to_all, back": (lambda x, comm: pairs.all_to_all(x, comm, 1, 0), "V", "V"),
}
ROWS = {"copy_to": 5, "reduce_from": 5, "scatter_to": 7, "reduce_scatter": 7}   # uneven pieces


def value(comm, kind: str, shape: tuple, seed: int) -> np.ndarray:
    """A random value of a type: the same everywhere (I, R), or another on every rank (V, P)."""
    own = () if kind in "IR" else (comm.rank + 1,)
    return np.random.default_rng((seed, *own)).standard_normal(shape)


def inner(comm, kind: str, a: np.ndarray, b: np.ndarray) -> float:
    """⟨a, b⟩ of a value of type `kind` with one of its dual type."""
    local = float(np.sum(a * b))
    return local if kind == "I" else sum_over_ranks(comm, local)


def adjoint_error(comm, operation, input_kind: str, output_kind: str, shape: tuple) -> float:
    x = Tensor(value(comm, input_kind, shape, 1), requires_grad=True)
    y = operation(x, comm)
    g = value(comm, DUAL[output_kind], y.shape, 2)
    y.backward(g)
    return abs(inner(comm, output_kind, y.data, g) - inner(comm, input_kind, x.data, x.grad))


@worlds(1, 2, 3, 4, mpi=(2, 4))
@pytest.mark.parametrize("name", TABLE)
def test_backward_is_the_transpose(world, name):
    operation, input_kind, output_kind = TABLE[name]
    shape = (ROWS.get(name, world.size * 2), world.size * 3)

    def body(comm):
        assert adjoint_error(comm, operation, input_kind, output_kind, shape) < 1e-12
    world.run(body)


def test_the_test_notices_a_forgotten_all_reduce():
    forgotten, _ = pairs.conjugate(lambda comm, a: a, lambda comm, a: a)
    errors = Cluster(3).run(lambda comm: adjoint_error(
        comm, lambda x, c: forgotten.apply(x, comm=c), "I", "R", (4, 3)))[0]
    assert min(errors) > 0.1


@worlds(2, 3, 4, mpi=(4,))
def test_forward_values(world):
    def body(comm):
        p, r = comm.size, comm.rank
        x = Tensor(np.arange(12.0).reshape(6, 2))
        parts = np.array_split(x.data, p)
        assert pairs.copy_to(x, comm).data is x.data
        assert np.array_equal(pairs.reduce_from(x, comm).data, x.data * p)
        mine = pairs.scatter_to(x, comm)
        assert np.array_equal(mine.data, parts[r])
        assert np.array_equal(pairs.gather_from(mine, comm, total=6).data, x.data)
        assert np.array_equal(pairs.all_gather(mine, comm, total=6).data, x.data)
        assert np.array_equal(pairs.reduce_scatter(x, comm).data, parts[r] * p)
        columns = Tensor(np.full((p, 3), r, float))
        swapped = pairs.all_to_all(columns, comm, split_dim=0, concat_dim=1)
        assert np.array_equal(swapped.data, np.repeat(np.arange(p), 3)[None])
    world.run(body)


@worlds(4, mpi=())
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_any_dimension_there_and_back(world, dim):
    def body(comm):
        x = Tensor(np.random.default_rng(0).standard_normal((5, 6, 7)), requires_grad=True)
        whole = pairs.gather_from(pairs.scatter_to(x, comm, dim), comm, dim, total=x.shape[dim])
        assert np.array_equal(whole.data, x.data)
        whole.sum().backward()
        assert np.array_equal(x.grad, np.ones_like(x.data))
    world.run(body)


def test_gathering_for_uses_that_differ_sums_their_gradients():
    """all_gather then a replicated loss counts it p times; gather_from is right."""
    def body(comm, gather):
        x = Tensor(np.ones(2), requires_grad=True)
        gather(x, comm).sum().backward()
        return x.grad[0]
    for p in (2, 3):
        assert Cluster(p).run(lambda c: body(c, pairs.gather_from))[0] == [1.0] * p
        assert Cluster(p).run(lambda c: body(c, pairs.all_gather))[0] == [float(p)] * p


def test_a_piece_of_the_wrong_length_teaches():
    with pytest.raises(ValueError, match="GatherFrom.*its piece of 7 is 4"):
        Cluster(2).run(lambda comm: pairs.gather_from(Tensor(np.ones(3)), comm, total=7))
