"""Lesson 27: the library's runs of each layout, counted; its planner beside the lesson's; Llama."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from minipar.comm import Cluster as SimulatedCluster
from minipar.comm import Communicator
from minipar.comm.collectives import gather_trace
from minipar.comm.cost.traffic import bytes_by_axis
from minipar.comm.mesh import DeviceMesh
from minipar.comm.trace import Trace
from minipar.launcher import simulate
from minipar.memory.ledger import Ledger
from minipar.nn import MLP, Linear
from minipar.nn.module import replace_module
from minipar.optim import AdamW
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.plan import search
from minipar.plan.cluster import read_cluster
from minipar.plan.layout import Layout as PlanLayout
from minipar.plan.memory import GIB
from minipar.plan.models import layer_parameters, read_model
from minipar.viz import ParetoPanel, draw_pareto

from .kept_trace import keep
from .kit import ABOUT, Lesson, Row

SIZE, TOKENS, BATCH = 8, 4096, 512      # bytes of a float64; a Llama's sequence, and its batch
# The MLP whose seconds are simulated: FLOP/s, latency and bandwidth of its cluster.
BLOCKS, WIDTH, SAMPLES, FLOPS, ALPHA, RATE = 8, 64, 64, 2e10, 2e-6, 4e9
LLAMA = read_model("llama3-70b", TOKENS)
# What is reached of data sheets: 55 % of 989 and 65 % of 312 TFLOP/s, 80 % of the links.  A tenth
# of the memory is left for what the lesson does not count.
CARDS = {"H100": (544e12, 73.4e9, 5e-6, 360e9, 40e9), "A100": (203e12, 73.4e9, 5e-6, 240e9, 20e9)}
Layout = Any                            # the lesson's named tuple


class Step(NamedTuple):
    """A step of an MLP: bytes that all ranks send by axis, on rank 0; this rank's peaks by kind."""

    sent: dict[str, int]
    peaks: dict[str, int]
    stage: int


def compare_with_library(lesson: Lesson, **names: Callable) -> None:
    """Run every layout of the lesson's ranks; plan Llama 70B with the lesson's `names`."""
    own = SimpleNamespace(**names)
    count_every_layout(lesson, own)
    time_every_layout(lesson, own)
    compare_plans(lesson, own)
    rent(lesson, own)


def model_of(own: SimpleNamespace, p: int) -> Any:
    """The lesson's model of an MLP of p blocks in float64, whose weights have Adam's averages."""
    return own.Model(p, 2 * (4 * p)**2, 4 * p, 1, SIZE, (SIZE, SIZE, 2 * SIZE), (SIZE, SIZE))


def layouts_of(own: SimpleNamespace, p: int) -> list[Layout]:
    """The layouts of p ranks, with microbatches of 2 samples."""
    return [layout for layout in own.layouts(model_of(own, p), p, 8 * p) if layout.b == 2]


