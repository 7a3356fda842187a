"""Mixture of experts: every token is computed by a few of many MLPs (Shazeer et al. 2017).

    x (n, d) ─▶ router ─▶ gates (n, k), ids (n, k)
      │                      │
      └─▶ dispatch ─▶ experts, each on its own rows ─▶ × gates ─▶ combine ─▶ Σ (n, d)
            n k rows (fewer if tokens are dropped), sorted by expert

            y = Σ over the chosen experts e of  gate_e(x) expert_e(x)   (+ shared experts of x)

A dropped choice adds nothing: the token goes on through the residual connection.  So k MLPs are
computed for a token, whatever the number E of MLPs that are kept: many parameters, few FLOPs.

Training means inside `training_step`, as for dropout.  Outside of it, in evaluation and
generation, no token is dropped, no loss is added and nothing is counted.
"""

import numpy as np

from ... import autograd as ag
from ...autograd import Tensor
from ...backend import asarray_like
from ..layers import Dropout, Linear
from ..module import Module
from ..parameter import Initializer, Parameter, zeros
from ..step_context import TrainingStep, current_step
from .config import MoEConfig
from .dispatch import Dispatch, capacity, dispatch, queue_places
from .router import Routed, Router, no_shares_error
from .rows import add_rows, attach_loss, grouped_linear


class GroupedLinear(Module):
    """One linear layer for each expert: weight (experts, in, out), bias (experts, out)."""

    def __init__(self, num_experts: int, in_features: int, out_features: int, bias: bool,
                 initializer: Initializer):
        super().__init__()
        self.weight = Parameter((num_experts, in_features, out_features), initializer)
        self.has_bias = bias
        if bias:
            self.bias = Parameter((num_experts, out_features), zeros)

    @classmethod
    def of(cls, linear: Linear, num_experts: int) -> "GroupedLinear":
        """`num_experts` layers of the sizes of `linear`."""
        weight = linear._parameters["weight"]
        return cls(num_experts, *weight.shape, linear.has_bias, weight.initializer)

    def forward(self, x: Tensor, counts: tuple[int, ...]) -> Tensor:
        """x (rows, in) → (rows, out); expert e has the next counts[e] rows."""
        return grouped_linear(x, self.weight, self.bias if self.has_bias else None, counts)


class Experts(Module):
    """`num_experts` MLPs of the sizes of `expert`, a FeedForward or GatedFeedForward."""

    def __init__(self, num_experts: int, expert: Module):
        super().__init__()
        self.is_gated = {"FeedForward": False, "GatedFeedForward": True}[type(expert).__name__]
        self.c_fc = GroupedLinear.of(expert.c_fc, num_experts)
        self.c_proj = GroupedLinear.of(expert.c_proj, num_experts)
        if self.is_gated:
            self.c_gate = GroupedLinear.of(expert.c_gate, num_experts)

    def forward(self, x: Tensor, counts: tuple[int, ...]) -> Tensor:
        """x (rows, d) → (rows, width) → (rows, d); expert e has the next counts[e] rows."""
        wide = self.c_fc(x, counts)
        wide = ag.swiglu(self.c_gate(x, counts), wide) if self.is_gated else ag.gelu(wide)
        return self.c_proj(wide, counts)


def refuse_experts(model: Module, what: str) -> None:
    """Raise ValueError for a model with experts: it cannot be `what`, e.g. "pruned"."""
    for name, module in model.named_modules():
        if isinstance(module, Experts):
            raise ValueError(f"{name} are experts, which cannot be {what}: give a model without "
                             "experts")


