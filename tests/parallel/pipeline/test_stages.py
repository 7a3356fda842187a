"""Models cut into stages: where, who keeps what, what is counted."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.nn import MLP, Linear, Module
from minipar.nn.chain import chain
from minipar.nn.module import ChainPart
from minipar.nn.slab import Buffers
from minipar.optim import clip_grad_norm, grad_norm
from minipar.parallel.pipeline.cut_points import cut_evenly
from minipar.parallel.pipeline.stages import Stages, StageSlab
from minipar.testing import worlds
from tests.support.cases import DEEP


def heaviest(weights, cuts):
    return max(sum(weights[a:b]) for a, b in pairwise([0, *cuts, len(weights)]))


@pytest.mark.parametrize("num_stages", range(1, 8))
def test_no_other_cuts_have_a_lighter_heaviest_stage(num_stages):
    draw = np.random.default_rng(num_stages)
    for _ in range(20):
        weights = draw.integers(0, 9, 7).tolist()
        cuts = cut_evenly(weights, num_stages)
        assert len(cuts) == num_stages - 1 and all(a < b for a, b in pairwise([0, *cuts, 7]))
        assert heaviest(weights, cuts) == min(heaviest(weights, other) for other in
                                              combinations(range(1, 7), num_stages - 1))


def test_layers_are_cut_evenly():
    assert cut_evenly([1] * 8, 4) == [2, 4, 6]


@pytest.mark.parametrize("num_stages", [0, 8])
def test_a_stage_has_a_part(num_stages):
    with pytest.raises(ValueError, match=f"a model of 7 parts has 1 to 7 stages, not {num_stages}"):
        cut_evenly([1] * 7, num_stages)


@pytest.mark.parametrize("model", DEEP)
def test_a_chain_is_the_model(model):
    model = DEEP[model]().initialize(0, np.float64)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((3, 4)) if isinstance(model, MLP) else draw.integers(0, 11, (3, 6))
    y = x
    for part in chain(model):
        y = part.apply(y)
    assert np.array_equal(y.data, model.logits(x).data)
    assert {p for part in chain(model) for p in part.parameters()} == {*model.parameters()}


class Twice(Module):
    """A chain of the user's own, which forgets a module."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Linear(3, 3), Linear(3, 3)


def test_models_without_a_chain_are_refused():
    with pytest.raises(TypeError, match="a Twice does not say what its parts are"):
        chain(Twice())


def test_a_forgotten_parameter_is_named():
    @chain.register
    def _(model: Twice):
        return [ChainPart("a", lambda x: model.a(Tensor(x)), [model.a])]
    with pytest.raises(ValueError, match="no part of the chain has b.weight, b.bias"):
        Cluster(1).run(lambda comm: Stages(Twice().initialize(), comm, [0]))


@pytest.mark.parametrize("cuts", [[0], [6], [9], [2, 3], []])
def test_bad_cuts_are_refused(cuts):
    with pytest.raises(ValueError, match="give 1 numbers of parts that rise from 1 to 5"):
        Cluster(2).run(lambda comm: Stages(MLP([3] * 7).initialize(), comm, [0, 1], cuts))


@worlds(1, 2, 3, 4, mpi=(2, 4))
@pytest.mark.parametrize("model", DEEP)
def test_each_rank_keeps_its_own(world, model):
    """One slab a rank, and one of what is tied; together they are the model, and a tied weight
    is there twice."""
    whole = DEEP[model]().initialize(0, np.float64)

    def body(comm):
        model_here = DEEP[model]().initialize(0, np.float64)
        staged = Stages(model_here, comm, list(range(comm.size)))
        mine = {p for part in staged.parts[comm.rank] for p in part.parameters()}
        assert {p for p in model_here.parameters() if p.initialized} == mine
        assert sum(slab.data.size for slab in staged.whole_slabs) == sum(p.size for p in mine)
        tied = model.endswith(" tied") and comm.size > 1
        assert len(staged.shared) == (tied and comm.rank in (0, comm.size - 1))
        slabs = Buffers(staged.whole_slabs)
        state = slabs.named([slab.data for slab in slabs])
        for name, values in whole.state_dict().items():
            assert np.array_equal(state.pop(name), values)
        assert not state
        # All gradients 1: the norm is √(number of parameters), each counted once.
        for slab in staged.whole_slabs:
            slab.norm_comm = comm           # as a strategy does
            slab.complete_grad()[...] = 1
        norm = whole.num_parameters()**0.5
        assert grad_norm(staged.whole_slabs) == pytest.approx(norm, rel=1e-14)
        assert clip_grad_norm(staged.whole_slabs, 0.5) == pytest.approx(norm, rel=1e-14)
        for slab in staged.whole_slabs:
            np.testing.assert_allclose(slab.grad, 0.5 / (norm + 1e-6))
        return all(isinstance(slab, StageSlab) == (comm.size > 1) for slab in staged.whole_slabs)
    assert all(world.run(body))
