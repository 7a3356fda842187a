"""The router: which experts a token uses, how much each counts, and losses that balance them.

    x (n, d) ─▶ logits (n, E) ─▶ scores ─▶ + bias ─▶ the k best experts
                                   └─────────────▶ gates: their scores, without bias

Softmax scores add up to 1 over the experts.  Sigmoid scores are independent of each other
(DeepSeek-V3).  With either, the gates of a token are by default renormalized to add up to `scale`
if k > 1: over the chosen experts, kept or dropped.

    balance loss   E Σ f_i P_i     f_i: share of expert i in all choices, dropped ones too
                                   P_i: mean score of expert i; the gradient flows through P alone
    z-loss         mean lse²       lse: log-sum-exp of a token's logits, against large logits
    bias           b_i += rate · sign(mean load - load_i) after each step, without a gradient

The balance loss is 1 when all experts are used alike.  By default each sequence has its own loss,
so that it does not depend on the number of ranks or microbatches.  (Context parallelism, which cuts
sequences, refuses this loss.)  With balance_per="batch" a microbatch has one balance loss over all
ranks, whose loads are summed: a mean of the ranks' own losses would be a different loss.

Each sequence counts by its share of the batch's loss (`shares` of step_context.py).  So the
losses and gradients of all ranks add up to those of the batch.

Fedus et al. 2021 (Switch), equation 4; Zoph et al. 2022 (ST-MoE), equation 5; Wang et al. 2024
(loss-free balancing), algorithm 1.
"""

from typing import NamedTuple

import numpy as np

from ... import autograd as ag
from ...autograd import Tensor
from ...backend import Array, asarray_like, is_gpu, is_host, to_host
from ..module import Module
from ..parameter import Parameter, normal, zeros
from ..step_context import TrainingStep
from .config import MoEConfig
from .dispatch import choose_experts


class Routed(NamedTuple):
    """The router's output for n tokens."""

    logits: Tensor                  # (n, E)
    scores: Tensor                  # (n, E)
    ids: np.ndarray                 # (n, k), on the host
    gates: Tensor                   # (n, k)

    def chosen_scores(self) -> np.ndarray:
        """The scores (n, k) of the chosen experts, on the host."""
        return np.take_along_axis(to_host(self.scores.data), self.ids, axis=1)


