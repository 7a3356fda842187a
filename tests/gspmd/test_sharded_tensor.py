"""ShardedTensor: as PyTorch's DTensor, equal to one device, with the collectives it should have."""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar import Cluster, DeviceMesh
from minipar.autograd import Tensor
from minipar.gspmd import P
from minipar.gspmd.sharded_tensor import distribute, sharded
from minipar.testing.worlds import worlds

rng = np.random.default_rng(0)
X, W, V, B = (rng.standard_normal(shape) for shape in ((6, 8), (8, 10), (10, 7), (7,)))


def two_layers(x, w, v, b):
    return ag.tanh(x @ w) @ v + b


def expected():
    leaves = [Tensor(a, requires_grad=True) for a in (X, W, V, B)]
    out = two_layers(*leaves)
    (out * out).sum().backward()
    return out.data, [leaf.grad for leaf in leaves]


SPECS = {
    "replicated": [P(), P(), P(), P()],
    "batch": [P("dp"), P(), P(), P()],
    "columns and rows": [P(), P(None, "tp"), P("tp"), P()],
    "batch, columns and rows": [P("dp"), P(None, "tp"), P("tp"), P()],
    "weights over dp": [P("dp"), P("dp"), P("dp"), P("dp")],
    "everything somewhere": [P("tp", "dp"), P("dp", "tp"), P(None, "dp"), P("tp")],
    "one dimension over both": [P(("dp", "tp")), P(None, ("tp", "dp")), P(), P()],
}


def check(comm, sizes, specs):
    mesh = DeviceMesh(comm, order=tuple(sizes), **sizes)
    out, grads = expected()
    x, w, v, b = (distribute(a, mesh, spec, requires_grad=True)
                  for a, spec in zip((X, W, V, B), specs))
    result = sharded(ag.tanh)(x @ w) @ v + b
    np.testing.assert_allclose(result.full_tensor().data, out, atol=1e-12)
    (result * result).sum().redistribute(P()).backward()
    for leaf, grad, spec in zip((x, w, v, b), grads, specs):
        whole = distribute(grad, mesh, spec)
        own = np.zeros(leaf.local.shape) if leaf.grad is None else leaf.grad
        np.testing.assert_allclose(own, whole.local.data, atol=1e-10)


@pytest.mark.parametrize("specs", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("sizes", [{"dp": 2, "tp": 2}, {"dp": 1, "tp": 3}, {"dp": 4, "tp": 2}],
                         ids=str)
def test_it_computes_what_one_device_computes(sizes, specs):
    Cluster(int(np.prod(list(sizes.values())))).run(lambda comm: check(comm, sizes, specs))


@worlds(4)
def test_in_both_worlds(world):
    world.run(lambda comm: check(comm, {"dp": 2, "tp": 2}, SPECS["everything somewhere"]))


def on_mesh(body, **sizes):
    return Cluster(int(np.prod(list(sizes.values()))), trace=True).run(
        lambda comm: body(DeviceMesh(comm, **sizes), comm))[0]


def test_operands_that_agree_send_nothing_and_sums_stay_partial():
    def body(mesh, comm):
        x, w = distribute(X, mesh, P("dp")), distribute(W, mesh, P(None, "tp"))
        v = distribute(V, mesh, P("tp"))
        comm.trace.clear()
        y = x @ w
        z = y @ v
        assert comm.trace.bytes_sent(comm.rank) == 0
        assert y.placements == {"dp": "Shard(0)", "tp": "Shard(1)"}
        assert z.placements == {"dp": "Shard(0)", "tp": "Partial()"}
        scattered = z.redistribute(P("dp", "tp"))           # a reduce-scatter: half of all-reduce
        assert scattered.placements["tp"] == "Shard(1)"
        padded = 3 * 8 * 8 // 2                             # 7 columns in two pieces of 4
        assert comm.trace.bytes_sent(comm.rank) == padded
        np.testing.assert_allclose(z.full_tensor().data, X @ W @ V, atol=1e-12)

    on_mesh(body, dp=2, tp=2)


def test_least_redistribution():
    """Rows of x and of w lie on one axis: the smaller one, w, is gathered."""
    def body(mesh, comm):
        tall = np.tile(X, (20, 1))
        x, w = distribute(tall, mesh, P("dp")), distribute(W, mesh, P("dp"))
        comm.trace.clear()
        assert (x @ w).placements == {"dp": "Shard(0)"}
        assert comm.trace.bytes_sent(comm.rank) == W.nbytes * 3 // 4

    on_mesh(body, dp=4)


def test_shapes_and_numbers():
    def body(mesh, comm):
        x = distribute(X, mesh, P("dp"))
        assert repr(x) == "ShardedTensor(6, 8)(dp: Shard(0))"
        np.testing.assert_allclose((x / 2 - 1).full_tensor().data, X / 2 - 1)
        np.testing.assert_allclose((x + X).full_tensor().data, 2 * X)
        turned = x.transpose(1, 0)
        assert turned.placements == {"dp": "Shard(1)"} and turned.shape == (8, 6)
        split = x.reshape(6, 2, 4)
        assert split.placements == {"dp": "Shard(0)"}
        np.testing.assert_allclose(split.full_tensor().data, X.reshape(6, 2, 4))
        np.testing.assert_allclose(sharded(ag.softmax)(turned).full_tensor().data,
                                   ag.softmax(Tensor(X.T)).data)
        with pytest.raises(ValueError, match="backward starts from one whole number"):
            x.sum().backward()
        with pytest.raises(ValueError, match="names the axis 'tp', but the mesh has dp"):
            distribute(X, mesh, P("tp"))

    on_mesh(body, dp=2)
