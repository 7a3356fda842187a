"""Lesson 20: the library's plans for equal layers and for a GPT; memory, FLOPs, picture."""

import math
from functools import cache, partial

import numpy as np

from minipar.autograd import Meter, Tensor, backward
from minipar.comm.collectives import all_reduce
from minipar.memory.remat.optimal import frontier, optimal
from minipar.memory.remat.plans import (
    Plan,
    keep_all,
    rematerialize,
    sqrt_segments,
    uniform,
)
from minipar.memory.remat.policies import max_over_ranks
from minipar.memory.remat.predict import predict, run_steps
from minipar.memory.remat.profile import ChainProfile, profile_parts
from minipar.memory.remat.revolve import revolve, revolve_steps
from minipar.memory.temporaries import StepLedger
from minipar.nn import GPT, MLP, GPTConfig, Module
from minipar.nn.chain import chain
from minipar.nn.step_context import training_step
from minipar.units import in_bytes
from minipar.viz import draw_remat_tradeoff

from .kit import Lesson, Row, number
from .plain_mlp import mlp_of

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


CONFIG = GPTConfig(vocab_size=64, context=32, num_layers=9, num_heads=4, width=32, dropout=0.1)
ROWS = 2                            # sequences of a rank
DEPTHS, SNAPSHOTS = (4, 16, 64), 3
NONE, FULL, ROOT = "none", "full: each block a segment", "√L segments"


