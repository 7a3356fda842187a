"""Lesson 16: a GPT whose tokens are spread over ranks, beside the lesson's attention; picture."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from minipar.autograd import Tensor
from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import all_reduce, sum_over_ranks
from minipar.launcher import simulate
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.parallel.context.attention import context_attention
from minipar.parallel.context.parallelize_context import parallelize_context
from minipar.parallel.context.rank_groups import ContextOptions, ContextSplit, TokenLayout
from minipar.parallel.context.token_order import positions_of_ranks
from minipar.parallel.context.ulysses import columns_of_qkv, heads_to_tokens, tokens_to_heads
from minipar.parallel.cost.activations import layer_activations
from minipar.parallel.cost.context_parallel import computed_pairs
from minipar.viz import draw_ring_attention

from .kit import ABOUT, AT_MOST, Lesson, Row
from .measuring import counted

B, V, SIZE = 2, 50, 8                   # samples, words, bytes of a float64
LONG, WIDE = 1024, 64                   # tokens, and the width of the head, of a timed attention


def compare_with_library(lesson: Lesson, ring_attention: Callable, ulysses: Callable) -> None:
    """Compare the lesson's functions with the library's; spread the tokens of a GPT."""
    comm, p = lesson.comm, lesson.comm.size
    positions = positions_of_ranks("zigzag", 8 * p, p)
    qkv = queries_keys_values(comm, positions, 2 * p)
    lesson.say("The library's attention is an operation with a backward, works on pieces of any "
               "length, and computes with a block while the next one arrives:")
    lesson.table([Row(f"{name}: difference from the lesson's", 1e-14, float(np.abs(
        own(comm, *qkv, np.array(positions)) - library(comm, *qkv, positions)).max()), rule=AT_MOST)
        for name, own, library in (("ring", ring_attention, library_ring),
                                   ("Ulysses", ulysses, library_ulysses))])
    alone = run(comm, None, 2)
    compare_ways(lesson, alone)
    wrong = run(comm, LocalPositions(comm), 2)
    assert error(alone, wrong) > 1e-6
    lesson.say(f"If every rank counts its positions from 0, nothing fails: the loss is "
               f"{wrong.loss:.6f} instead of {alone.loss:.6f}. A token takes its "
               "position, target and mask along to whichever rank has it.")
    compare_orders(lesson)


def queries_keys_values(comm: Communicator, positions: list[np.ndarray],
                        heads: int) -> list[np.ndarray]:
    """This rank's tokens of random q, k and v (heads, tokens, 4), which all ranks draw alike."""
    length = sum(len(each) for each in positions)
    whole = np.random.default_rng(length).standard_normal((3, heads, length, 4))
    return [x[:, positions[comm.rank]] for x in whole]


def library_ring(comm: Communicator, q: np.ndarray, k: np.ndarray, v: np.ndarray,
                 positions: list[np.ndarray]) -> np.ndarray:
    """The result of the lesson's ring_attention, computed by the library."""
    return heads_of(context_attention(fused(q, k, v), comm, positions, len(q)), len(q))


def library_ulysses(comm: Communicator, q: np.ndarray, k: np.ndarray, v: np.ndarray,
                    positions: list[np.ndarray]) -> np.ndarray:
    """The result of the lesson's ulysses, computed by the library."""
    h, p, length = len(q), comm.size, sum(len(each) for each in positions)
    exchanged = tokens_to_heads(fused(q, k, v), comm, columns_of_qkv(h, h, q.shape[-1], p),
                                positions)
    out = context_attention(exchanged, comm.split(comm.rank), [np.arange(length)], h // p)
    return heads_of(heads_to_tokens(out, comm, positions), h)


def fused(*qkv: np.ndarray) -> Tensor:
    """(heads, tokens, n) of q, k and v → (1, tokens, 3 heads n)."""
    return Tensor(np.concatenate([x.swapaxes(0, 1).reshape(x.shape[1], -1) for x in qkv],
                                 axis=1)[None])


def heads_of(out: Tensor, heads: int) -> np.ndarray:
    """(1, tokens, heads n) → (heads, tokens, n)."""
    return out.data[0].reshape(out.shape[1], heads, -1).swapaxes(0, 1)


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


def compare_ways(lesson: Lesson, alone: Run) -> None:
    """Compare what a layer sends and keeps in both ways, and the values with one process."""
    comm, p, c = lesson.comm, lesson.comm.size, config(lesson.comm.size, 1)
    n = SIZE * B * c.context * c.width                  # bytes of one activation
    ways = {"ring": (ContextOptions(), "2(p−1)·b·t·d", 2 * (p - 1) * n, 4 * (p - 1) * n),
            "Ulysses": (ContextOptions(ulysses=p), "4(p−1)/p·b·t·d", *[4 * (p - 1) * n // p] * 2)}
    sent, kept = [], [Row("one process keeps", sum(layer_activations(
        c, B, itemsize=SIZE).values()), alone.kept - run(comm, None, 1).kept, "B")]
    for name, (options, formula, forward, backward) in ways.items():
        two, one = (run(comm, ContextSplit(comm, options), layers) for layers in (2, 1))
        keeps = layer_activations(c, B, itemsize=SIZE, cp=p, ulysses=options.ulysses)
        sent += [Row(f"{name}: sent in forward: {formula}", forward, two.forward - one.forward,
                     "B"),
                 Row("    … in backward", backward, two.backward - one.backward, "B"),
                 Row("    loss and gradients − one process", 1e-10, error(alone, two),
                     rule=AT_MOST)]
        kept.append(Row(f"{name}: each rank keeps", sum(keeps.values()), two.kept - one.kept, "B"))
    lesson.say(f"A GPT whose tokens are spread over p = {p} ranks: b·t·d = {B} · {c.context} · "
               f"{c.width}, {2 * p} heads, float64. Of one layer:")
    lesson.table(sent, "bytes of all ranks together")
    lesson.say("The ring sends its blocks again in backward, and with them the gradients that they "
               "collect. A rank keeps 1/p of the activations, and one number for each query and "
               "head instead of its probabilities: backward computes these again, block by block.")
    lesson.table(kept, "kept of a layer")


def seconds(p: int, order: str) -> float:
    """Virtual seconds of a forward and backward of attention on links that cost nothing."""
    def body(comm: Communicator) -> None:
        positions = positions_of_ranks(order, LONG, p)
        qkv = Tensor(np.ones((1, len(positions[comm.rank]), 3 * WIDE)), requires_grad=True)
        context_attention(qkv, comm, positions, 1).sum().backward()
    return simulate(body, Cluster(p, latency=0, bandwidth=1e15))[1]


def compare_orders(lesson: Lesson) -> None:
    """Compare the times of both orders of tokens, and draw the work of the ranks."""
    p = lesson.comm.size
    orders = {name: positions_of_ranks(name, 16 * p, p) for name in ("contiguous", "zigzag")}
    work = {name: int(computed_pairs(name, LONG, p).sum(axis=1).max()) for name in orders}
    slow, fast = (seconds(p, name) for name in orders)
    lesson.say("Contiguous pieces take longer by the work of the last rank, if messages take no "
               "time:")
    lesson.table([Row(f"time of contiguous / zig-zag, {LONG} tokens",
                      work["contiguous"] / work["zigzag"], slow / fast, rule=ABOUT)],
                 "forward and backward", "simulated")
    lesson.picture(lambda path: draw_ring_attention(
        path, orders, f"Ring attention of {16 * p} tokens on {p} ranks: the pairs of each rank"))
