"""Masks: what a masked weight does, and what leaves it alone: optimizers, files, strategies."""

import copy

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.autograd import Tensor, gradcheck
from minipar.checkpoint_file import Checkpoint
from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.compress.pruning.masks import ApplyMask, Masks, prunable_weights
from minipar.compress.pruning.prune import prune
from minipar.compress.pruning.saliency import magnitude
from minipar.compress.pruning.serialization import compact, expand
from minipar.nn import GPT, MLP, GPTConfig
from minipar.optim import SGD, Adam, AdamW
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from tests.support.cases import ONE_PROCESS

CONFIG = GPTConfig(11, context=6, num_layers=2, num_heads=2, width=8)
X, LABELS = np.random.default_rng(0).standard_normal((8, 6)), np.arange(8) % 4
IDS = np.random.default_rng(0).integers(0, 11, (8, 6))


def masked_mlp(amount=0.5):
    model = MLP([6, 8, 8, 4]).initialize(0, np.float64)
    return model, Masks(model, prune(model, magnitude(prunable_weights(model)), amount))


def test_the_derivative_of_a_mask():
    mask = np.random.default_rng(1).random((3, 4)) < 0.5
    w = Tensor(np.random.default_rng(0).standard_normal((3, 4)), requires_grad=True)
    gradcheck(lambda w: ApplyMask.apply(w, mask), w)


def test_a_masked_weight_is_zero_and_learns_nothing():
    model, masks = masked_mlp()
    model.loss(X, LABELS, 8).backward()
    for name, mask in masks.local_masks().items():
        layer, parameter = dict(model.named_modules())[name[0]], masks.parameters[name]
        assert np.array_equal(layer.weight.data, np.where(mask, parameter.data, 0))
        assert not parameter.grad[~mask].any() and parameter.grad[mask].any()


@pytest.mark.parametrize("make", [lambda s: SGD(s, 0.1, momentum=0.9, weight_decay=0.1),
                                  lambda s: Adam(s, 0.05, weight_decay=0.1), AdamW],
                         ids=["sgd", "adam", "adamw"])
def test_masks_survive_whatever_an_optimizer_does(make):
    model = MLP([6, 8, 8, 4]).initialize(0, np.float64)
    optimizer = make(model.slabs)
    for i in range(6):
        if i == 2:          # masks come while momentum is under way
            masks = Masks(model, prune(model, magnitude(prunable_weights(model)), 0.6))
        optimizer.zero_grad()
        model.loss(X, LABELS, 8).backward()
        optimizer.step()
    for name, mask in masks.local_masks().items():
        assert masks.parameters[name].data[~mask].any(), "momentum should have moved what is masked"
        used = dict(model.named_modules())[name[0]].weight.data
        assert not used[~mask].any() and used[mask].all()
    masks.zero_masked()
    assert all(not p.data[~masks.local_masks()[name]].any() for name, p in masks.parameters.items())


def test_a_copy_has_masks_of_its_own():
    model, masks = masked_mlp()
    expected = model.logits(X).data
    copied = copy.deepcopy(model)
    masks.update({name: np.zeros_like(mask) for name, mask in masks.local_masks().items()})
    assert np.array_equal(copied.logits(X).data, expected)
    assert not np.array_equal(model.logits(X).data, expected)


def test_a_checkpoint_of_what_is_kept(tmp_path):
    model, masks = masked_mlp(0.9)
    masks.zero_masked()
    optimizer = AdamW(model.slabs)
    model.loss(X, LABELS, 8).backward()
    optimizer.step()
    whole = Checkpoint(model.state_dict(), optimizer.state_dict(), {"step": 1})
    path = files.save(tmp_path, compact(whole, masks.local_masks()))
    found, kept = expand(files.load(path))
    for ours, theirs in ((whole.model, found.model), (whole.optimizer, found.optimizer),
                         (masks.local_masks(), kept)):
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert expand(whole) == (whole, {})
    broken = {**files.load(path).model, "0.weight/kept": np.zeros(3)}
    with pytest.raises(files.CheckpointError, match="do not fit"):
        expand(Checkpoint(broken, {}, {}))


@pytest.mark.parametrize("masks, says", [({"9.weight": np.ones((2, 2))}, "not in the model"),
                                         ({"0.weight": np.ones((2, 2))}, r"shape \(6, 8\)")])
def test_masks_of_another_model_are_refused(masks, says):
    with pytest.raises(ValueError, match=says):
        Masks(MLP([6, 8, 8, 4]), masks)


def train(model, strategy, make=lambda slabs: AdamW(slabs, 0.01)):
    optimizer = make(strategy.slabs)
    rows = strategy.rows(8)
    mine = slice(rows.start, rows.stop)
    for i in range(3):
        optimizer.zero_grad()
        halves = [Microbatch(IDS[mine][part], IDS[mine][part], np.array(rows)[part])
                  for part in (slice(0, len(rows) // 2), slice(len(rows) // 2, None))]
        strategy.forward_backward(halves, 0, i)
        strategy.step(optimizer)
    return strategy.state_dict()


def masked_gpt():
    model = GPT(CONFIG).initialize(0, np.float64)
    masks = Masks(model, prune(model, magnitude(prunable_weights(model)), 0.7))
    masks.zero_masked()
    return model, masks


STRATEGIES = {name: lambda model, comm, name=name: make_strategy(name, model, comm)
              for name in ONE_PROCESS}
STRATEGIES |= {"tp": lambda model, comm: make_strategy("ddp", model, DeviceMesh(comm, tp=2)),
               "pp": lambda model, comm: make_strategy("ddp", model, DeviceMesh(comm, pp=2)),
               "tp, zero1": lambda model, comm: make_strategy("zero1", model,
                                                              DeviceMesh(comm, tp=2))}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.one_in(2)
def test_every_strategy_keeps_what_one_process_keeps(name):
    def body(comm):
        model, masks = masked_gpt()
        kept = masks.local_masks()
        return train(model, STRATEGIES[name](model, comm)), kept
    ((expected, kept),), _ = Cluster(1).run(
        lambda comm: body(comm) if name == "dp" else alone(comm))
    (found, _), *_ = Cluster(2).run(body)[0]
    for what, values in expected.items():
        np.testing.assert_allclose(found[what], values, rtol=1e-9, atol=1e-12, err_msg=what)
        assert what not in kept or not found[what][~kept[what]].any()


def alone(comm):
    model, masks = masked_gpt()
    return train(model, make_strategy("ddp", model, comm)), masks.local_masks()


def test_a_transform_before_the_masks_is_refused():
    model, _ = masked_gpt()
    for parameter in model.parameters():
        parameter.on_use(lambda weight: weight * 1.0, first=True)
    with pytest.raises(ValueError, match="must be the first transform"):
        model.loss(IDS, IDS)
