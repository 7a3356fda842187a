"""A ShardedTensor has every operator and method of a Tensor, with the numbers of one device."""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar import Cluster, DeviceMesh
from minipar.autograd import Tensor
from minipar.gspmd import P, ShardedTensor, distribute, sharded
from minipar.nn import Parameter
from minipar.testing.worlds import worlds

rng = np.random.default_rng(7)
X, Y = rng.random((10, 4)) + 0.5, rng.random((10, 4)) + 0.5         # on 4 ranks 3, 3, 3, 1 rows
CASES = {
    "__add__": lambda x, y: [x + y, x + 1, x + Y],
    "__radd__": lambda x, y: [1 + x, Y + x, Tensor(Y) + x],
    "__sub__": lambda x, y: [x - y, x - 3.0],
    "__rsub__": lambda x, y: [3.0 - x, Y - x, Tensor(Y) - x],
    "__mul__": lambda x, y: [x * y, x * 0.5, x * np.float64(2)],
    "__rmul__": lambda x, y: [0.5 * x, np.float64(2) * x, Y * x, Tensor(Y) * x],
    "__truediv__": lambda x, y: [x / y, x / 2],
    "__rtruediv__": lambda x, y: [1.0 / x, Y / x, Tensor(Y) / x],
    "__matmul__": lambda x, y: [x.T @ y, x @ Y.T, x @ Tensor(Y.T)],
    "__rmatmul__": lambda x, y: [Y.T @ x, Tensor(Y.T) @ x],
    "__neg__": lambda x, y: [-x],
    "__pow__": lambda x, y: [x ** -2, x ** np.float64(0.5)],
    "__getitem__": lambda x, y: [x[3:8], x[-1], x[np.int64(2)], x[..., 1:3], x[::2], x[:, None],
                                 x[3:3], x[5, 2]],
    "T": lambda x, y: [x.T],
    "sum": lambda x, y: [x.sum(), x.sum(0), x.sum(axis=-1, keepdims=True), x.sum((0, 1))],
    "mean": lambda x, y: [x.mean(), x.mean(axis=0), x.mean(1, True)],
    "max": lambda x, y: [x.max(), x.max(axis=1), x.max(axis=0, keepdims=True)],
    "reshape": lambda x, y: [x.reshape(10, 2, 2), x.reshape((40,)), x.reshape(-1, 8)],
    "transpose": lambda x, y: [x.transpose(), x.transpose(1, 0), x.transpose((1, 0))],
    "split": lambda x, y: [*x.split(2), *x.split(4, axis=1), *x.split(1)],
    "astype": lambda x, y: [x.astype(np.float32), x.astype(np.dtype("float64"))],
    "detach": lambda x, y: [x.detach() * y],
    "a mixture": lambda x, y: [(x - x.mean(axis=0)) / ((x - x.mean(axis=0)) ** 2).mean(axis=0)],
}
# what belongs to a leaf, to the graph, or to both classes by themselves
OTHERS = {"__annotations__", "__module__", "__slots__", "__weakref__", "data", "slot",
          "grad_target", "backward", "grad", "requires_grad", "shape", "ndim", "size", "dtype",
          "item", "__bool__", "__array__", "__array_ufunc__"}


def test_no_operator_of_a_tensor_is_forgotten():
    own = {name for name in dir(Tensor) if name not in dir(object)}
    assert own - OTHERS == {name for name in CASES if " " not in name}
    assert own - OTHERS <= set(vars(ShardedTensor))


def results_and_gradients(case, x, y):
    results = case(x, y)
    total = sum((out * out).sum().astype(np.float64) for out in results)
    if isinstance(total, ShardedTensor):
        total = total.redistribute(P())
    total.backward()
    return results, [x.grad, y.grad]


