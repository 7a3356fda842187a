"""Lesson 16. Context parallelism: what if one sequence is too long for a rank?

Every rank takes some of the tokens.  A GPT treats each token by itself, except in attention, where
a query needs the keys and values of all tokens before it.  Two ways bring them together:

    ring       queries stay; blocks of k, v travel around the ring, p - 1 hops.  Partial results
               are merged by the online softmax: each hop adds to out, maximum and sum
    Ulysses    an all-to-all turns t/p tokens of all heads into all tokens of h/p heads; another
               one turns the results back

    python lessons/16_context_parallelism.py --ranks 8
    mpirun -n 4 python lessons/16_context_parallelism.py
"""

from typing import NamedTuple

import numpy as np
from support.kit import ABOUT, AT_MOST, Lesson, Row
from support.measuring import counted

from minipar.autograd import Tensor
from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import all_reduce, sum_over_ranks
from minipar.formulas.activations import layer_activations
from minipar.formulas.context_parallel import computed_pairs, imbalance, pairs_by_hop
from minipar.launcher import launch, simulate
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.parallel.context.attention import context_attention
from minipar.parallel.context.layout import ContextOptions, ContextSplit, TokenLayout
from minipar.parallel.context.parallelize_context import parallelize_context
from minipar.parallel.context.token_order import positions_of_ranks
from minipar.viz import draw_ring_attention

B, V, SIZE = 2, 50, 8                   # samples, words, bytes of a float64
LONG, WIDE = 1024, 64                   # tokens, and the width of the head, of a timed attention


def config(p: int, num_layers: int) -> GPTConfig:
    """A GPT with two heads and eight tokens for each of p ranks."""
    return GPTConfig(V, 8 * p, num_layers, num_heads=2 * p, width=16 * p)


class LocalPositions(ContextSplit):
    """A mistake: every rank counts its tokens from 0."""

    def make_layout(self, length: int) -> TokenLayout:
        """Right but for the positions of this rank's tokens."""
        right = super().make_layout(length)
        return right._replace(mine=np.arange(len(right.mine)))


class Run(NamedTuple):
    """A forward and backward: bytes that all ranks sent, bytes kept, the loss and all gradients."""

    forward: int
    backward: int
    kept: int
    loss: float
    gradients: dict[str, np.ndarray]


def run(comm: Communicator, split: ContextSplit | None, num_layers: int) -> Run:
    """A run; without `split` of one process.  Loss and gradients are summed over the ranks."""
    c = config(comm.size, num_layers)
    ids = np.random.default_rng(0).integers(0, V, (B, c.context + 1))
    model = GPT(c) if split is None else parallelize_context(GPT(c), split)
    model.initialize(dtype=np.float64)
    ledger = Ledger(model.parameters())

    def forward() -> Tensor:
        with ledger.recording():        # targets are shifted before tokens are cut
            return model.loss(ids[:, :-1], ids[:, 1:], loss_divisor=B * c.context)
    before, loss = counted(comm, forward)
    kept = ledger.live
    after, _ = counted(comm, loss.backward)
    sent = [int(sum_over_ranks(comm, trace.bytes_sent())) for trace in (before, after)]
    gradients = {name: p.grad for name, p in model.named_parameters()}
    if split is None:
        return Run(*sent, kept, loss.item(), gradients)
    gradients = {name: all_reduce(comm, g) for name, g in gradients.items()}
    return Run(*sent, kept, sum_over_ranks(comm, loss.item()), gradients)


def error(one: Run, other: Run) -> float:
    """The largest difference of any gradient, or of the loss."""
    off = [np.max(np.abs(one.gradients[name] - g)) for name, g in other.gradients.items()]
    return float(max(*off, abs(one.loss - other.loss)))