class Router(Module):
    """x (n, d) → the experts and gates of each token."""

    def __init__(self, width: int, config: MoEConfig):
        super().__init__()
        self.config = config
        self.weight = Parameter((width, config.num_experts), normal(0.02))
        if config.bias_rate:
            self.bias = Parameter((config.num_experts,), zeros)     # takes no gradient

    def forward(self, x: Tensor) -> Routed:
        """x (n, d) → logits, scores, ids and gates of n tokens."""
        config = self.config
        logits = ag.linear(x, self.weight)                      # (n, d) @ (d, E) → (n, E)
        scores = {"softmax": ag.softmax, "sigmoid": sigmoid}[config.scores](logits)
        ids = self.choose(scores.data)
        rows = np.arange(len(ids), like=logits.data)[:, None]
        gates = scores[rows, asarray_like(ids, logits.data)]    # (n, k)
        if config.renormalizes:
            gates = gates / gates.sum(axis=-1, keepdims=True)
        return Routed(logits, scores, ids, gates if config.scale == 1 else gates * config.scale)

    def choose(self, scores: Array) -> np.ndarray:
        """The experts (n, k) of each token by its scores (n, E); in turn if they are shape-only."""
        config, (n, num_experts) = self.config, scores.shape
        if not (is_host(scores) or is_gpu(scores)):
            return np.arange(n * config.top_k).reshape(n, config.top_k) % num_experts
        if config.bias_rate:
            scores = scores + self.bias.data
        return choose_experts(to_host(scores), config.top_k, config.num_groups, config.top_groups)

    def losses(self, routed: Routed, num_samples: int, step: TrainingStep) -> Tensor | None:
        """The balance and z-losses of n tokens of `num_samples` sequences; None if there are none.

        They are weighed by the shares of the step.  Raises ValueError if it has none.
        """
        config, n = self.config, len(routed.logits.data)
        if not (config.balance_loss or config.z_loss):
            return None
        if step.shares is None:
            raise no_shares_error()
        time = n // max(num_samples, 1)
        total: Tensor | None = None
        if config.balance_loss:
            balance = {"batch": self.balance_of_batch, "sequence": self.balance_of_sequences}
            of_choices = balance[config.balance_per](routed, num_samples, time, step)
            total = of_choices * config.balance_loss
        if config.z_loss:
            lse = log_sum_exp(routed.logits)                                # (n, 1)
            of_samples = (lse * lse).reshape(num_samples, time).sum(axis=1)      # (b,)
            shares = (step.shares / max(time, 1)).astype(lse.dtype)
            z = (of_samples * shares).sum() * config.z_loss
            total = z if total is None else total + z
        return total

    def balance_of_sequences(self, routed: Routed, num_samples: int, time: int,
                             step: TrainingStep) -> Tensor:
        """Σ over sequences: share · E Σ f_i P_i."""
        config, num_experts = self.config, self.config.num_experts
        f = np.zeros((num_samples, num_experts), routed.scores.dtype)
        sequence = np.repeat(np.arange(num_samples), time * config.top_k)
        np.add.at(f, (sequence, routed.ids.ravel()), 1 / (config.top_k * max(time, 1)))
        p = self.probabilities(routed).reshape(num_samples, time, num_experts).sum(axis=1)
        shares = (step.shares * (num_experts / max(time, 1))).astype(p.dtype)
        return (p * (asarray_like(f, p.data) * shares[:, None])).sum()      # (b, E) * (b, E)

    def balance_of_batch(self, routed: Routed, num_samples: int, time: int,
                         step: TrainingStep) -> Tensor:
        """This rank's part of share · E Σ f_i P_i of a microbatch over all ranks.

        Collective over the ranks that have different samples: their loads and tokens are summed.
        """
        num_experts, n = self.config.num_experts, num_samples * time
        key = f"{self.full_name} balance"
        if key not in step.routed:              # a recomputed forward sends nothing again
            load = np.bincount(routed.ids.ravel(), minlength=num_experts)
            share = float(to_host(np.sum(step.shares)))
            step.routed[key] = step.sum_over_samples(np.array([*load, n, share], np.float64))
        *load, tokens, share = step.routed[key].tolist()
        num_choices = max(tokens, 1) * self.config.top_k
        weights = np.array(load, routed.scores.dtype) * (
            share * num_experts / num_choices / max(tokens, 1))
        p = self.probabilities(routed)
        return (p * asarray_like(weights, p.data)).sum()        # (n, E) * (E,)

    def probabilities(self, routed: Routed) -> Tensor:
        """The scores (n, E) of each token, brought to a sum of 1."""
        scores = routed.scores
        return scores if self.config.scores == "softmax" \
            else scores / scores.sum(axis=-1, keepdims=True)


def no_shares_error() -> ValueError:
    """The error of a router that balances experts, in a training step without shares."""
    return ValueError("experts are balanced over a whole batch, and this training step does not "
                      "say which part of it its samples are: give training_step() their shares, "
                      "or set balance_loss=0, z_loss=0 and bias_rate=0")


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ) = (1 + tanh(x/2)) / 2."""
    return ag.tanh(x * 0.5) * 0.5 + 0.5


def log_sum_exp(x: Tensor) -> Tensor:
    """log Σ eˣ of each row of x (n, E): (n, 1)."""
    largest = Tensor(x.data.max(axis=-1, keepdims=True))        # no row overflows
    return ag.log(ag.exp(x - largest).sum(axis=-1, keepdims=True)) + largest


def balance_step(load: np.ndarray, rate: float) -> np.ndarray:
    """The change of a router's bias (E,) after a step in which experts had these loads (E,).

    `load` counts the choices of all tokens of the batch, over all ranks and microbatches.
    """
    return rate * np.sign(load.mean() - load)
