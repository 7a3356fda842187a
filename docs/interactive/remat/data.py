"""Rematerialization budget: the best plan for every budget, and its memory step by step."""

from typing import Any

import numpy as np

from minipar.autograd import Tensor
from minipar.memory.remat.optimal import frontier
from minipar.memory.remat.predict import run_steps
from minipar.memory.remat.profile import ChainProfile, profile_parts
from minipar.nn import GPT, MLP, GPTConfig, Module
from minipar.nn.chain import chain
from minipar.nn.step_context import training_step

LAYERS, WIDTH, MOST_PLANS = 16, 8, 24
CONFIG = GPTConfig(vocab_size=64, context=32, num_layers=9, num_heads=4, width=32, dropout=0.1)


def costs_of(model: Module, x: Any, targets: np.ndarray) -> ChainProfile:
    """Bytes and FLOPs of a model's parts, measured on one batch."""
    with training_step(0, 0, range(len(targets))):
        return profile_parts(chain(model), x, lambda y: model.criterion(y, targets),
                             model.parameters())


def plans(costs: ChainProfile) -> dict[str, Any]:
    """The best plans, fewest bytes first: peak, recomputed forwards, the plan, its steps."""
    forward = sum(part.forward_flops for part in costs.parts)
    best = frontier(costs)
    chosen = [best[round(i * (len(best) - 1) / (MOST_PLANS - 1))] for i in range(MOST_PLANS)] \
        if len(best) > MOST_PLANS else best
    return {"parts": len(costs.parts), "plans": [
        {"peak": each.peak, "extra": each.extra_flops / forward,
         "plan": str(each.plan).replace(",)", ")"),
         "steps": [[step.kind, step.part, step.live] for step in run_steps(each.plan, costs)]}
        for each in dict.fromkeys(chosen)]}


def data() -> dict[str, Any]:
    """{"chains": {name: {"parts", "plans"}}}."""
    mlp = MLP([WIDTH] * (LAYERS + 1)).initialize(0)
    ids = np.zeros((2, CONFIG.context), int)
    return {"chains": {
        f"{LAYERS} equal layers": plans(costs_of(
            mlp, Tensor(np.ones((1, WIDTH), np.float32)), np.zeros(1, int))),
        f"a GPT of {CONFIG.num_layers} blocks": plans(costs_of(
            GPT(CONFIG).initialize(0), ids, ids))}}