def seconds(p: int, order: str) -> float:
    """Virtual seconds of a forward and backward of attention on links that cost nothing."""
    def body(comm: Communicator) -> None:
        positions = positions_of_ranks(order, LONG, p)
        qkv = Tensor(np.ones((1, len(positions[comm.rank]), 3 * WIDE)), requires_grad=True)
        context_attention(qkv, comm, positions, 1).sum().backward()
    return simulate(body, Cluster(p, latency=0, bandwidth=1e15))[1]


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    alone = run(comm, None, 2)
    compare_ways(lesson, alone)
    lesson.say("The ring sends its blocks again in backward, and with them the gradients that they "
               "collect. A rank keeps 1/p of the activations, and one number for each query and "
               "head instead of its probabilities: backward computes these again, block by block.")
    wrong = run(comm, LocalPositions(comm), 2)
    assert error(alone, wrong) > 1e-6
    lesson.say(f"If every rank counts its positions from 0, nothing fails: the loss is "
               f"{wrong.loss:.6f} instead of {alone.loss:.6f}. A token takes its "
               "position, target and mask along to whichever rank has it.")
    compare_orders(lesson)
    lesson.takeaway("Keys travel, queries stay, and partial softmaxes merge exactly; in zig-zag "
                    "order all ranks compute the same.")
    lesson.exercises(questions=[
        "Why does backward need the final log-sum-exp, and not the one of its hop?",
        "Eight heads of queries share one head of keys and values: what do the ring and Ulysses "
        "send then?",
        "A sequence is packed from many short documents, none of which sees another: which order "
        "is balanced now?"])


def compare_ways(lesson: Lesson, alone: Run) -> None:
    """Compare what a layer sends and keeps in both ways, and the values with one process."""
    comm, p, c = lesson.comm, lesson.comm.size, config(lesson.comm.size, 1)
    n = SIZE * B * c.context * c.width                  # bytes of one activation
    ways = {"ring": (ContextOptions(), "2(p−1)·b·t·d", 2 * (p - 1) * n, 4 * (p - 1) * n),
            "Ulysses": (ContextOptions(ulysses=p), "4(p−1)/p·b·t·d", *[4 * (p - 1) * n // p] * 2)}
    rows = [Row("one process: a layer keeps", sum(layer_activations(c, B, itemsize=SIZE).values()),
                alone.kept - run(comm, None, 1).kept, "B")]
    for name, (options, formula, forward, backward) in ways.items():
        two, one = (run(comm, ContextSplit(comm, options), layers) for layers in (2, 1))
        keeps = layer_activations(c, B, itemsize=SIZE, cp=p, ulysses=options.ulysses)
        rows += [Row(f"{name}: a layer sends in forward: {formula}", forward,
                     two.forward - one.forward, "B"),
                 Row("    … in backward", backward, two.backward - one.backward, "B"),
                 Row("    … and each rank keeps", sum(keeps.values()), two.kept - one.kept, "B"),
                 Row("    loss and gradients − one process", 1e-10, error(alone, two),
                     rule=AT_MOST)]
    lesson.table(rows, f"p = {p}: b·t·d = {B} · {c.context} · {c.width}, {2 * p} heads, float64; "
                 "all ranks together")


def compare_orders(lesson: Lesson) -> None:
    """Compare the work of the ranks in both orders of tokens, and draw it."""
    p = lesson.comm.size
    orders = {name: positions_of_ranks(name, 16 * p, p) for name in ("contiguous", "zigzag")}
    pairs = {name: pairs_by_hop(positions_of_ranks(name, 200 * p, p)) for name in orders}
    work = {name: int(computed_pairs(name, LONG, p).sum(axis=1).max()) for name in orders}
    slow, fast = (seconds(p, name) for name in orders)
    lesson.table([
        Row("contiguous: pairs of the busiest rank / mean: (2p−1)/p", (2 * p - 1) / p,
            imbalance(pairs["contiguous"]), rule=ABOUT),
        Row("zig-zag: the same", 1.0, imbalance(pairs["zigzag"])),
        Row(f"time of contiguous / zig-zag, {LONG} tokens", work["contiguous"] / work["zigzag"],
            slow / fast, rule=ABOUT)], "who computes how much", "simulated")
    lesson.picture(lambda path: draw_ring_attention(
        path, orders, f"Ring attention of {16 * p} tokens on {p} ranks: the pairs of each rank"))


if __name__ == "__main__":
    launch(main)
