"""Lesson 20. Rematerialization: what does it cost to recompute activations?

Backward needs the arrays that forward saved, in reverse order: the first layer's arrays wait
longest.  Rematerialization keeps only the input of a segment of the model, drops everything else
that the segment saves, and runs the segment again when backward reaches it:

    forward    x ─▶ [0 1 2] ─▶ [3 4 5] ─▶ [6 7 8] ─▶ loss       √L inputs are kept for L layers,
    backward                              again, then back      and one segment's tape at a time
                               again, then back
                    again, then back

About √L segments are right for equal layers that save as much as their input.  A block of a GPT
saves about twenty times its input: which segments are best then?

    python lessons/20_rematerialization.py    mpirun -n 4 python lessons/20_rematerialization.py
"""

from functools import partial

import numpy as np
from support.kit import Lesson, Row, number
from support.recomputation import Counted, costs_of, grow

from minipar.comm import Communicator
from minipar.comm.collectives import all_reduce
from minipar.launcher import launch
from minipar.memory.remat.optimal import frontier, optimal
from minipar.memory.remat.plans import Plan, keep_all, sqrt_segments, uniform
from minipar.memory.remat.policies import max_over_ranks
from minipar.memory.remat.predict import predict, run_steps
from minipar.memory.remat.profile import ChainProfile
from minipar.nn import GPT, GPTConfig
from minipar.nn.chain import chain
from minipar.units import in_bytes
from minipar.viz.remat_tradeoff import Points, draw_remat_tradeoff

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
               "layer adds one array. Arrays alive at the peak:")
    rows, growth = grow(DEPTHS, SNAPSHOTS)
    lesson.table(rows, "equal layers")
    return growth


def compare(lesson: Lesson, plans: dict[str, Plan], costs: ChainProfile,
            runs: dict[str, Counted]) -> None:
    """Compare each plan's predicted memory and FLOPs with its run's, and all gradients."""
    prices = {name: predict(plan, costs) for name, plan in plans.items()}
    lesson.table([row for name, price in prices.items() for row in (
        Row(f"{name}: peak", price.peak, runs[name].peak, "B"),
        Row("… recomputed", price.extra_flops, runs[name].forward - runs[NONE].forward,
            "FLOPs"))], "activations of one step")
    lesson.table([Row(f"{name}: bytes of gradients that differ", 0, seen.differs(runs[NONE]))
                  for name, seen in runs.items() if name != NONE], "bit for bit the same")
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


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
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
    lesson.takeaway("Rematerialization buys memory with FLOPs: for equal layers one more forward "
                    "buys √L. In general the best segments follow from the bytes that each part "
                    "saves and its FLOPs, and their cost is known before anything runs.")
    lesson.exercises(questions=[
        "Why are the segments of the optimal plan for equal layers not equally long?",
        "Set the context to 512 and num_layers to 3. How many times its input does a block save "
        "now? When is it enough to recompute only attention?",
        "Under tensor parallelism a forward has two all-reduces a block. What does *full* add?"])


if __name__ == "__main__":
    launch(main)
