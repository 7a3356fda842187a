"""Tensor and sequence parallelism equal one process: losses, gradients, trained parameters."""

from functools import cache
from itertools import cycle

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, MLP, GPTConfig, Linear
from minipar.optim import AdamW, clip_grad_norm, grad_norm
from minipar.parallel.tensor.parallelize import parallelize
from minipar.testing import worlds
from tests.support.tensor_models import GPTS, IDS, MLPS, TARGETS, gpt, train


@cache
def alone(name, optimizer="sgd"):
    return train({**GPTS, **MLPS}[name](), optimizer=optimizer)


def check(world, name, **options):
    expected = alone(name, options.get("optimizer", "sgd"))

    def body(comm):
        found = train({**GPTS, **MLPS}[name](), comm, **options)
        assert found.keys() == expected.keys()
        for what, values in found.items():
            np.testing.assert_allclose(values, expected[what], rtol=1e-10, atol=1e-11, err_msg=what)
    world.run(body)


@worlds(3, 4, mpi=(), slow=(1, 2), slow_mpi=(2, 4))
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
@pytest.mark.parametrize("name", GPTS)
@pytest.mark.one_in(2)
def test_a_gpt_equals_one_process(world, name, sequence):
    check(world, name, sequence=sequence)


@worlds(mpi=(4,))
@pytest.mark.parametrize("name, sequence", [*zip(GPTS, cycle([True, False]))])
@pytest.mark.one_in(2)
def test_a_gpt_on_real_ranks_equals_one_process(world, name, sequence):
    """In turn with tensors and sequences; the slow tests above have both."""
    check(world, name, sequence=sequence)


@worlds(1, 2, 3, 4, 6, mpi=(2, 4))          # 6: more ranks than some layer has neurons
@pytest.mark.parametrize("name", MLPS)
def test_an_mlp_equals_one_process(world, name):
    check(world, name)


@worlds(2, 4, mpi=(4,))
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
@pytest.mark.one_in(2)
def test_with_adamw_on_a_model_that_had_its_numbers(world, sequence):
    check(world, "tied", sequence=sequence, optimizer="adamw", cut_first=False)


@worlds(2, 4, mpi=(4,))
def test_gathering_again_changes_nothing(world):
    check(world, "dropout", sequence=True, gather_again=True)


@worlds(3, mpi=(3,))
def test_initial_values_are_one_process_s(world):
    expected = GPTS["grouped"]().initialize(7).state_dict()

    def body(comm):
        model = parallelize(GPTS["grouped"](), comm).initialize(7)
        state = model.state_dict()
        assert list(state) == list(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(state[name], values)
        other = parallelize(GPTS["grouped"](), comm).initialize(8)
        other.load_state_dict(state)
        for mine, theirs in zip(other.slabs, model.slabs):
            np.testing.assert_array_equal(mine.data, theirs.data)
        with pytest.raises(ValueError, match=r"wpe.weight has shape \(1, 1\), expected \(12, 48\)"):
            other.load_state_dict({**state, "wpe.weight": np.zeros((1, 1))})
    world.run(body)


@pytest.mark.parametrize("p", [2, 4])
def test_a_slab_for_each_placement_says_where_everything_belongs(p):
    def body(comm):
        model = parallelize(GPTS["tied"](), comm).initialize(0)
        cut, kept = model.slabs
        assert {s.replicated for s in cut.segments} == {()}
        assert {s.replicated for s in kept.segments} == {("tp",)}
        assert all(s.shape == s.global_shape for s in kept.segments)
        assert {s.name.rpartition(".")[0][4:] for s in kept.segments if s.name[0] == "h"} == {
            "ln_1", "ln_2", "attn.c_proj", "mlp.c_proj"}
        return cut.segments, kept.data.size, cut.data.size
    results = Cluster(p).run(body)[0]
    whole = GPTS["tied"]().num_parameters()
    assert sum(size for *_, size in results) + results[0][1] == whole       # nothing twice
    for segments in zip(*[segments for segments, *_ in results]):
        (dim,) = [i for i, n in enumerate(segments[0].global_shape) if segments[0].shape[i] != n]
        ends = [segment.box[dim] for segment in segments]
        assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])]
        assert ends[-1][1] == segments[0].global_shape[dim]
    assert max(size for *_, size in results) - min(size for *_, size in results) == 24  # a word


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_gradients_of_1_have_the_norm_of_the_number_of_parameters(p):
    def body(comm):
        model = parallelize(GPTS["untied"](), comm).initialize(0, np.float64)
        for slab in model.slabs:
            for parameter in slab.parameters:
                parameter.grad = np.ones(parameter.shape)
        assert clip_grad_norm(model.slabs, 1.0) == pytest.approx(whole**0.5, rel=1e-14)
        return grad_norm(model.slabs)
    whole = GPTS["untied"]().num_parameters()
    assert Cluster(p).run(body)[0] == pytest.approx([1.0] * p, rel=1e-5)


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
def test_all_ranks_hold_the_same_bits_of_what_is_replicated(sequence):
    def body(comm):
        model = GPTS["dropout"]()
        train(model, comm, sequence)
        return model.slabs[1].data
    first, *rest = Cluster(4).run(body)[0]
    assert all(np.array_equal(first, other) for other in rest)


