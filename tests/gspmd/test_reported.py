"""Programs that once did not end, cut heads, mixed orders, sent more than planned; and siblings."""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar import Cluster, DeviceMesh
from minipar.autograd import Tensor
from minipar.gspmd import P, constrain, distribute, plan, shard, sharded
from minipar.gspmd.graph import trace
from minipar.gspmd.propagate import all_open, propagate
from minipar.gspmd.rules.factor_flow import Flow
from minipar.gspmd.spec import show
from minipar.testing.worlds import worlds

from .random_programs import check

rng = np.random.default_rng(0)


def zeros(*shape, dtype=np.float64):
    return Tensor(np.zeros(shape, dtype), requires_grad=True)


def shardings_of(planned):
    values = [*planned.graph.inputs.values(), *[op.result for op in planned.graph.operations]]
    return {value.name: show(planned.shardings.of(value)) for value in values}


def checked(program, mesh, annotations, **arrays):
    planned = plan(program, *[Tensor(x, requires_grad=True) if x.dtype.kind == "f" else x
                              for x in arrays.values()],
                   mesh=mesh, annotations=annotations, names=list(arrays))
    check(mesh, planned, program, arrays, annotations)
    return planned


# ---- propagation

def test_an_axis_that_no_factor_has_is_kept():
    """The reshape has a on its 6 rows, which are 3 × 2: neither 3 nor 2 of them can take it."""
    found = plan(lambda x, z: x.reshape(6) * z, zeros(3, 2), zeros(6), mesh={"a": 2, "b": 2},
                 annotations={"x0": P(None, "b"), "x1": P("a")})
    assert shardings_of(found) == {"x0": "(·, b)", "x1": "(a)", "reshape": "(a)",
                                   "multiply": "(a)"}


def test_an_axis_of_one_row_is_kept():
    found = plan(lambda z, x, y: (y.reshape(2, 2) * z, x + y), zeros(2), zeros(1, 4), zeros(1, 4),
                 mesh={"a": 2, "b": 2}, annotations={"x0": P("b"), "x1": P("a")})
    assert shardings_of(found)["x2"] == "(a, ·)"


def test_a_value_loses_no_axis():
    graph = trace(lambda x: x * 2.0, zeros(4, 4))
    shardings = all_open(graph, {"a": 2, "b": 2})
    x = graph.inputs["x0"]
    assert shardings.extend(x, 0, ("a",)) and shardings.extend(x, 0, ("a", "b"))
    for fewer_or_other in ((), ("a",), ("a", "b"), ("b", "a")):
        assert not shardings.extend(x, 0, fewer_or_other)
    assert shardings.of(x) == (("a", "b"), ())


def test_propagation_that_does_not_end_says_so(monkeypatch):
    monkeypatch.setattr(Flow, "run", lambda flow: True)
    with pytest.raises(AssertionError, match="the propagation does not end"):
        propagate(trace(lambda x: x * 2.0, zeros(4)), {"a": 2}, {"x0": P("a")})


@pytest.mark.parametrize(("left", "right", "result"), [(64, 128, "(·, x)"), (128, 64, "(x, ·)"),
                                                       (64, 64, "(x, ·)")])
def test_the_larger_operand_keeps_the_axis(left, right, result):
    found = plan(lambda x, w: x @ w, zeros(left, 32), zeros(32, right), mesh={"x": 2},
                 annotations={"x0": P("x"), "x1": P(None, "x")})
    assert shardings_of(found)["matmul"] == result


def test_operations_that_no_output_needs_are_left_out():
    def program(x):
        _ = ag.exp(x) @ np.ones((4, 4))
        return x * 2.0

    graph = trace(program, zeros(4, 4))
    assert [op.name for op in graph.operations] == ["multiply"] and not graph.constants
    assert graph.inputs["x0"].num_uses == 1


# ---- heads

@worlds(2)
def test_a_head_is_never_cut(world):
    x = rng.standard_normal((1, 3, 12))
    alone = ag.fused_attention(Tensor(x), 1).data

    def body(comm):
        step = shard(lambda x: ag.fused_attention(x, 1), Tensor(x),
                     mesh=DeviceMesh(comm, tp=comm.size), annotations={"x0": P(None, None, "tp")})
        result = step(x).data
        np.testing.assert_allclose(result, alone)
        eager = sharded(ag.fused_attention)(distribute(
            x, DeviceMesh(comm, tp=comm.size), P(None, None, "tp")), 1)
        np.testing.assert_allclose(eager.full_tensor().data, alone)

    world.run(body)


@pytest.mark.parametrize("spec", [P(None, None, ("a", "b")), P(None, None, "b"), P("b", None, "a"),
                                  P(None, "a", "b")], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (2, 2), (3, 1), (4, 2), (6, 6), (6, 3)])
