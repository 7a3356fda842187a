"""The losses of distillation and their gradients against torch.nn.functional, in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from minipar.autograd import Tensor
from minipar.compress.distillation.feature_loss import distance
from minipar.compress.distillation.feature_taps import attention_scores
from minipar.compress.distillation.soft_targets import soft_cross_entropy

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 10)), 3 * RNG.standard_normal((6, 10))


def check(ours, theirs, x):
    leaf, peer = Tensor(x.copy(), requires_grad=True), torch.tensor(x, requires_grad=True)
    a, b = ours(leaf), theirs(peer)
    a.backward()
    b.backward()
    assert np.isclose(a.item(), b.item(), rtol=1e-12)
    np.testing.assert_allclose(leaf.grad, peer.grad.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 4.0, 20.0])
def test_soft_targets(temperature):
    y = torch.tensor(Y)
    check(lambda x: soft_cross_entropy(x, Y, np.zeros(6, int), temperature),
          lambda x: temperature**2 * F.kl_div(
              F.log_softmax(x / temperature, -1), F.softmax(y / temperature, -1),
              reduction="batchmean"), X)


def test_distances():
    counts = np.ones(6, bool)
    check(lambda x: distance(x, Y, counts, 6), lambda x: F.mse_loss(x, torch.tensor(Y)), X)
    check(lambda x: distance(x, Y, counts, 6, "cosine"),
          lambda x: F.cosine_embedding_loss(x, torch.tensor(Y), torch.ones(6)), X)


def test_attention_scores():
    """Equation 7 of TinyBERT: scores before the softmax, here without those of the future."""
    qkv, target = RNG.standard_normal((2, 5, 24)), np.tril(RNG.random((2, 4, 5, 5)))

    def theirs(qkv):
        q, k, _ = (x.view(2, 5, 4, 2).transpose(1, 2) for x in qkv.split(8, dim=2))
        return F.mse_loss((q @ k.mT / 2**0.5).tril(), torch.tensor(target))
    counts = np.ones((2, 4, 5), bool)
    check(lambda x: distance(attention_scores(x, 4, 4), target, counts, 2 * 4 * 5), theirs, qkv)