def test_on_a_mesh_the_tp_ranks_share_one_model():
    """dp = 2 × tp = 2, each dp rank on the same data: both pairs find what one process finds."""
    expected = alone("tied")["loss 2"]
    losses = Cluster(4).run(lambda comm: train(
        GPTS["tied"](), DeviceMesh(comm, dp=2, tp=2)["tp"])["loss 2"])[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-12)


@pytest.mark.parametrize("build, p, options, message", [
    (gpt(num_heads=6), 4, {}, "6 heads with 6 of keys and values do not divide over 4 ranks: "
                              "choose tp of 1, 2, 3, 6"),
    (gpt(num_heads=12, num_kv_heads=2), 3, {}, "12 heads with 2 of keys and values do not divide "
                                               "over 3 ranks: choose tp of 1, 2"),
    (lambda: MLP([5, 1, 3]), 2, {}, "a layer of width 1 cannot be cut over 2 ranks: make it wider"),
    (lambda: GPT(GPTConfig(3, num_heads=4)), 4, {}, "3 tokens leaves some of 4 ranks without any"),
    (lambda: MLP([4, 4]), 2, {"sequence_parallel": True}, "an MLP has no sequence to split"),
    (gpt(), 2, {"gather_again": True}, "gather_again needs sequence_parallel=True"),
    (lambda: Linear(2, 2), 2, {}, "takes a plain MLP or GPT, not Linear"),
])
def test_what_cannot_be_cut_is_refused(build, p, options, message):
    with pytest.raises(ValueError, match=message):
        Cluster(p).run(lambda comm: parallelize(build(), comm, **options))


def test_twice_is_refused():
    def body(comm):
        parallelize(parallelize(MLP([2, 4, 2]), comm), comm)
    with pytest.raises(ValueError, match="plain MLP or GPT, not one that is cut already"):
        Cluster(2).run(body)


def test_tokens_that_do_not_divide_are_refused():
    def body(comm):
        model = parallelize(GPTS["tied"](), comm, sequence_parallel=True).initialize(0)
        model.loss(IDS[0][:, :10], TARGETS[0][:, :10])
    with pytest.raises(ValueError, match="10 tokens over 4 ranks, .*: pad them to 12"):
        Cluster(4).run(body)


@worlds(2, mpi=(2,))
def test_the_optimizer_goes_on_with_states_of_one_process(world):
    model = GPTS["grouped"]().initialize(0, np.float64)
    alone = AdamW(model.slabs, lr=0.1)
    model.loss(IDS[0], TARGETS[0]).backward()
    alone.step()
    states = alone.state_dict()

    def body(comm):
        ours = AdamW(parallelize(GPTS["grouped"](), comm).initialize(0, np.float64).slabs, lr=0.1)
        ours.load_state_dict(states, num_steps=1)
        back = ours.state_dict()
        assert back.keys() == states.keys()
        for name, values in states.items():
            np.testing.assert_array_equal(back[name], values)
    world.run(body)
