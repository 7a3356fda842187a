"""shard_map: explicit collectives within an annotated program, forward and backward."""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar import Cluster, DeviceMesh
from minipar.autograd import Tensor
from minipar.gspmd import P, plan, shard, shard_map
from minipar.nn import GPT, GPTConfig
from minipar.parallel.conjugate import copy_to, gather_from, reduce_from
from minipar.parallel.tensor.vocabulary import vocabulary_cross_entropy
from minipar.testing.worlds import worlds

from .cases import largest_error, run_alone

MESH = {"dp": 2, "tp": 2}
ARRAYS = {name: np.random.default_rng(i).standard_normal(shape) for i, (name, shape) in
          enumerate({"x": (4, 6), "w": (6, 8), "v": (8, 4)}.items())}


def columns_and_rows(mesh, x, w, v):
    """Megatron's pair by hand, with its f and g."""
    return reduce_from(ag.tanh(copy_to(x, mesh["tp"]) @ w) @ v, mesh["tp"])


def by_hand(x, w, v):
    pair = shard_map(columns_and_rows, MESH, [P("dp"), P(None, "tp"), P("tp")], P("dp"))
    return ag.tanh(pair(x * 2, w, v))


def plain(x, w, v):
    return ag.tanh(ag.tanh((x * 2) @ w) @ v)


def planned(function, annotations, mesh=MESH):
    leaves = [Tensor(a, requires_grad=True) for a in ARRAYS.values()]
    return plan(function, *leaves, names=list(ARRAYS), mesh=mesh, annotations=annotations)


@worlds(4)
@pytest.mark.parametrize("annotations", [{}, {"x": P("dp"), "w": P("tp"), "v": P("tp", "dp")}],
                         ids=str)
def test_a_pair_of_layers_by_hand(world, annotations):
    expected = run_alone(plain, ARRAYS)
    made = planned(by_hand, annotations)

    def body(comm):
        assert largest_error(comm, MESH, made, ARRAYS, expected) < 1e-10

    world.run(body)


def test_a_weight_gathered_by_hand():
    """Every rank computes the same from the gathered weight: an invariant use, gather_from."""
    def body(mesh, x, w):
        return x @ gather_from(w, mesh["tp"], 1)

    def program(x, w, v):
        return shard_map(body, MESH, [P("dp"), P(None, "tp")], P("dp"))(x, w) @ v

    made, expected = planned(program, {}), run_alone(lambda x, w, v: (x @ w) @ v, ARRAYS)
    assert max(Cluster(4).run(
        lambda comm: largest_error(comm, MESH, made, ARRAYS, expected))[0]) < 1e-10


def test_the_shape_of_the_result_is_found_without_numbers():
    made = planned(by_hand, {})
    operation = next(op for op in made.graph.operations if op.function.__name__ == "ShardMap")
    assert operation.result.shape == (4, 4)
    assert made.shardings.of(operation.result) == (("dp",), ())


def test_a_loss_by_hand_in_a_gpt():
    config = GPTConfig(vocab_size=12, context=8, num_layers=1, num_heads=4, width=16)
    ids, targets = np.random.default_rng(0).integers(0, 12, (2, 4, 8))

    def cross_entropy(mesh, logits, targets):
        return vocabulary_cross_entropy(logits, targets.data, mesh["tp"], 12, 32.0)

    def loss(model, ids, targets):
        by_vocabulary = shard_map(cross_entropy, {"tp": 4}, [P(None, None, "tp"), P()], P())
        return by_vocabulary(model(ids), Tensor(targets))

    alone = GPT(config).initialize(seed=1, dtype=np.float64)
    expected = alone.loss(ids, targets, loss_divisor=32.0)
    expected.backward()
    grads = {name: parameter.grad for name, parameter in alone.named_parameters()}

    def body(comm):
        step = shard(loss, ids, targets, model=GPT(config), mesh=DeviceMesh(comm, tp=4),
                     annotations={"h.*.mlp.c_fc.weight": P(None, "tp"), "wte.weight": P("tp")},
                     dtype=np.float64)
        step.initialize(seed=1, dtype=np.float64)
        value = step(ids, targets)
        value.backward()
        assert abs(value.item() - expected.item()) < 1e-12
        for name, parameter in step.parameters.items():
            np.testing.assert_allclose(parameter.grad, parameter.local_part(grads[name]),
                                       atol=1e-12, err_msg=name)

    Cluster(4).run(body)


def test_mistakes():
    with pytest.raises(TypeError, match="call it in a program that gspmd.shard partitions"):
        by_hand(*[Tensor(a) for a in ARRAYS.values()])
    with pytest.raises(ValueError, match="has 3 in_specs, but 2 operands"):
        shard_map(columns_and_rows, MESH, [P()] * 3, P())(1, 2)
    with pytest.raises(ValueError, match="6 does not divide by 4: pad it"):
        planned(lambda x, w, v: shard_map(lambda mesh, x: x, MESH, [P(None, ("dp", "tp"))],
                                          P(None, ("dp", "tp")))(x), {})
    with pytest.raises(ValueError, match="names the axis 'cp'"):
        planned(lambda x, w, v: shard_map(lambda mesh, x: x, MESH, [P("cp")], P("cp"))(x), {})
