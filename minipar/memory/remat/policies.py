"""Rematerialization policies by name: none, full, every:2, sqrt, optimal:64MB.

    rematerialize(model, plan_policy("optimal:64MB"))

A policy makes a plan from a model's parts.  Most policies need to know only which parts are blocks;
the optimal policy profiles the parts with the first batch.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...autograd import tanh
from ...backend import Array
from ...nn import Module
from ...nn.chain import chain
from ...nn.module import ChainPart
from .optimal import optimal
from .plans import Plan, Policy, keep_all, sqrt_segments, uniform
from .profile import ChainProfile, PartProfile, profile_parts

NAMES = "none, full, every:2, sqrt or optimal:64MB"
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def plan_policy(text: str, agree: Callable[[Array], Array] = lambda array: array) -> Policy:
    """The policy that `text` names; `agree` is as in `OptimalPolicy`.

    Raises ValueError for other texts.
    """
    name, colon, value = text.partition(":")
    if not colon and name in ("none", "full", "sqrt"):
        return {"none": keep_all, "full": partial(uniform, 1), "sqrt": sqrt_segments}[name]
    if name == "every" and value.isdecimal() and int(value):
        return partial(uniform, int(value))
    if name == "optimal" and colon:
        return OptimalPolicy(parse_bytes(value), agree)
    raise ValueError(f"{text!r} is no plan: {NAMES} was expected")


def parse_bytes(text: str) -> int:
    """The number of bytes that 512, 64MB or 1.5GiB stands for.  Raises ValueError for other texts.
    """
    found = re.fullmatch(r"(\d{1,18}(?:\.\d*)?|\.\d+) ?([KMGT]?I?B?)", text.strip().upper())
    if not found or found[2] not in UNITS:
        raise ValueError(f"{text!r} is no number of bytes: write 64MB, 1.5GB, 512MiB")
    return int(float(found[1]) * UNITS[found[2]])


class OptimalPolicy:
    """A policy: the plan with the fewest FLOPs whose activations fit in `budget` bytes.

    It profiles the parts one by one with the first batch, and later batches get the same plan.  The
    loss counts as one array of the size of the model's output: the gradient of that output.  Ranks
    that compute the same parts together (tensor parallelism) must use the same plan, because a
    recomputed part repeats its messages.  So `agree` returns the maximum of an array of int64 over
    these ranks, by an all-reduce; it is called once for each chain of parts.
    """

    def __init__(self, budget: int, agree: Callable[[Array], Array] = lambda array: array):
        self.budget, self.agree = budget, agree
        self.plans: dict[tuple[str, ...], Plan] = {}

    def profile(self, model: Module, parts: Sequence[ChainPart], x: Any) -> None:
        """Profile the parts with their input x, unless they have been profiled.

        Raises ValueError if no plan fits the budget; the message names the smallest that works.
        """
        names = tuple([part.name for part in parts])
        if names not in self.plans:
            is_end = names[-1] == chain(model)[-1].name
            costs = profile_parts(parts, x, tanh if is_end else None, model.parameters())
            self.plans[names] = optimal(max_over_ranks(costs, self.agree), self.budget).plan

    def __call__(self, parts: Sequence[ChainPart]) -> Plan:
        """The plan of parts that `profile` has profiled."""
        return self.plans[tuple([part.name for part in parts])]


def max_over_ranks(costs: ChainProfile, agree: Callable[[Array], Array]) -> ChainProfile:
    """The element-wise maximum of the ranks' profiles, so that all ranks plan with the same one.

    For `saves_output` it is the minimum: an output counts as saved if all ranks save it.
    """
    rows = [[part.input_bytes, *part.saved_bytes, *part.peak_bytes, part.num_saved,
             -part.saves_output, part.forward_flops, part.recompute_flops, part.nested_flops,
             part.backward_flops] for part in costs.parts]
    *flat, loss = agree(np.array([*np.ravel(rows), costs.loss_bytes], np.int64)).tolist()
    return ChainProfile(tuple([
        PartProfile(input_, (all_, beside), (most, most_beside), saves, -not_output, *flops)
        for input_, all_, beside, most, most_beside, saves, not_output, *flops
        in zip(*[iter(flat)] * 11)]), loss)
