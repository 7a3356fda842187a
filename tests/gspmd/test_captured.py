"""Arrays that a function captures: constants of the program; weights and values are refused."""

import numpy as np
import pytest

from minipar import MLP, Cluster, DeviceMesh
from minipar.autograd import Tensor, no_grad
from minipar.gspmd import P, distribute, plan, shard, shard_map, sharded
from minipar.nn import Module
from minipar.nn.layers import Linear
from minipar.testing.worlds import worlds

X = np.random.default_rng(2).standard_normal((6, 4))
WEIGHT = Tensor(np.ones((4, 2)), requires_grad=True)
SCALE = Tensor(np.array(2.0), requires_grad=True)           # without axes, as a number
LAYER = Linear(4, 2).initialize(1, np.float64)
MODEL = MLP([4, 8, 3]).initialize(0, np.float64)
REFUSED = r"captures an array \(.*\) that needs a gradient, which it would not get: pass it"
CAPTURES = {
    "a tensor": lambda x: (x @ WEIGHT).sum(), "a number": lambda x: (x * SCALE).sum(),
    "a layer": lambda x: LAYER(x).sum(), "what a weight gives": lambda x: (WEIGHT * 2.0).sum(),
    "a view of a weight": lambda x: (x @ WEIGHT[:, :1]).sum(),
    "what was made of a weight before": lambda x, w=WEIGHT * 2.0: (x @ w).sum(),
}


@pytest.mark.parametrize("name", CAPTURES)
def test_captured_weights_are_refused(name):
    with pytest.raises(ValueError, match=REFUSED):
        plan(CAPTURES[name], Tensor(X), mesh={"dp": 3}, annotations={"x0": P("dp")})

    def eager(comm):
        with pytest.raises(ValueError, match=REFUSED):
            sharded(CAPTURES[name])(distribute(X, DeviceMesh(comm, dp=3), P("dp")))

    Cluster(3).run(eager)


def test_the_model_itself_is_given_not_captured():
    with pytest.raises(ValueError, match=REFUSED):
        plan(lambda model, x: MODEL(x).sum(), Tensor(X), model=MODEL, mesh={"dp": 3},
             annotations={})


class WithAdapter(Module):
    """A model and an adapter behind it."""

    def __init__(self):
        super().__init__()
        self.body, self.adapter = MLP([4, 8, 3]), Linear(3, 2)


def loss(model, x):
    return (model.adapter(model.body(x)) ** 2).sum()


@worlds(4)
def test_within_the_model_both_are_trained(world):
    def body(comm):
        alone = WithAdapter().initialize(0, np.float64)
        loss(alone, Tensor(X)).backward()
        step = shard(loss, Tensor(X), model=WithAdapter().initialize(0, np.float64),
                     dtype=np.float64, mesh=DeviceMesh(comm, dp=4), annotations={"x0": P("dp")})
        step(X).backward()
        for name, parameter in alone.named_parameters():
            np.testing.assert_allclose(step.parameters[name].grad, parameter.grad, err_msg=name)

    world.run(body)


def test_as_an_argument_of_the_eager_form_it_gets_its_gradient():
    def body(comm):
        weight = Tensor(np.ones((4, 2)), requires_grad=True)
        x = distribute(X, DeviceMesh(comm, dp=3), P("dp"))
        sharded(lambda x, w: (x @ w).sum())(x, weight).redistribute(P()).backward()
        np.testing.assert_allclose(weight.grad, np.repeat(X.sum(axis=0)[:, None], 2, axis=1))

    Cluster(3).run(body)


def test_what_needs_no_gradient_is_a_constant_as_it_was_when_traced():
    def body(comm):
        rows, columns = np.arange(6.0)[:, None], np.arange(4.0)

        def program(x):
            with no_grad():
                scale = WEIGHT.sum()
            return (x * Tensor(rows) * columns * WEIGHT.detach().sum() * scale).sum()

        expected = program(Tensor(X)).item()
        step = shard(program, Tensor(X), mesh=DeviceMesh(comm, dp=3), annotations={"x0": P("dp")})
        rows[...], columns[...] = 5.0, 7.0
        np.testing.assert_allclose(step(Tensor(X)).item(), expected)

    Cluster(3).run(body)


def test_a_shard_map_takes_weights_and_values_as_operands_only():
    def planned(function, *inputs):
        return plan(function, *inputs, mesh={"dp": 3}, annotations={"x0": P("dp")})

    def on_pieces(x, w):
        return shard_map(lambda mesh, piece: piece @ w, {"dp": 3}, [P("dp")], P("dp"))(x).sum()

    with pytest.raises(ValueError, match="captures an array that needs a gradient, of which each"):
        planned(lambda x: on_pieces(x, WEIGHT), Tensor(X))
    with pytest.raises(ValueError, match=r"captures an array \(4, 2\) of the program around it"):
        planned(on_pieces, Tensor(X), Tensor(np.ones((4, 2))))
    with pytest.raises(ValueError, match=r"captures an array \(4, 2\) of the program around it"):
        planned(lambda x, w: on_pieces(x, w + 1.0), Tensor(X), Tensor(np.ones((4, 2))))

    def constant(comm):
        weight = WEIGHT.data
        step = shard(lambda x: on_pieces(x, Tensor(weight)) + Tensor(weight).sum(), Tensor(X),
                     mesh=DeviceMesh(comm, dp=3), annotations={"x0": P("dp")})
        np.testing.assert_allclose(step(X).item(), 2 * X.sum() + 8)

    Cluster(3).run(constant)


def test_an_input_that_needs_a_gradient_is_refused_and_its_piece_gets_it():
    def body(comm):
        x = Tensor(X.copy(), requires_grad=True)
        step = shard(lambda x: (x * x).sum(), x, mesh=DeviceMesh(comm, dp=3),
                     annotations={"x0": P("dp")})
        with pytest.raises(ValueError, match="x0 needs a gradient, which only pieces get: give"):
            step(x)
        piece = Tensor(X[2 * comm.rank:][:2].copy(), requires_grad=True)
        step.run({"x0": piece}).backward()
        np.testing.assert_allclose(piece.grad, 2 * piece.data)

    Cluster(3).run(body)
