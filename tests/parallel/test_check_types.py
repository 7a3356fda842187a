"""The types I, R, V, P: right programs pass, each classic mistake is refused in one sentence."""

import numpy as np
import pytest

from minipar import autograd as ag
from minipar.autograd import GradientSlot, Tensor
from minipar.comm import Cluster
from minipar.nn import MLP, Linear
from minipar.nn.layers import LayerNorm
from minipar.parallel import conjugate as pairs
from minipar.parallel.check_types import check_types
from minipar.parallel.context.attention import context_attention
from minipar.parallel.context.parallelize_context import parallelize_context
from minipar.parallel.context.rank_groups import ContextOptions, ContextSplit
from minipar.parallel.data.ddp_by_autograd import data_parallel
from minipar.parallel.tensor.layers import RowLinear, TensorSplit
from minipar.parallel.tensor.parallelize import parallelize, split_model
from tests.support.tensor_models import GPTS, MLPS, inputs_of

P = 2


def leaves(model):
    """(parameters by name, the names of those that are cut over tp)."""
    named = dict(model.named_parameters())
    return named, {name for name, p in named.items() if "tp" not in p.replicated}


@pytest.mark.parametrize("options", [{}, {"sequence_parallel": True},
                                     {"sequence_parallel": True, "gather_again": True}])
@pytest.mark.parametrize("name", [*GPTS, *MLPS])
def test_our_own_programs_pass(name, options):
    if name in MLPS and options:
        return

    def body(comm):
        model = parallelize({**GPTS, **MLPS}[name](), comm, **options).initialize(0, np.float64)
        loss = model.loss(*inputs_of(model, 0))
        assert check_types(loss, comm, *leaves(model)) == "I"
        loss.backward()                         # the check left the graph as it was
    Cluster(P).run(body)


def test_data_parallelism_passes_and_needs_its_copies():
    def body(comm, copies):
        model = GPTS["tied"]().initialize(0, np.float64)
        if copies:
            data_parallel(model, comm)
        loss = model.loss(*inputs_of(model, comm.rank))
        return check_types(loss, comm, dict(model.named_parameters()), data="V")
    assert Cluster(P).run(lambda comm: body(comm, True))[0] == ["V"] * P
    with pytest.raises(TypeError, match="wte.weight is I, .* the data is V, .*copy_to it before"):
        Cluster(P).run(lambda comm: body(comm, False))


@pytest.mark.parametrize("options", [ContextOptions(), ContextOptions("all_gather"),
                                     ContextOptions(ulysses=P)])
def test_context_parallelism_passes_and_needs_its_copies(options):
    """Tokens vary as samples do, so weights need the same copies, or sums after backward."""
    def body(comm, copies):
        model = GPTS["tied"]().initialize(0, np.float64)
        parallelize_context(model, ContextSplit(comm, options))
        if copies:
            data_parallel(model, comm)
        loss = model.loss(*inputs_of(model, 0))
        return check_types(loss, comm, dict(model.named_parameters()), data="V")
    assert Cluster(P).run(lambda comm: body(comm, True))[0] == ["V"] * P
    with pytest.raises(TypeError, match="wte.weight is I, .* the data is V, .*copy_to it before"):
        Cluster(P).run(lambda comm: body(comm, False))


def test_attention_over_ranks_takes_the_tokens_of_each():
    """Tokens that all ranks have would be attended to p times."""
    def body(comm):
        qkv = pairs.copy_to(Tensor(np.ones((1, 4, 12)), requires_grad=True), comm)
        out = context_attention(qkv, comm, [np.arange(4), np.arange(4, 8)], 2)
        check_types(out.sum(), comm, {}, data="V")
    with pytest.raises(TypeError, match="ContextAttention takes V, but .*is R.*leave this out"):
        Cluster(P).run(body)


