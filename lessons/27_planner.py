"""Lesson 27. Planner: what would you rent?

A model, a batch and some cards have dozens of layouts (dp, tp, pp, microbatch), or hundreds.  Most
do not fit, and of those that do, the slowest takes several times as long as the fastest.  No run is
needed to tell: count what a rank holds, computes and sends, and divide by what its card can do.

    bytes     weights + gradients + Adam + microbatches in flight · what backward needs of each
    seconds   (m + pp - 1) · (products of a stage + messages) + the sum of gradients over dp

A message of n bytes takes α + n / rate, by the links on its way: near in a node, far between two.

    node 0   0  1  2  3     tp = 4: one ring of near links in each node
    node 1   4  5  6  7     dp = 2: rings 0 4, 1 5, 2 6, 3 7 of far links; each card has its own

Library: minipar/plan/.     python lessons/27_planner.py     (or mpirun -n 4 python …)
"""

from collections import namedtuple
from functools import partial
from itertools import product

import numpy as np
from micro import data_parallel, one_f_one_b, tensor_parallel
from support.kit import Lesson, Row
from support.lesson_27 import compare_with_library
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch

# Blocks of two products, cut by columns and by rows: attention, or an MLP.  size: bytes of a number
# in messages.  states: bytes of a weight, its gradient, Adam's averages.  kept: bytes for backward,
# for a token, a block and each of its width, on every tp rank, and cut over them.
Model = namedtuple("Model", "blocks weights width tokens size states kept")
# FLOP/s that products reach, bytes of a card; seconds of an empty message; bytes/s of the links.
Cluster = namedtuple("Cluster", "cards per_node flops memory alpha near far")
Layout = namedtuple("Layout", "dp tp pp b")             # b samples in a microbatch


def layouts(model: Model, cards: int, batch: int) -> list[Layout]:
    """Each cards = dp · tp · pp with equal stages, and each microbatch."""
    divisors = [k for k in range(1, cards + 1) if cards % k == 0]
    return [Layout(dp, tp, pp, b) for dp, tp, pp, b in product(*3 * [divisors], (1, 2, 4, 8, 16))
            if dp * tp * pp == cards and model.blocks % pp == 0 and batch % (dp * b) == 0]


def sizes(model: Model, layout: Layout, batch: int) -> tuple[int, int, int]:
    """A rank's microbatches and weights, and the bytes of a microbatch between two blocks."""
    return (batch // (layout.dp * layout.b), model.blocks // layout.pp * model.weights // layout.tp,
            model.size * layout.b * model.tokens * model.width)


def sent(model: Model, layout: Layout, batch: int) -> dict[str, int]:
    """Bytes of a step along each axis, of all ranks: an all-reduce over p sends 2 (p - 1) n."""
    (dp, tp, pp, _), (m, own, n) = layout, sizes(model, layout, batch)
    return {"tp": 2 * model.blocks * m * 2 * (tp - 1) * n * dp,     # each block, there and back
            "pp": 2 * m * (pp - 1) * n * dp * tp,
            "dp": 2 * (dp - 1) * model.size * own * tp * pp}        # once, whatever m


def memory(model: Model, layout: Layout, batch: int) -> dict[str, float]:
    """Bytes on the first stage, which has most microbatches in flight (1F1B, ZeRO-1)."""
    (dp, tp, pp, b), (m, own, _) = layout, sizes(model, layout, batch)
    (w, g, adam), (whole, cut) = model.states, model.kept
    of_block = b * model.tokens * model.width * (whole + cut / tp)
    return {"parameters": w * own, "gradients": g * own, "optimizer states": adam * own / dp,
            "activations": min(m, pp) * model.blocks / pp * of_block}


def rate(cluster: Cluster, p: int, apart: int) -> float:
    """A ring's rate, over p ranks that are `apart`: leaving a node, it uses all its cards there."""
    here = max(1, min(p, cluster.per_node // apart))
    return cluster.near if here == p else min(cluster.near, here * cluster.far)


def all_reduce(cluster: Cluster, p: int, apart: int, n: float) -> float:
    return 2 * (p - 1) * (cluster.alpha + n / p / rate(cluster, p, apart))


def seconds(model: Model, cluster: Cluster, layout: Layout, batch: int) -> float:
    (dp, tp, pp, b), (m, own, n) = layout, sizes(model, layout, batch)
    products = 6 * own * b * model.tokens / cluster.flops       # 2 forward, 4 backward
    sums = 2 * model.blocks / pp * all_reduce(cluster, tp, 1, n)
    hops = 2 * (cluster.alpha + n / rate(cluster, 2, dp * tp)) * (pp > 1)
    return (m + pp - 1) * (products + sums + hops) + all_reduce(cluster, dp, tp, model.size * own)


def plan(model: Model, cluster: Cluster, batch: int) -> list[Layout]:
    """The layouts that fit, the fastest first."""
    fit = [layout for layout in layouts(model, cluster.cards, batch)
           if sum(memory(model, layout, batch).values()) <= cluster.memory]
    return sorted(fit, key=lambda layout: seconds(model, cluster, layout, batch))


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    p, draw, rows = comm.size, np.random.default_rng(0), []
    weights, x = draw.normal(0, .3, (2 * p, 4 * p, 4 * p)), draw.random((8 * p, 4 * p))
    model = Model(p, weights[:2].size, 4 * p, 1, 8, (8, 8, 16), (8, 8))
    for way, layout in ((data_parallel, Layout(p, 1, 1, 8)), (one_f_one_b, Layout(1, 1, p, 2 * p)),
                        (tensor_parallel, Layout(1, p, 1, 8 * p))):
        trace, grads = counted(comm, partial(way, comm, weights, x, np.arange(8 * p) // 8))
        planned = sum(sent(model, layout, 8 * p).values()) * (comm.rank == 0)
        rows += [Row(f"{way.__name__}: bytes sent by all ranks", planned, trace.bytes_sent(), "B"),
                 Row("    weights held", sizes(model, layout, 8 * p)[1], sum(map(np.size, grads)))]
    lesson.say("Planned for an MLP of 2 p layers, and counted in micro.py's ways to train it:")
    lesson.table(rows)
    compare_with_library(lesson, Model=Model, Cluster=Cluster, layouts=layouts, sizes=sizes,
                         sent=sent, memory=memory, seconds=seconds, plan=plan)
    lesson.takeaway("Count what a rank holds, computes and sends, try all layouts, drop those that "
                    "do not fit: the fastest of the others is close to the best.")
    lesson.exercises(questions=[
        "In memory, write `m` in place of `min(m, pp)`, as in GPipe. What fits on 64 cards now?",
        "dp = 64 alone would be the fastest. Why is it not in the list, and what lets it fit?",
        "Why is tp = 16, pp = 4 so much slower than tp = 8, pp = 8? All cards of a node send.",
        "An hour of an A100 costs half of an H100's. Which would you rent?"])


if __name__ == "__main__":
    launch(main)
