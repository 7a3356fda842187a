"""Plans of rematerialization: which runs of a model's parts keep nothing but their input.

    (0, (1,), (2,), 3)      parts 0 and 3 keep what they save; 1 and 2, each by itself, do not
    ((0, 1), (2, 3))        two segments: √L of them is best, if all parts are alike
    (((0, 1), 2), 3)        a segment inside another is dropped with it, and computed twice again

A plan is data: what executes it is three lines, what it costs is known before.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...autograd import Tensor
from ...autograd.function import is_recording
from ...nn import GPT, Module
from ...nn.chain import ChainPart, chain
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
    """The numbers of the parts, as they come."""
    return [i for item in plan for i in ([item] if isinstance(item, int) else parts_of(item))]


def keep_all(parts: Sequence[ChainPart]) -> Plan:
    """Nothing is computed again."""
    return tuple(range(len(parts)))


def uniform(num_blocks: int, parts: Sequence[ChainPart]) -> Plan:
    """Segments of so many blocks, the last one perhaps shorter; what is no block keeps all."""
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
    """About √L segments of L blocks: k + ⌈L/k⌉ are live at most, least at k = √L.  Chen 2016."""
    num_blocks = sum(part.is_block for part in parts)
    return uniform(math.ceil(num_blocks / max(1, round(math.sqrt(num_blocks)))), parts)


def rematerialize(model: Module, policy: Policy) -> Module:
    """Change `model`, from outside: its parts are run by the plan that `policy` makes of them.

    Before a strategy takes the model.  A pipeline's stage asks for a plan of its own parts.  A
    policy that has a method `see(model, parts, x)` is shown the batch first.
    """
    def run_parts(parts: Sequence[ChainPart], x: Any) -> Tensor:
        if not is_recording():                  # nothing will be kept, there is nothing to plan
            return run_plan(keep_all(parts), parts, x)
        if hasattr(policy, "see"):
            policy.see(model, parts, x)
        return run_plan(policy(parts), parts, x)

    model.run_parts = run_parts
    model.run = lambda x: model.run_parts(chain(model), x)
    return model


def rematerialize_attention(model: GPT) -> GPT:
    """Change `model`: probabilities of attention are computed again, all else is kept.

    Selective recomputation of Korthikanti et al. 2022, section 5: much memory, few FLOPs.
    """
    for block in model.h:
        block.attn.mix = partial(checkpoint, block.attn.mix)
    return model