def test_sharded_parameters_pass():
    """ZeRO-3's idea: a weight that is gathered for one use."""
    def body(comm):
        shard = Tensor(np.ones((4 // comm.size, 3)))
        shard.grad_target = GradientSlot(weight_only=True)
        x = Tensor(np.full((2, 4), comm.rank + 1.0))
        loss = ag.linear(x, pairs.all_gather(shard, comm)).sum()
        return check_types(loss, comm, {"shard": shard}, {"shard"}, data="V")
    assert Cluster(P).run(body)[0] == ["V"] * P


def leaf(*shape):
    return Tensor(np.ones(shape), requires_grad=True)


MISTAKES = {        # name: (a program of comm, an I leaf, a V leaf), the sentence
    "all_gather, then a replicated loss": (
        lambda c, i, v: pairs.all_gather(v, c).sum(),
        "the loss is R.*2 times too large.*gather_from instead"),
    "forgotten f": (
        lambda c, i, v: pairs.reduce_from(ag.matmul(i, v), c).sum(),
        "MatMul: i is I.*v is V.*copy_to it before this use"),
    "forgotten g, then a residual": (
        lambda c, i, v: (i + ag.matmul(pairs.copy_to(i, c), v)).sum(),
        "Add: i is I.*the result of MatMul is V"),
    "g twice": (
        lambda c, i, v: pairs.reduce_from(pairs.reduce_from(v, c), c).sum(),
        "ReduceFrom takes P or V, but the result of ReduceFrom is I.*summed twice"),
    "f twice": (
        lambda c, i, v: (pairs.copy_to(pairs.copy_to(i, c), c) * v).sum(),
        "CopyTo takes I, but the result of CopyTo is R.*a copy already"),
    "f of what ranks do not share": (
        lambda c, i, v: pairs.copy_to(v, c).sum(), "CopyTo takes I, but v is V"),
    "gathering what all have": (
        lambda c, i, v: pairs.gather_from(i, c).sum(), "GatherFrom takes V, but i is I.*leave"),
    "g of a copy": (
        lambda c, i, v: pairs.reduce_from(pairs.copy_to(i, c), c).sum(),
        "ReduceFrom takes P or V, but the result of CopyTo is R.*p times too large"),
    "a copy beside the original": (
        lambda c, i, v: (pairs.copy_to(i, c) * i * v).sum(), "Multiply: i is I.*CopyTo is R"),
    "scattering a copy": (
        lambda c, i, v: pairs.scatter_to(pairs.copy_to(i, c), c).sum(), "ScatterTo takes I"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_classic_mistake_is_refused(name):
    program, message = MISTAKES[name]

    def body(comm):
        i, v = leaf(2, 2), leaf(2, 2)
        check_types(program(comm, i, v), comm, {"i": i, "v": v}, {"v"})
    with pytest.raises(TypeError, match=message) as error:
        Cluster(P).run(body)
    assert "\n" not in str(error.value)


def pair(comm, num_hidden=4, split=TensorSplit):
    """A column layer and a row layer, cut."""
    model = split_model(MLP([3, num_hidden, 3]), split(comm)).initialize(0, np.float64)
    assert model[0].weight.shape[1] < num_hidden and isinstance(model[2], RowLinear)
    return model


@pytest.mark.parametrize("use, message", [
    (lambda y: ag.gelu(y), "Gelu before the sum: the result of Linear is P.*reduce_from"),
    (lambda y: y * y, "Multiply before the sum"),
    (lambda y: y + Tensor(np.ones(3), requires_grad=True), "Add before the sum")])
def test_a_partial_sum_is_only_added_up(use, message):
    def body(comm, use):
        model = pair(comm)
        y = ag.linear(ag.relu(model[0](Tensor(np.ones((2, 3))))), model[2].weight)
        loss = pairs.reduce_from(use(y) * 0.5, comm).sum()
        return check_types(loss, comm, *leaves(model))
    with pytest.raises(TypeError, match=message):
        Cluster(P).run(lambda comm: body(comm, use))
    assert Cluster(P).run(lambda comm: body(comm, lambda y: -y.reshape(3, 2)))[0] == ["I"] * P


def test_a_layer_norm_on_split_tokens_needs_copies():
    def body(comm, copies):
        norm = LayerNorm(4).initialize(0, np.float64)
        if copies:
            for parameter in norm.parameters():
                parameter.on_use(lambda w: pairs.copy_to(w, comm))
        x = leaf(1, 4, 4)
        y = pairs.gather_from(norm(pairs.scatter_to(x, comm, 1)), comm, 1)
        return check_types(y.sum(), comm, {"x": x, **dict(norm.named_parameters())})
    assert Cluster(P).run(lambda comm: body(comm, True))[0] == ["I"] * P
    with pytest.raises(TypeError, match="LayerNorm: weight is I.*the result of ScatterTo is V"):
        Cluster(P).run(lambda comm: body(comm, False))


def test_what_is_refused_has_wrong_gradients_and_what_passes_right_ones():
    """The check against the truth: dx of a column and row pair, with and without f."""
    def body(comm, forgotten):
        without = type("NoF", (TensorSplit,), {"enter": lambda self, x: x})
        model = pair(comm, 32, without if forgotten else TensorSplit)
        x = leaf(2, 3)
        loss = model(x).sum()
        try:
            passed = check_types(loss, comm, {**leaves(model)[0], "x": x}, leaves(model)[1]) == "I"
        except TypeError:
            passed = False
        loss.backward()
        return passed, x.grad
    alone = MLP([3, 32, 3]).initialize(0, np.float64)
    x = leaf(2, 3)
    alone(x).sum().backward()
    for forgotten in (False, True):
        for passed, grad in Cluster(P).run(lambda comm, f=forgotten: body(comm, f))[0]:
            assert passed == np.allclose(grad, x.grad, rtol=1e-10) == (not forgotten)


def test_messages_of_another_axis_are_computation():
    def body(comm):
        other = comm.split(0)
        model = pair(comm)
        for parameter in model.parameters():
            parameter.on_use(lambda w: pairs.copy_to(w, other))     # dp around tp
        loss = model.loss(np.ones((2, 3)), np.zeros(2, np.int64))
        return check_types(loss, comm, *leaves(model))
    assert Cluster(P).run(body)[0] == ["I"] * P


def test_a_loss_without_a_graph():
    with pytest.raises(TypeError, match="no graph to check"):
        check_types(Tensor(np.ones(())), None, {})
    layer = Linear(2, 1).initialize(0)
    assert check_types(layer(Tensor(np.ones((1, 2), np.float32))), None, {}) == "I"
