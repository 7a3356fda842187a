"""Layers: the smallest modules.  x (..., in) means any leading axes."""

import math

import numpy as np

from .. import autograd as ag
from ..autograd import IGNORE_INDEX, Tensor
from ..backend import Array, asarray_like, is_gpu, is_host
from ..random import dropout_mask
from .module import Module, Part
from .parameter import Initializer, Parameter, normal, ones, zeros
from .step_context import current_step


class Linear(Module):
    """x (..., in) → x weight + bias (..., out), with weight (in, out) and bias (out,)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True,
                 initializer: Initializer | None = None):
        super().__init__()
        self.weight = Parameter((in_features, out_features),
                                initializer or normal(math.sqrt(1 / in_features)))
        self.has_bias = bias
        if bias:
            self.bias = Parameter((out_features,), zeros)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) → (..., out)."""
        return ag.linear(x, self.weight, self.bias if self.has_bias else None)


class Embedding(Module):
    """ids (...) → rows (..., embedding_dim) of a table (num_embeddings, embedding_dim)."""

    def __init__(self, num_embeddings: int, embedding_dim: int,
                 initializer: Initializer | None = None):
        super().__init__()
        self.weight = Parameter((num_embeddings, embedding_dim), initializer or normal(0.02))

    def forward(self, ids: Array) -> Tensor:
        """ids (...) → (..., embedding_dim)."""
        return ag.embedding(self.weight, ids)


class LayerNorm(Module):
    """x (..., width) → each row brought to mean 0 and variance 1, times weight, plus bias."""

    def __init__(self, width: int, epsilon: float = 1e-5):
        super().__init__()
        self.weight, self.bias = Parameter((width,), ones), Parameter((width,), zeros)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) → (..., width)."""
        return ag.layer_norm(x, self.weight, self.bias, self.epsilon)


class RMSNorm(Module):
    """x (..., width) → each row divided by its root mean square, times weight."""

    def __init__(self, width: int, epsilon: float = 1e-5):
        super().__init__()
        self.weight, self.epsilon = Parameter((width,), ones), epsilon

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) → (..., width)."""
        return ag.rms_norm(x, self.weight, self.epsilon)


class Dropout(Module):
    """While training, sets elements to 0 with probability `rate` and scales the others up.

    Training means inside `training_step`, which holds the seed, the step and the global number of
    each sample.  These and the layer's name determine the mask, whichever rank computes the sample.
    The first axis of x is the batch.
    """

    def __init__(self, rate: float):
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"a dropout rate is in [0, 1), not {rate}")
        self.rate = rate

    def mask(self, x: Array, shape: tuple[int, ...], cuts: tuple[slice, ...] = ()) -> Array | None:
        """The mask (batch, *shape) of elements to keep, on the device of x; None for no dropout.

        With `cuts`, slices of the leading axes of `shape`, the result is only that part of it.
        """
        step = current_step()
        if step is None or not self.rate:
            return None
        if len(step.samples) != x.shape[0]:
            raise samples_error(len(step.samples), x.shape[0])
        if not self.full_name:
            raise nameless_dropout_error()
        if not (is_host(x) or is_gpu(x)):       # an array without numbers: nothing to draw
            part = [len(range(n)[cut]) for n, cut in zip(shape, cuts)]
            return np.empty((x.shape[0], *part, *shape[len(part):]), bool, like=x)
        keep = dropout_mask(step.seed, step.step, self.full_name, step.samples, shape, self.rate,
                            cuts)
        return asarray_like(keep, x)

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, ...), masked while training."""
        keep = self.mask(x.data, x.shape[1:])
        return x if keep is None else ag.dropout(x, keep, self.rate)


def samples_error(named: int, given: int) -> ValueError:
    """The error for a batch of a different number of samples than training_step() names."""
    return ValueError(f"training_step() names {named} samples, but the batch has {given}: give it "
                      "the samples of this batch")


def nameless_dropout_error() -> ValueError:
    """The error for a dropout layer before `initialize`."""
    return ValueError("a dropout layer draws its masks by its name, and this one has none: call "
                      "initialize() on the model that it is part of")


class Activation(Module):
    """An element-wise function of the table KINDS as a module."""

    KINDS = {"relu": ag.relu, "gelu": ag.gelu, "tanh": ag.tanh}

    def __init__(self, kind: str):
        super().__init__()
        if kind not in self.KINDS:
            raise ValueError(f"unknown activation {kind!r}: choose from {', '.join(self.KINDS)}")
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """The function of each element of x."""
        return self.KINDS[self.kind](x)


class CrossEntropy(Part):
    """The loss of a model: the cross-entropy in nats of targets (…) under logits (…, V)."""

    def forward(self, logits: Tensor, targets: Array, loss_divisor: float | None = None,
                ignore_index: int = IGNORE_INDEX) -> Tensor:
        """The sum over targets other than `ignore_index`, divided by `loss_divisor` (their number).
        """
        return ag.cross_entropy(logits, targets, loss_divisor, ignore_index)