def prepared(comm: Communicator, layout: Layout, blocks: int, width: int, samples: int, kind: str
             ) -> tuple[Strategy, list[Microbatch]]:
    """An MLP of the lesson's blocks with a strategy of this kind, and its microbatches."""
    model = MLP([width] * (2 * blocks + 1))
    for layer in [*model][::2]:
        replace_module(model, layer, Linear(width, width, bias=False))
    strategy = make_strategy(kind, model.initialize(0, np.float64),
                             DeviceMesh(comm, pp=layout.pp, dp=layout.dp, tp=layout.tp))
    num_rows = layout.dp * layout.b         # of all ranks in a microbatch
    rows = np.array(strategy.rows(num_rows))
    x = np.random.default_rng(0).random((samples // num_rows, num_rows, width))
    return strategy, [Microbatch(each[rows], rows % width, rows) for each in x]


def step(comm: Communicator, layout: Layout) -> Step:
    """Collective.  Train an MLP of `comm.size` blocks on 8 p samples, with ZeRO-1 and Adam."""
    p, ledger = comm.size, Ledger()
    with ledger.recording():
        strategy, batches = prepared(comm, layout, p, 4 * p, 8 * p, "zero1")
        optimizer = AdamW(strategy.slabs)
        ledger.forget_peaks()
        comm.start_trace()
        strategy.forward_backward(batches)
        strategy.step(optimizer)
    trace = keep(gather_trace(comm, comm.stop_trace()) or Trace())
    sent = {axis: sum(links.values())
            for axis, links in bytes_by_axis(trace, strategy.mesh).items()}
    return Step(sent, dict(ledger.peak_of), strategy.mesh.coordinate("pp"))


def expected(own: SimpleNamespace, p: int, layout: Layout
             ) -> tuple[dict[str, int], dict[str, float]]:
    """Bytes sent and kept by the lesson's formulas, and by two terms for a whole model.

    The first block needs no gradient of its input, so it sends less.  A stage keeps one array more
    of each microbatch, its result or the loss's probabilities.
    """
    model, batch = model_of(own, p), 8 * p
    m, _, n = own.sizes(model, layout, batch)
    sent, kinds = own.sent(model, layout, batch), own.memory(model, layout, batch)
    return ({**sent, "tp": sent["tp"] - m * 2 * (layout.tp - 1) * n * layout.dp},
            {**kinds, "activations": kinds["activations"] + min(m, layout.pp) * n})


def count_every_layout(lesson: Lesson, own: SimpleNamespace) -> None:
    """Assert the bytes of every layout of these ranks."""
    p, rows = lesson.comm.size, []
    for layout in layouts_of(own, p):
        found, (sent, kinds) = step(lesson.comm, layout), expected(own, p, layout)
        name = f"dp {layout.dp} × tp {layout.tp} × pp {layout.pp}"
        if lesson.comm.rank == 0:
            rows += [Row(f"{name}: {axis} sends", sent[axis], found.sent[axis], "B")
                     for axis in sent]
        rows += [Row(f"{name}: {kind}", round(kinds[kind]), found.peaks[kind], "B")
                 for kind in kinds if found.stage == 0 or kind != "activations"]
    lesson.say(f"The library trains the MLP with every layout of p = {p} ranks, by ZeRO-1 and "
               "Adam. What each axis sends and what this rank holds are the plan's. (But the first "
               "block sends less: its input needs no gradient. And a stage keeps one array more of "
               "each microbatch: its result, or the loss's probabilities.)")
    lesson.counts(rows, f"bytes of {len(layouts_of(own, p))} layouts, sent and held")


def time_every_layout(lesson: Lesson, own: SimpleNamespace) -> None:
    """Steps of a larger MLP on 8 simulated ranks beside the lesson's seconds."""
    model = own.Model(BLOCKS, 2 * WIDTH**2, WIDTH, 1, SIZE, (SIZE, SIZE, 2 * SIZE), (SIZE, SIZE))
    cluster = own.Cluster(8, 8, FLOPS, 1e12, ALPHA, RATE, RATE)
    planned = {layout: own.seconds(model, cluster, layout, SAMPLES)
               for layout in own.layouts(model, 8, SAMPLES) if layout.b == 4}
    rows = []
    if lesson.comm.rank == 0:                   # the other ranks show nothing
        for layout, seconds in sorted(planned.items(), key=lambda item: item[1]):
            found = simulated_seconds(layout)
            rows.append((", ".join(map(str, layout)), f"{seconds * 1e6:,.0f} µs",
                         f"{found * 1e6:,.0f} µs", f"{found / seconds:.2f}"))
    lesson.say(f"Seconds: steps of an MLP of {BLOCKS} blocks, width {WIDTH}, on 8 ranks of a "
               f"simulated cluster: {FLOPS / 1e9:g} GFLOP/s, {ALPHA * 1e6:g} µs, {RATE / 1e9:g} "
               "GB/s. A deep pipeline takes longer than planned, since its messages also wait for "
               "each other. The order of the layouts is the same.")
    lesson.grid(["dp, tp, pp, microbatch", "planned", "simulated", "ratio"], rows)


def simulated_seconds(layout: Layout) -> float:
    """Virtual seconds of the gradients of a step, on 8 ranks of one node."""
    def body(comm: Communicator) -> float:
        strategy, batches = prepared(comm, layout, BLOCKS, WIDTH, SAMPLES, "ddp")
        begun = comm.now()
        strategy.forward_backward(batches)
        return comm.now() - begun
    cluster = SimulatedCluster(8, latency=ALPHA, bandwidth=RATE, flops_per_second=FLOPS,
                               memory_bandwidth=1e15)
    return max(simulate(body, cluster)[0])


def llama(own: SimpleNamespace) -> Any:
    """The lesson's model of Llama 3 70B: attention and the MLP are each a block of half a layer.

    What backward needs is from Korthikanti et al. 2022, table 2, with fused attention.
    """
    return own.Model(2 * LLAMA.num_layers, layer_parameters(LLAMA) // 2, LLAMA.width, TOKENS, 2,
                     (2, 2, 12), (5, 12))


def cluster_of(own: SimpleNamespace, cards: int, name: str = "H100") -> Any:
    """The lesson's cluster of nodes of 8 cards."""
    return own.Cluster(cards, 8, *CARDS[name])


def candidate(layout: Layout) -> search.Candidate:
    """The prediction of minipar.plan for the same layout on 64 H100."""
    same = PlanLayout(layout.dp, layout.tp, layout.pp, sp=False, kind="zero1", microbatch=layout.b,
                      batch=BATCH)
    return search.predict(read_cluster("8x8:h100/llama3"), LLAMA, same)


def compare_plans(lesson: Lesson, own: SimpleNamespace) -> None:
    """Llama on 64 cards: the lesson's ranking beside that of minipar.plan."""
    model, cluster = llama(own), cluster_of(own, 64)
    found = own.plan(model, cluster, BATCH)
    others = [candidate(layout) for layout in found]
    times = [own.seconds(model, cluster, layout, BATCH) for layout in found]
    bytes_of = [sum(own.memory(model, layout, BATCH).values()) for layout in found]
    lesson.say(f"Llama 3 70B on 64 H100, {BATCH} sequences of {TOKENS:,} tokens in a step. Of "
               f"{len(own.layouts(model, 64, BATCH))} layouts {len(found)} fit into nine tenths of "
               "a card. `minipar.plan` also has what this model leaves out: attention's scores, "
               "the table of tokens, the head with its logits, kernels that wait for memory.")
    lesson.grid(["dp, tp, pp, microbatch", "a step", "minipar.plan", "memory", "minipar.plan"], [
        (", ".join(map(str, found[i])), f"{times[i]:.1f} s", f"{others[i].seconds:.1f} s",
         f"{bytes_of[i] / GIB:.0f} GiB", f"{others[i].num_bytes / GIB:.0f} GiB")
        for i in (*range(5), len(found) - 1)])
    seconds = [other.seconds for other in others]
    lesson.table([
        Row("rank correlation of their seconds", 1, rank_correlation(times, seconds), "", ABOUT),
        Row("a step of the lesson's choice, beside the best", min(seconds), seconds[0], "s",
            ABOUT)], "by minipar.plan", "found")
    points = {"the lesson's model": zip(found, bytes_of, times),
              "minipar.plan": zip(found, [other.num_bytes for other in others], seconds)}
    lesson.picture(lambda path: draw_pareto(path, [
        ParetoPanel(title, "tokens per second and card", meshes(rows), size="memory of a card")
        for title, rows in points.items()], "Llama 3 70B on 64 H100: the fastest of each mesh"))


def meshes(rows: Iterable[tuple[Layout, float, float]]) -> dict[str, tuple[float, float, float]]:
    """The points of a picture, of layouts with bytes and seconds: the fastest of each mesh."""
    points = {}
    for layout, num_bytes, seconds in sorted(rows, key=lambda row: -row[2]):
        sizes = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp}
        name = " ".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1)
        points[name] = num_bytes, BATCH * TOKENS / 64 / seconds, 0.0
    return points


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's: that of the ranks."""
    return float(np.corrcoef(*(np.argsort(np.argsort(each)) for each in (a, b)))[0, 1])