def check(comm, case, spec):
    mesh = DeviceMesh(comm, dp=comm.size)
    expected, grads = results_and_gradients(
        case, Tensor(X, requires_grad=True), Tensor(Y, requires_grad=True))
    x, y = (distribute(a, mesh, spec, requires_grad=True) for a in (X, Y))
    results, own = results_and_gradients(case, x, y)
    for out, wanted in zip(results, expected, strict=True):
        assert isinstance(out, ShardedTensor) and out.shape == wanted.shape
        assert out.full_tensor().dtype == out.dtype == wanted.dtype
        np.testing.assert_allclose(out.full_tensor().data, wanted.data, rtol=1e-6)
    for piece, whole in zip(own, grads, strict=True):
        if whole is not None:
            np.testing.assert_allclose(piece, distribute(whole, mesh, spec).local.data, rtol=1e-6)


@pytest.mark.parametrize("spec", [P("dp"), P(None, "dp"), P()], ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(2)
def test_it_computes_what_a_tensor_computes(name, spec):
    Cluster(4).run(lambda comm: check(comm, CASES[name], spec))


@worlds(4)
def test_in_both_worlds(world):
    world.run(lambda comm: check(comm, CASES["a mixture"], P("dp")))
    world.run(lambda comm: check(comm, CASES["__getitem__"], P("dp")))


def test_a_weight_on_the_left_gets_its_gradient():
    def body(comm):
        x = distribute(X, DeviceMesh(comm, dp=4), P("dp"))
        tensor = Tensor(Y.copy(), requires_grad=True)
        weight = Parameter((10, 4), None)
        weight.data = Y.copy()
        ((tensor * x).sum() + (weight * x).sum()).redistribute(P()).backward()
        np.testing.assert_allclose([tensor.grad, weight.grad], [X, X])

    Cluster(4).run(body)


def test_partial_sums_are_summed_before_a_number_is_added():
    def body(comm):
        mesh = DeviceMesh(comm, dp=4)
        z = distribute(X, mesh, P("dp")).T @ distribute(Y, mesh, P("dp"))
        assert z.placements == {"dp": "Partial()"}
        for case in (lambda z: z + 1, lambda z: 1 - z, lambda z: 2 * z, lambda z: -z,
                     lambda z: 1 / z, lambda z: z ** 2, lambda z: z[1:3], lambda z: z.T,
                     lambda z: z.max(axis=0), lambda z: z.mean(axis=1)):
            np.testing.assert_allclose(case(z).full_tensor().data, case(Tensor(X.T @ Y)).data)

    Cluster(4).run(body)


def test_lists_and_options_of_sharded_tensors():
    def body(comm):
        mesh = DeviceMesh(comm, dp=4)
        x, y = (distribute(a, mesh, P("dp")) for a in (X, Y))
        joined = sharded(ag.concatenate)([x, Y, y], axis=1)
        np.testing.assert_allclose(joined.full_tensor().data, np.concatenate([X, Y, Y], 1))
        chosen = sharded(ag.where)(X > Y, x, b=y)
        np.testing.assert_allclose(chosen.full_tensor().data, np.maximum(X, Y))
        assert bool(x.sum()) and x[0, 0].item() == X[0, 0] and x.size == 40
        assert not x.requires_grad

    Cluster(4).run(body)


def test_mistakes():
    def body(comm):
        mesh = DeviceMesh(comm, dp=2)
        x = distribute(X, mesh, P("dp"))
        with pytest.raises(TypeError, match="a ShardedTensor was expected among the arguments"):
            sharded(ag.exp)(X)
        with pytest.raises(TypeError, match="pass full_tensor"):
            np.asarray(x)
        with pytest.raises(ValueError, match="lie on one mesh, not on {'dp': 2} and {'tp': 2}"):
            x + distribute(X, DeviceMesh(comm, tp=2), P("tp"))
        with pytest.raises(TypeError, match="an index of integers and slices was expected"):
            x[X[:, 0] > 0]
        rows = x[np.array([2, 1])].full_tensor().data
        assert np.array_equal(rows, X[[2, 1]])

    Cluster(2).run(body)
