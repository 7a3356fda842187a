"""Ten training steps in float64 against PyTorch, from the same weights: losses and parameters."""

import numpy as np
import pytest
import torch

from minipar.nn import GPT, MLP, GPTConfig
from minipar.optim import (
    NO_DECAY_FOR_VECTORS,
    SGD,
    Adam,
    AdamW,
    ParameterGroup,
    clip_grad_norm,
    warmup_cosine,
)
from tests.bench.baselines.torch_models import TorchGPT, TorchMLP, copy_state, read_state

NUM_STEPS, BATCH, TIME, VOCAB = 10, 3, 70, 11       # 70: two blocks of causal queries
MODELS = {
    "tied": GPTConfig(VOCAB, TIME, num_layers=2, num_heads=2, width=8, tied=True),
    "untied": GPTConfig(VOCAB, TIME, num_layers=2, num_heads=2, width=8, tied=False),
    "grouped": GPTConfig(VOCAB, TIME, num_layers=2, num_heads=4, num_kv_heads=2, width=8),
}
OPTIMIZERS = {
    "AdamW": ((AdamW, {"lr": 1e-2, "weight_decay": 0.1}), torch.optim.AdamW),
    "Adam": ((Adam, {"lr": 1e-2, "betas": (0.8, 0.95)}), torch.optim.Adam),
    "Adam with L2": ((Adam, {"lr": 1e-2, "weight_decay": 0.1}), torch.optim.Adam),
    "SGD": ((SGD, {"lr": 0.1}), torch.optim.SGD),
    "SGD with momentum": ((SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
                          torch.optim.SGD),
    "SGD, Nesterov": ((SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
                      torch.optim.SGD),
}


def shaken(model):
    """`model` with noise on every parameter.

    Biases of 0 would hide errors; and the gradient of a key's bias is 0 but for rounding, which
    Adam with L2 would blow up if the bias itself were 0 as well.
    """
    rng = np.random.default_rng(3)
    for p in model.parameters():
        p.data += 0.1 * rng.standard_normal(p.shape)
    return model


def make_batch(step, masked):
    """ids and targets (batch, time); `masked` leaves out an uneven share of the targets."""
    rng = np.random.default_rng(step)
    tokens = rng.integers(VOCAB, size=(BATCH, TIME + 1))
    targets = tokens[:, 1:].copy()
    if masked:
        targets[0, 5:] = -100                   # one sample nearly gone
        targets[1:][rng.random((BATCH - 1, TIME)) < 0.3] = -100
    return tokens[:, :-1].copy(), targets


def train_both(config, optimizer, max_norm=None, masked=False, schedule=None):
    """Train both; after each step losses, gradients' norms and parameters must agree to 1e-9."""
    model = shaken(GPT(config).initialize(seed=1, dtype=np.float64))
    peer = copy_state(model.state_dict(), TorchGPT(config))
    (kind, options), peer_kind = OPTIMIZERS[optimizer]
    ours = kind(model.slabs, **options)
    theirs = peer_kind(peer.parameters(), **options)
    for step in range(NUM_STEPS):
        ids, targets = make_batch(step, masked)
        if schedule is not None:
            ours.lr = schedule(step)
            for group in theirs.param_groups:
                group["lr"] = ours.lr
        ours.zero_grad()
        theirs.zero_grad()
        loss, expected = model.loss(ids, targets), peer.loss(torch.tensor(ids),
                                                             torch.tensor(targets))
        loss.backward()
        expected.backward()
        assert abs(loss.item() - expected.item()) <= 1e-9, f"loss of step {step}"
        if max_norm is not None:
            norm = clip_grad_norm(model.slabs, max_norm)
            expected_norm = torch.nn.utils.clip_grad_norm_(peer.parameters(), max_norm).item()
            assert norm > max_norm              # else nothing would be clipped
            assert abs(norm - expected_norm) <= 1e-9 * expected_norm
        gradients = {name: p.grad for name, p in model.named_parameters()}
        compare(gradients, read_state(peer, gradients=True), f"gradients of step {step}")
        ours.step()
        theirs.step()
        compare(model.state_dict(), read_state(peer), f"parameters after step {step}")


def compare(ours, theirs, what):
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-9,
                                   err_msg=f"{what}: {name}")


@pytest.mark.parametrize("config", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gpt(config, optimizer):
    train_both(MODELS[config], optimizer)


@pytest.mark.parametrize("config", MODELS)
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD with momentum"])
def test_gpt_with_clipping_and_uneven_masks(config, optimizer):
    train_both(MODELS[config], optimizer, max_norm=0.05, masked=True)


def test_gpt_with_a_schedule():
    train_both(MODELS["tied"], "AdamW",
               schedule=lambda step: warmup_cosine(step, 1e-2, 3, NUM_STEPS, floor=1e-3))


@pytest.mark.parametrize("optimizer", ["AdamW", "Adam with L2", "SGD, Nesterov"])
def test_parameter_groups(optimizer):
    """No decay for parameters of one axis, and another decay and learning rate for the last block.
    """
    model = shaken(GPT(MODELS["untied"]).initialize(seed=1, dtype=np.float64))
    peer = copy_state(model.state_dict(), TorchGPT(MODELS["untied"]))
    (kind, options), peer_kind = OPTIMIZERS[optimizer]
    ours = kind(model.slabs, **options, groups=[
        ParameterGroup(lambda segment: segment.name.startswith("h.1."), 0.3, 0.5),
        NO_DECAY_FOR_VECTORS])
    sorted_out = {"last": [], "vectors": [], "others": []}
    for name, p in peer.named_parameters():
        key = "last" if name.startswith("h.1.") else "vectors" if p.ndim < 2 else "others"
        sorted_out[key].append(p)
    theirs = peer_kind([{"params": sorted_out["last"], "weight_decay": 0.3,
                         "lr": options["lr"] / 2},
                        {"params": sorted_out["vectors"], "weight_decay": 0.0},
                        {"params": sorted_out["others"]}], **options)
    for step in range(NUM_STEPS):
        ids, targets = make_batch(step, masked=False)
        ours.zero_grad()
        theirs.zero_grad()
        model.loss(ids, targets).backward()
        peer.loss(torch.tensor(ids), torch.tensor(targets)).backward()
        ours.step()
        theirs.step()
        compare(model.state_dict(), read_state(peer), f"parameters after step {step}")


@pytest.mark.parametrize("num_warmup", [0, 1, 4])
def test_schedule(num_warmup):
    """Linear warm-up and PyTorch's cosine, joined."""
    num_steps, peak, floor = 20, 0.3, 0.02
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=peak)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps - num_warmup,
                                                        eta_min=floor)
    for step in range(num_warmup):
        assert warmup_cosine(step, peak, num_warmup, num_steps, floor) == pytest.approx(
            peak * (step + 1) / num_warmup, abs=1e-15)
    for step in range(num_warmup, num_steps):
        optimizer.step()
        cosine.step()
        assert warmup_cosine(step, peak, num_warmup, num_steps, floor) == pytest.approx(
            cosine.get_last_lr()[0], abs=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_mlp(optimizer):
    model = shaken(MLP([6, 8, 5]).initialize(seed=2, dtype=np.float64))
    peer = copy_state(model.state_dict(), TorchMLP([6, 8, 5]))
    (kind, options), peer_kind = OPTIMIZERS[optimizer]
    ours, theirs = kind(model.slabs, **options), peer_kind(peer.parameters(), **options)
    rng = np.random.default_rng(0)
    for step in range(NUM_STEPS):
        x, labels = rng.standard_normal((7, 6)), rng.integers(5, size=7)
        ours.zero_grad()
        theirs.zero_grad()
        loss, expected = model.loss(x, labels), peer.loss(torch.tensor(x), torch.tensor(labels))
        loss.backward()
        expected.backward()
        ours.step()
        theirs.step()
        assert abs(loss.item() - expected.item()) <= 1e-9
        compare(model.state_dict(), read_state(peer), f"parameters after step {step}")