def hours(own: SimpleNamespace, cards: int, name: str) -> tuple[Layout, float, float] | None:
    """The fastest layout, its seconds, and card hours for 10⁹ tokens; None if nothing fits."""
    model, cluster = llama(own), cluster_of(own, cards, name)
    found = own.plan(model, cluster, BATCH)
    if not found:
        return None
    seconds = own.seconds(model, cluster, found[0], BATCH)
    return found[0], seconds, cards * seconds / 3600 / (BATCH * TOKENS) * 1e9


def rent(lesson: Lesson, own: SimpleNamespace) -> None:
    """A table of step seconds and card hours for a billion tokens, by cards."""
    rows = []
    for name, cards in (*(("H100", 2**k) for k in range(4, 10)), ("A100", 64), ("A100", 256)):
        found = hours(own, cards, name)
        rows.append((f"{cards} {name}", *(
            (", ".join(map(str, found[0])), f"{found[1]:.1f} s", f"{found[2]:,.0f}") if found
            else ("none fits", "–", "–"))))
    lesson.say("More cards make a step shorter, and a token dearer: the bubble grows with fewer "
               "microbatches for each rank, and messages do not shrink as products do. Too few "
               "cards are dear, too, since memory alone then says what layout it is.")
    lesson.grid(["rented", "dp, tp, pp, microbatch", "a step", "card hours for 10⁹ tokens"], rows)
