"""Rematerialization plans: which segments of a model's parts keep only their input.

    (0, (1,), (2,), 3)      parts 0 and 3 keep what they save; parts 1 and 2 are a segment each
    ((0, 1), (2, 3))        two segments: √L segments are best if all parts cost the same
    (((0, 1), 2), 3)        the inner segment is dropped with the outer one, and recomputed twice

A plan is data: `run_plan` executes it in a few lines, and `predict.py` computes its cost.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...autograd import Tensor
from ...autograd.function import is_recording
from ...nn import Module
from ...nn.chain import chain
from ...nn.module import ChainPart
from .recompute import checkpoint

Plan = tuple["int | Plan", ...]
Policy = Callable[[Sequence[ChainPart]], Plan]


def run_plan(plan: Plan, parts: Sequence[Callable], x: Any) -> Tensor:
    """Apply the parts that the plan names, in its order, to x."""
    for item in plan:
        x = parts[item](x) if isinstance(item, int) else checkpoint(
            lambda x, item=item: run_plan(item, parts, x), x)
    return x


def parts_of(plan: Plan) -> list[int]:
    """The numbers of the parts, in the order of the plan."""
    return [i for item in plan for i in ([item] if isinstance(item, int) else parts_of(item))]


def keep_all(parts: Sequence[ChainPart]) -> Plan:
    """The plan without segments: nothing is recomputed."""
    return tuple(range(len(parts)))


def uniform(num_blocks: int, parts: Sequence[ChainPart]) -> Plan:
    """The plan of segments of `num_blocks` blocks; parts that are no blocks keep all they save.

    The last segment of a row of blocks may be shorter.
    """
    plan: list[Any] = []
    for i, part in enumerate(parts):
        if not part.is_block:
            plan.append(i)
        elif plan and isinstance(plan[-1], tuple) and len(plan[-1]) < num_blocks:
            plan[-1] = (*plan[-1], i)
        else:
            plan.append((i,))
    return tuple(plan)


def sqrt_segments(parts: Sequence[ChainPart]) -> Plan:
    """The plan of about √L segments of L blocks.

    With k segments, k inputs and ⌈L/k⌉ blocks are alive, fewest for k = √L (Chen et al. 2016).
    """
    num_blocks = sum(part.is_block for part in parts)
    return uniform(math.ceil(num_blocks / max(1, round(math.sqrt(num_blocks)))), parts)


def rematerialize(model: Module, policy: Policy) -> Module:
    """Change `model` so that it runs its parts by the plan that `policy` makes; return it.

    Call this before a strategy takes the model.  A pipeline stage asks `policy` for a plan of its
    own parts.
    """
    def by_plan(forward: Callable, parts: Any, x: Any) -> Tensor:
        if not is_recording():                  # no backward follows: nothing to recompute
            return forward(parts, x)
        if parts is model:                      # all of them
            parts = chain(model)
        if hasattr(policy, "profile"):          # it plans by what the first batch costs
            policy.profile(model, parts, x)
        return run_plan(policy(parts), parts, x)
    model.run_parts.around(by_plan)
    return model