def test_heads_that_axes_do_not_divide(heads, kv_heads, spec):
    mesh, width = {"a": 2, "b": 3}, 2 * (heads + 2 * kv_heads)
    x = rng.standard_normal((2, 4, width))
    angles = np.arange(4.0)[None, :, None]
    checked(lambda x: ag.fused_attention(x, heads, kv_heads), mesh, {"x": spec}, x=x)
    checked(lambda x: ag.rotary(x, np.cos(angles), np.sin(angles), width // 2), mesh, {"x": spec},
            x=x)
    checked(lambda x, w: ag.fused_attention(ag.rotary(
        ag.linear(x, w), np.cos(angles), np.sin(angles), heads + kv_heads), heads, kv_heads),
        mesh, {"x": spec, "w": P(None, ("b", "a"))}, x=x, w=rng.standard_normal((width, width)))


# ---- [q | k | v]

def test_a_second_operation_reads_queries_keys_and_values():
    x, w = np.arange(6.0).reshape(1, 1, 6), np.arange(6.0).reshape(6, 1)

    def body(comm):
        step = shard(lambda x, w: (ag.fused_attention(x, 2), ag.linear(x, w)), Tensor(x), Tensor(w),
                     mesh=DeviceMesh(comm, tp=2), annotations={"x0": P(None, None, "tp")})
        return step(x, w)[1].item()

    assert Cluster(2).run(body)[0] == [55.0, 55.0]


WEIGHT, OTHER = rng.standard_normal((12, 12)), rng.standard_normal((2, 3, 12))
READERS = {
    "linear": lambda qkv, y: ag.linear(qkv, WEIGHT), "add": lambda qkv, y: qkv + y,
    "multiply": lambda qkv, y: qkv * y, "softmax": lambda qkv, y: ag.softmax(qkv),
    "sum": lambda qkv, y: qkv.sum(axis=-1), "max": lambda qkv, y: qkv.max(axis=-1),
    "slice": lambda qkv, y: qkv[:, :, 2:9], "reshape": lambda qkv, y: qkv.reshape(6, 12),
    "transpose": lambda qkv, y: qkv.transpose(2, 1, 0),
    "concatenate": lambda qkv, y: ag.concatenate([qkv, y], axis=-1),
    "constrain": lambda qkv, y: ag.linear(constrain(qkv, P(None, None, "tp")), WEIGHT),
    "itself": lambda qkv, y: qkv, "other heads": lambda qkv, y: ag.fused_attention(qkv, 4, 1),
    "as many heads": lambda qkv, y: ag.fused_attention(qkv, 1, 1),
    "cross entropy": lambda qkv, y: ag.cross_entropy(qkv, np.array([[1, 5, 11], [0, 7, 9]]), 1.0),
    "nothing": lambda qkv, y: y + (ag.tanh(qkv), 0.0)[1],
}


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", READERS)
def test_whatever_reads_them_gets_the_right_order(name, size):
    def program(x, w, y):
        qkv = ag.linear(x, w)
        return ag.fused_attention(qkv, 2), READERS[name](qkv, y)

    for specs in ({"w": P(None, "tp")}, {"x": P(None, None, "tp"), "y": P(None, None, "tp")},
                  {"w": P(None, "tp"), "y": P(None, None, "tp"), "fusedattention": P("tp")}):
        checked(program, {"tp": size}, specs, x=OTHER, w=WEIGHT, y=OTHER[::-1].copy())


# ---- bytes

@worlds(8)
def test_a_permute_is_one_message(world):
    whole = rng.standard_normal((8000, 64)).astype(np.float32)

    def body(comm):
        mesh = DeviceMesh(comm, order=("x", "y"), x=2, y=comm.size // 2)
        step = shard(lambda a: constrain(a, P(("y", "x"))), Tensor(whole), mesh=mesh,
                     annotations={"x0": P(("x", "y"))})
        rows = 8000 // comm.size
        assert step.plan.program.num_bytes == rows * 64 * 4         # of 8 ranks: 256,000
        comm.start_trace()
        result = step(whole).data
        assert comm.stop_trace().bytes_sent(comm.rank) == rows * 64 * 4
        place = mesh.coordinate("y") * 2 + mesh.coordinate("x")
        np.testing.assert_array_equal(result, whole[rows * place:rows * place + rows])

    world.run(body)


def test_axes_of_three_in_another_order():
    whole = rng.standard_normal((13, 3))
    for order in (("c", "a", "b"), ("b", "c", "a"), ("c", "b", "a")):
        checked(lambda a, order=order: constrain(a, P(order)) * 2.0, {"a": 2, "b": 3, "c": 2},
                {"a": P(("a", "b", "c"))}, a=whole)


def test_the_cheaper_of_two_cuts():
    """A small operand is gathered; the parts of a large result are not summed."""
    planned = checked(lambda a, b: a @ b, {"x": 2, "y": 4}, {"a": P(None, "y"), "b": P(None, None)},
                      a=rng.standard_normal((64, 32)), b=rng.standard_normal((32, 128)))
    assert planned.program.num_bytes == 3 * 64 * 32 * 8 // 4
    tall = checked(lambda a, b: a @ b, {"y": 4}, {"a": P("y"), "matmul": P()},
                   a=rng.standard_normal((64, 8)), b=rng.standard_normal((8, 128)))
    assert tall.program.num_bytes == 3 * 64 * 8 * 8 // 4


@pytest.mark.parametrize("rows", [1, 5, 9])
def test_messages_within_operations_are_planned(rows):
    ids = np.arange(rows) % 5
    x = rng.standard_normal((rows, 5))
    mesh = {"a": 3, "b": 2}
    for spec in (P("a", "b"), P("b", "a"), P(None, ("a", "b")), P(("b", "a"))):
        for program in (lambda x: ag.cross_entropy(x, ids, 2.0), lambda x: x.max(axis=1),
                        lambda x: x.max(axis=0), lambda x: x.max(), lambda x: x[:, 1:4],
                        lambda x: x[rows // 2:], lambda x: x[:1] * 2.0):
            checked(program, mesh, {"x": spec}, x=x)


# ---- the eager form

def test_a_function_of_tensors_says_what_to_call():
    def body(comm):
        x = distribute(np.ones((4, 4)), DeviceMesh(comm, dp=2), P("dp"))
        for function in (ag.exp, ag.softmax, lambda x: ag.linear(Tensor(np.ones((4, 4))), x),
                         lambda x: ag.concatenate([x, x]), lambda x: ag.where(True, x, 0.0)):
            with pytest.raises(TypeError, match=r"^a function of Tensors .* call sharded\("):
                function(x)
        np.testing.assert_allclose(sharded(ag.exp)(x).full_tensor().data, np.e)

    Cluster(2).run(body)