class MoE(Module):
    """x (b, t, d) or (n, d) → the same shape: each token through its experts.

    `expert` has the sizes of each; `shared`, if given, computes every token.  `load` (E,) says how
    often each expert was chosen in training step `counted_step`, and `num_dropped` how many of
    these choices found no place.  Only steps with `shares` (step_context.py) are counted.
    `parallel.expert.router_bias` sums the loads over ranks and microbatches.
    """

    def __init__(self, config: MoEConfig, expert: Module, shared: Module | None = None,
                 dropout: float = 0.0):
        super().__init__()
        self.config, self.has_shared = config, shared is not None
        self.router = Router(expert.c_fc.weight.shape[0], config)
        self.experts = Experts(config.num_experts, expert)
        if shared is not None:
            self.shared = shared
        self.dropout = Dropout(dropout)
        self.num_ranks: int | None = None       # that share a microbatch; None: not asked yet
        self.forget_counts()

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t, d) or (n, d) → the same shape."""
        step, num_samples = current_step(), x.shape[0]
        tokens = x.reshape(-1, x.shape[-1]) if x.size else x.reshape(0, x.shape[-1])
        routed = self.router(tokens)
        plan = self.plan(routed, num_samples, step)
        y = self.combine(self.experts(self.pick(tokens, plan), plan.counts), routed, plan)
        loss = None if step is None else self.router.losses(routed, num_samples, step)
        if loss is not None:
            y = attach_loss(y, loss)
        if self.has_shared:
            y = y + self.shared(tokens)
        return self.dropout(y.reshape(x.shape))

    def plan(self, routed: Routed, num_samples: int, step: TrainingStep | None) -> Dispatch:
        """The rows that the experts compute; in a training step, choices are counted."""
        config, n = self.config, len(routed.logits.data)
        kept = np.ones(routed.ids.shape, bool)
        if step is not None:
            if config.capacity_factor is not None:
                group = {"sequence": n // max(num_samples, 1), "microbatch": n}[config.capacity_per]
                if config.capacity_per == "microbatch":
                    self.refuse_other_ranks(step)
                scores = routed.chosen_scores() if config.drop == "probability" else None
                kept = queue_places(routed.ids, group, config.drop, scores) < capacity(
                    group, config.num_experts, config.top_k, config.capacity_factor)
            self.count(routed.ids, kept, step)
        plan = dispatch(routed.ids, kept, config.num_experts)
        on_device = [asarray_like(numbers, routed.logits.data) for numbers in plan[:2]]
        return Dispatch(*on_device, plan.counts)

    def refuse_other_ranks(self, step: TrainingStep) -> None:
        """Raise ValueError if other ranks have samples of this microbatch.  Collective, once."""
        if self.num_ranks is None:
            self.num_ranks = int(step.sum_over_samples(np.ones(1))[0])
        if self.num_ranks > 1:
            raise ValueError("capacity_per='microbatch' would drop different tokens on each number "
                             f"of ranks, and {self.num_ranks} share a batch here: choose "
                             "capacity_per='sequence'")

    def pick(self, tokens: Tensor, plan: Dispatch) -> Tensor:
        """tokens (n, d) → the rows (m, d) of the plan."""
        return ag.embedding(tokens, plan.tokens)

    def combine(self, rows: Tensor, routed: Routed, plan: Dispatch) -> Tensor:
        """The experts' rows (m, d), times their gates, added up by token: (n, d)."""
        gates = ag.embedding(routed.gates.reshape(routed.gates.size, 1), plan.choices)  # (m, 1)
        return add_rows(rows * gates, plan.tokens, len(routed.gates.data))

    def count(self, ids: np.ndarray, kept: np.ndarray, step: TrainingStep) -> None:
        """Count the choices of a microbatch once: a recomputed forward does not count again.

        Raises ValueError if the router has a bias and the step has no shares, or the bias was not
        updated after the step before.
        """
        key = f"{self.full_name} load"
        if step.shares is None and self.config.bias_rate:
            raise no_shares_error()
        if step.shares is None or key in step.routed:
            return
        step.routed[key] = True
        if self.counted_step not in (None, step.step):
            if self.config.bias_rate:
                raise ValueError(f"the bias of {self.full_name}.router was not updated after step "
                                 f"{self.counted_step}: call balance_routers(strategy) before "
                                 "strategy.step(optimizer)")
            self.forget_counts()
        self.counted_step = step.step
        self.load += np.bincount(ids.ravel(), minlength=self.config.num_experts)
        self.num_dropped += int(kept.size - kept.sum())

    def forget_counts(self) -> None:
        """Reset the counts."""
        self.load, self.num_dropped = np.zeros(self.config.num_experts, np.int64), 0
        self.counted_step: int | None = None
