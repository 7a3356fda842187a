"""An evaluation uses the weights that are in `strategy.slabs` now: averaged, loaded or restored."""

from itertools import cycle

import numpy as np
import pytest

from minipar.autograd import no_grad
from minipar.nn import GPT, MLP, GPTConfig
from minipar.optim import SGD
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.support.cases import ALL

NAMES = ("ddp", "zero3", "fsdp", "fsdp no prefetch", "fsdp kept", "fsdp hybrid")
MESHES = ("dp 2 × tp 2 zero1", "dp 2 × tp 2 fsdp", "dp 2 × cp 2 fsdp", "cp 2 × tp 2 fsdp")
MODELS = {"tied": lambda: GPT(GPTConfig(9, 4, 2, 2, 8)),
          "untied": lambda: GPT(GPTConfig(9, 4, 2, 2, 8, tied=False)),
          "mlp": lambda: MLP([5, 8, 9])}
IDS = np.random.default_rng(3).integers(0, 9, (3, 4))
X = np.random.default_rng(4).standard_normal((3, 5))


def build(name):
    return MODELS[name]().initialize(4, np.float64)


def evaluations(name, model, parts):
    """What an evaluation computes: all of the model, or some parts, down to a single weight."""
    inputs = X if name == "mlp" else IDS
    yield lambda: model.logits(inputs).data
    if parts and name == "mlp":
        yield lambda: model[2].weight.data.copy()
    elif parts:
        yield lambda: model.loss(IDS, IDS).data
        yield lambda: model.wte(IDS).data
        yield lambda: model.embed.positions(slice(3)).data.copy()
        yield lambda: model.head(model.embed(IDS)).data


def outcomes(name, model, slabs, parts=True, gather=lambda: None):
    """Each evaluation with several weights, one after the other; some come twice."""
    kept, found = [slab.data.copy() for slab in slabs], []
    with no_grad():
        for evaluate in evaluations(name, model, parts):
            for factor in (1.0, 0.7, 1.0, -0.5, 1.0):
                for slab, old in zip(slabs, kept):
                    slab.data[...] = factor * old
                gather()
                found.append(evaluate())
    return found


def check(world, how, name, parts=True):
    gathers = how in ("dp", "zero1", "zero2") or how.endswith("zero1")
    whole = build(name)
    right = outcomes(name, whole, whole.slabs, parts)

    def body(comm):
        model = build(name)
        strategy = ALL[how](model, comm)
        found = outcomes(name, model, strategy.slabs, parts,
                         strategy.parameters_changed if gathers else lambda: None)
        for one, other in zip(found, right, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)
    world.run(body)


@worlds(3, mpi=(), slow=(4,), slow_mpi=(4,))        # on real ranks: one model, below
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", NAMES)
@pytest.mark.one_in(2)
def test_an_evaluation_uses_the_weights_of_now(world, strategy, model):
    check(world, strategy, model)


@worlds(mpi=(4,))
@pytest.mark.parametrize("strategy, model", [*zip(NAMES, cycle(MODELS))])
@pytest.mark.one_in(2)
def test_it_does_on_real_ranks(world, strategy, model):
    check(world, strategy, model)


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("strategy", MESHES)
@pytest.mark.one_in(2)
def test_on_a_mesh_too(world, strategy):
    check(world, strategy, "tied", parts=False)


@worlds(3, 4, mpi=(4,))
@pytest.mark.parametrize("strategy", ["dp", "zero1", "zero2"])
@pytest.mark.one_in(2)
def test_of_others_after_gather(world, strategy):
    """Ranks have all weights, but their slabs are a part of them, or only rank 0's count."""
    check(world, strategy, "tied")


@worlds(2, mpi=(2,))
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp kept"])
def test_between_forward_and_backward(world, strategy):
    """An evaluation frees what the forward gathered; backward gathers it again."""
    def gradients(model, strategy=None):
        rows = range(3) if strategy is None else strategy.rows(3)
        mine = IDS[rows.start:rows.stop]
        if strategy is None:
            model.loss(mine, mine, 12).backward()
            return {name: p.grad for name, p in model.named_parameters()}
        with strategy.forward_context():
            loss = model.loss(mine, mine, 12)
        with no_grad():
            model.logits(IDS)
        strategy.backward(loss)
        return strategy.slabs.gradients()
    right = gradients(build("untied"))

    def body(comm):
        model = build("untied")
        found = gradients(model, ALL[strategy](model, comm))
        for name, gradient in right.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-10, atol=1e-14)
    world.run(body)


@worlds(2, mpi=(2,))
def test_training_goes_on_from_the_changed_weights(world):
    def after_a_step(comm, name):
        model = build("tied")
        strategy = ALL[name](model, comm)
        for factor in (0.3, 0.5):
            for slab in strategy.slabs:
                slab.data *= factor
            with no_grad():
                model.logits(IDS)
        mine = np.array(strategy.rows(3))
        strategy.forward_backward([Microbatch(IDS[mine], IDS[mine], mine)])
        strategy.step(SGD(strategy.slabs, lr=0.3))
        return strategy.state_dict()

    def body(comm):
        right, found = (after_a_step(comm, name) for name in ("ddp", "fsdp"))
        for name, values in right.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-10, atol=1e-14)
    world.run(body)