def plans_for(costs: ChainProfile) -> dict[str, Plan]:
    """The usual plans, and the best ones within several budgets, by name."""
    parts = chain(GPT(CONFIG))
    plans = {NONE: keep_all(parts), FULL: uniform(1, parts), ROOT: sqrt_segments(parts)}
    none, full, root = (predict(plan, costs).peak for plan in plans.values())
    least = frontier(costs)[0].peak
    for budget in (least, (least + full) // 2, full, root, (none + root) // 2):
        plans[f"optimal in {in_bytes(budget)}"] = optimal(costs, budget).plan
    return plans


def compare_equal_layers(lesson: Lesson) -> dict[str, tuple[Points, Points]]:
    """Compare plans for an MLP of equal layers; return how their memory grows with its depth."""
    lesson.say("First equal layers: an MLP. A ReLU's result is the next layer's input, so each "
               "layer adds one array.")
    rows, growth = grow(DEPTHS, SNAPSHOTS)
    lesson.counts(rows, "Arrays alive at the peak, of chains of 4, 16 and 64 layers")
    return growth


def compare(lesson: Lesson, plans: dict[str, Plan], costs: ChainProfile,
            runs: dict[str, Counted]) -> None:
    """Compare each plan's predicted memory and FLOPs with its run's, and all gradients."""
    prices = {name: predict(plan, costs) for name, plan in plans.items()}
    lesson.table([Row(f"{name}: peak", prices[name].peak, runs[name].peak, "B")
                  for name in (NONE, FULL, ROOT)], "activations of one step")
    lesson.counts([row for name, price in prices.items() for row in (
        Row(f"{name}: peak", price.peak, runs[name].peak, "B"),
        Row("… recomputed", price.extra_flops, runs[name].forward - runs[NONE].forward,
            "FLOPs"))], f"Peaks and FLOPs of all {len(prices)} plans")
    lesson.counts([Row(f"{name}: bytes of gradients that differ", 0, seen.differs(runs[NONE]))
                   for name, seen in runs.items() if name != NONE], "Gradients, bit for bit")
    saved = [1 - part / of for part, of in ((runs[FULL].peak, runs[NONE].peak), (
        runs[FULL].with_temporaries, runs[NONE].with_temporaries))]
    lesson.say("A plan decides only which arrays are kept. At the peak, operations also hold "
               f"temporary arrays, whatever the plan. Including these, *full* saves {saved[1]:.0%} "
               f"of {in_bytes(runs[NONE].with_temporaries)}, not {saved[0]:.0%}.")


def judge_sqrt_segments(lesson: Lesson, plans: dict[str, Plan], costs: ChainProfile) -> None:
    """Say how far √L segments are from the best plan in the same bytes, and the least memory."""
    full, root = predict(plans[FULL], costs), predict(plans[ROOT], costs)
    least = frontier(costs)[0].peak
    within, smallest = optimal(costs, root.peak), optimal(costs, least)
    forward = sum(part.forward_flops for part in costs.parts)
    lesson.say(f"√L makes the segments `{plans[ROOT]}`. It recomputes about as much as *full*, but "
               f"needs {root.peak / full.peak:.1f} times the memory, because it restores the tapes "
               "of a whole segment at once. The best plan within the bytes of √L is "
               f"`{within.plan}`: {number(within.extra_flops / forward)} extra forwards instead of "
               f"{number(root.extra_flops / forward)}. The least possible memory, "
               f"{in_bytes(least)}, costs {number(smallest.extra_flops / forward)} forwards.")


def draw(lesson: Lesson, plans: dict[str, Plan], costs: ChainProfile, runs: dict[str, Counted],
         growth: dict[str, tuple[Points, Points]]) -> None:
    """Draw memory against FLOPs for all plans, and two plans step by step."""
    parts, forward = chain(GPT(CONFIG)), sum(part.forward_flops for part in costs.parts)

    def point(plan: Plan) -> tuple[int, float]:
        price = predict(plan, costs)
        return price.peak, price.extra_flops / forward
    rules = {name: [point(plans[name])] for name in (NONE, FULL, ROOT)}
    rules["every k blocks: 2, 5, 9"] = [point(uniform(k, parts)) for k in (2, 5, 9)]
    counted = [(run.peak, (run.forward - runs[NONE].forward) / forward) for run in runs.values()]
    within = optimal(costs, predict(plans[ROOT], costs).peak).plan
    steps = {name: list(run_steps(plan, costs)) for name, plan in (
        (ROOT, plans[ROOT]), ("optimal within the bytes of √L", within))}
    lesson.picture(lambda path: draw_remat_tradeoff(
        path, [point(choice.plan) for choice in frontier(costs)], rules, counted, growth, steps,
        [part.name for part in parts],
        f"A GPT of {CONFIG.num_layers} blocks; top right: chains of equal layers"))


def compare_with_library(lesson: Lesson, weights: np.ndarray, x: np.ndarray, labels: np.ndarray,
                         found: list) -> None:
    """Compare `found`, the gradients of a chain; judge plans for equal layers and for a GPT."""
    comm = lesson.comm
    lesson.say("In the library a plan is a list of segments of any model's parts, and segments may "
               "have segments. The same chain, in √L segments:")
    lesson.table([Row("difference from the lesson's gradients", 1e-14, np.abs(np.array(
        library_gradients(weights, x, labels)) - np.array(found)).max(), "", "≤")])
    growth = compare_equal_layers(lesson)
    rng = np.random.default_rng(comm.rank)
    ids, targets = rng.integers(0, CONFIG.vocab_size, (2, ROWS, CONFIG.context)).copy()
    costs = max_over_ranks(costs_of(GPT(CONFIG).initialize(0), ids, targets),
                   partial(all_reduce, comm, op="max"))         # so all ranks have the same plans
    plans = plans_for(costs)
    runs = {name: Counted(GPT(CONFIG).initialize(0), ids, targets, plan)
            for name, plan in plans.items()}
    block = costs.parts[1]
    lesson.say(f"Now a GPT of {CONFIG.num_layers} blocks, with dropout. The input of a block has "
               f"{in_bytes(block.input_bytes)}, and the block saves "
               f"{in_bytes(block.saved_bytes[0])}, "
               f"{block.saved_bytes[0] / block.input_bytes:.0f} times as much. The cost of each "
               "plan, predicted before it runs, and counted by a ledger and a meter, on each rank:")
    compare(lesson, plans, costs, runs)
    judge_sqrt_segments(lesson, plans, costs)
    draw(lesson, plans, costs, runs, growth)


def library_gradients(weights: np.ndarray, x: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """The gradients of a chain of layers whose inputs pass a ReLU first, in √L segments."""
    model = mlp_of(weights)
    rematerialize(model, sqrt_segments)
    backward(model.loss(np.maximum(x, 0), labels))
    return [model[2 * i].weight.grad for i in range(len(weights))]


@cache
def fewest_arrays(num_layers: int) -> int:
    """The arrays at the peak of the best plan for equal layers that runs each once more at most."""
    model = MLP([4] * (num_layers + 1)).initialize(0)
    costs = costs_of(model, Tensor(np.ones((1, 4), np.float32)), np.zeros(1, int))
    again = sum(part.forward_flops for part in costs.parts)
    return min(choice.peak for choice in frontier(costs) if choice.extra_flops <= again
               ) // costs.parts[0].input_bytes
