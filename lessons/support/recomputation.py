"""Lesson 20: training steps with rematerialization plans, and the memory of longer chains."""

import math
from functools import cache

import numpy as np

from minipar.autograd import Meter, Tensor, backward
from minipar.memory.remat.optimal import frontier
from minipar.memory.remat.plans import Plan, keep_all, rematerialize, sqrt_segments
from minipar.memory.remat.predict import predict
from minipar.memory.remat.profile import ChainProfile, profile_parts
from minipar.memory.remat.revolve import revolve, revolve_steps
from minipar.memory.temporaries import StepLedger
from minipar.nn import MLP, Module
from minipar.nn.chain import chain
from minipar.random import training_step

from .kit import Row

Points = list[tuple[int, int]]


class Counted:
    """A training step with a plan: its loss, gradients, peak bytes, FLOPs of forward.

    `peak` counts activations; `with_temporaries` also the temporary arrays of operations.
    """

    def __init__(self, model: Module, x: np.ndarray | Tensor, targets: np.ndarray, plan: Plan):
        rematerialize(model, lambda parts: plan)
        model.zero_grad()
        ledger, meter = StepLedger(model.parameters()), Meter()
        with ledger.recording(), meter.running(), training_step(0, 0, range(len(targets))):
            loss = model.criterion(model(x), targets)
            backward(loss)
        self.loss, self.gradients = loss.item(), [p.grad.copy() for p in model.parameters()]
        self.peak, self.with_temporaries = ledger.peak_of["activations"], ledger.peak
        self.forward = meter.total_flops("forward")

    def differs(self, other: "Counted") -> int:
        """The number of bytes in which the gradients differ."""
        return sum(int(np.sum(a.view(np.uint8) != b.view(np.uint8)))
                   for a, b in zip(self.gradients, other.gradients))


def costs_of(model: Module, x: np.ndarray | Tensor, targets: np.ndarray) -> ChainProfile:
    """The measured costs of a model's parts and of its loss."""
    with training_step(0, 0, range(len(targets))):
        return profile_parts(chain(model), x, lambda y: model.criterion(y, targets),
                             model.parameters())


@cache          # once for all simulated ranks of a process: their counts are equal
def grow(depths: tuple[int, ...], snapshots: int,
         width: int = 8) -> tuple[list[Row], dict[str, tuple[Points, Points]]]:
    """Arrays alive at the peak for MLPs of several depths, predicted and counted."""
    rows: list[Row] = []
    growth: dict[str, tuple[Points, Points]] = {}
    for depth in depths:
        model = MLP([width] * (depth + 1)).initialize(0)
        x, targets = Tensor(np.ones((1, width), np.float32)), np.zeros(1, int)
        costs = costs_of(model, x, targets)
        unit, k = costs.parts[0].input_bytes, math.isqrt(depth)
        budget = predict(sqrt_segments(chain(model)), costs).extra_flops
        best = next(c for c in frontier(costs) if c.extra_flops <= budget)
        none = Counted(model, x, targets, keep_all(chain(model)))
        root = Counted(model, x, targets, sqrt_segments(chain(model)))
        for name, predicted, seen in (
                ("none: L + 1", depth + 1, none),
                ("√L segments: 2√L − 1", k + depth // k - 1, root),
                ("optimal, no more FLOPs", best.peak // unit,
                 Counted(model, x, targets, best.plan))):
            peak = seen.peak // unit
            rows.append(Row(f"L = {depth}, {name}", predicted, peak, "arrays"))
            for points, value in zip(growth.setdefault(name, ([], [])), (predicted, peak)):
                points.append((depth, value))
        with_snapshots = Counted(model, x, targets, revolve(depth, snapshots))
        steps = (with_snapshots.forward - none.forward) // costs.parts[0].forward_flops
        rows.append(Row(f"… revolve with {snapshots} inputs: r L − C(c+r, r−1)",
                        revolve_steps(depth, snapshots), steps, "steps"))
    return rows, growth
