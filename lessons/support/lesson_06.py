"""Lesson 06: the library's tape of a GPT, its bytes, and data parallelism in two forms."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minipar import autograd as ag
from minipar.autograd import Tensor, gradcheck
from minipar.comm import Communicator
from minipar.comm.collectives import sum_over_ranks
from minipar.data import shard_range
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, MLP, GPTConfig, Linear
from minipar.parallel.data.ddp_by_autograd import all_reduce_gradients, data_parallel
from minipar.viz import draw_autograd_graph, graph_nodes

from .kept_trace import stop_trace
from .kit import Lesson, Row
from .measuring import total

TINY = GPTConfig(vocab_size=5, context=4, num_layers=1, num_heads=2, width=4)
SMALL = GPTConfig(vocab_size=64, context=32, num_layers=3, num_heads=4, width=32)
STEPS = 5                   # of the recurrent network: each uses the same weights


def draw_and_count(lesson: Lesson) -> list[Row]:
    """Draw the tape of a small MLP; return rows of the bytes it keeps."""
    model = MLP([32, 64, 10]).initialize()
    names = dict(zip(("W1", "b1", "W2", "b2"), model.parameters()))
    w1, b1, w2, b2 = names.values()
    x = Tensor(np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32))
    with Ledger(model.parameters()).recording() as ledger:
        a = ag.linear(x, w1, b1)
        h = ag.relu(a)
        y = ag.linear(h, w2, b2)
        loss = ag.cross_entropy(y, np.zeros(16, np.int64))
    names.update(x=x, a=a, h=h, y=y, loss=loss)
    drawn = sum(box.num_bytes for box in graph_nodes(loss, names))
    lesson.picture(lambda path: draw_autograd_graph(
        path, loss, names, "The tape of a two-layer MLP"))
    return [Row("MLP: x 16 × 32, h 16 × 64, dy 16 × 10", 4 * 16 * (32 + 64 + 10), ledger.live, "B"),
            Row("… the same, summed in the picture", ledger.live, drawn, "B")]


def activation_bytes(config: GPTConfig, b: int) -> int:
    """The bytes that a float32 GPT saves for backward of b sequences, operation by operation.

        ln_1, ln_2   each the normalized rows  b t d  and their scales  b t
        attn         c_attn its input  b t d,  attention q k v  3 b t d  and probabilities  b h t²
                     (for t ≤ 64: longer sequences skip blocks above the diagonal),
                     c_proj its input  b t d
        mlp          c_fc its input  b t d,  gelu its slope  4 b t d,  c_proj its input  4 b t d
        at the end   ln_f  b t d + b t,  head  b t d,  cross-entropy  b t V;  the ids, as int64
    """
    t, d, h, v = config.context, config.width, config.num_heads, config.vocab_size
    assert t <= 64, f"this formula holds for a context of at most 64, not {t}"
    layer = 16 * b * t * d + 2 * b * t + b * h * t * t
    return 4 * (config.num_layers * layer + 2 * b * t * d + b * t + b * t * v) + 8 * b * t


def check_derivatives() -> float:
    """The worst relative error of a GPT's gradients against finite differences."""
    model = GPT(TINY).initialize(dtype=np.float64)
    ids = np.random.default_rng(0).integers(0, TINY.vocab_size, (2, TINY.context + 1))
    return gradcheck(lambda *_: model.loss(ids[:, :-1], ids[:, 1:]), *model.parameters())


def gradients(config: GPTConfig, ids: np.ndarray, comm: Communicator | None = None,
              graph: bool = False) -> tuple[np.ndarray, int]:
    """The flat float64 gradient of the loss of ids (n, t + 1), and the bytes this rank sent for it.

    Without `comm` one process computes all samples; with it, each rank computes its part.
    """
    model = GPT(config).initialize(dtype=np.float64)
    if comm is None:
        model.loss(ids[:, :-1], ids[:, 1:]).backward()
        return model.slabs[0].complete_grad(), 0
    mine = shard_range(len(ids), comm.rank, comm.size)
    ids = ids[mine.start:mine.stop]
    if graph:
        data_parallel(model, comm)          # from now on every use of a weight is copy_to(weight)
    num_targets = sum_over_ranks(comm, ids[:, 1:].size)
    comm.start_trace()
    model.loss(ids[:, :-1], ids[:, 1:], num_targets).backward()
    if not graph:
        all_reduce_gradients(model, comm)
    return model.slabs[0].complete_grad(), stop_trace(comm).bytes_sent()


def recurrent_bytes(comm: Communicator, graph: bool) -> int:
    """Bytes that all ranks together send for STEPS times x ← tanh(x W + b) with the same W, b."""
    layer = Linear(8, 8).initialize(dtype=np.float64)
    if graph:
        data_parallel(layer, comm)
    x = Tensor(np.random.default_rng(comm.rank).standard_normal((4, 8)))
    comm.start_trace()
    for _ in range(STEPS):
        x = ag.tanh(layer(x))
    x.sum().backward()
    if not graph:
        all_reduce_gradients(layer, comm)
    return total(comm, stop_trace(comm).bytes_sent())


def pulls(walk: Callable[[Any], None], add: Callable[[Any, Any], Any]) -> int:
    """The pulls that walk(y) calls for y = 2¹⁰ x, made by 10 doublings add(y, y)."""
    y, count = add(Tensor(1.0), Tensor(0.0)), 0
    y.inputs = ()
    for _ in range(10):
        y = add(y, y)

        def counting(g: Any, pull: Callable = y.pull) -> Any:
            nonlocal count
            count += 1
            return pull(g)
        y.pull = counting
    walk(y)
    return count


def compare_with_library(lesson: Lesson, grad: np.ndarray, weight: np.ndarray, x: np.ndarray,
                         labels: np.ndarray) -> None:
    """Compare `grad`, the weight's; show the tape of a GPT; compare the forms of parallelism."""
    lesson.say("The library keeps no tensor in a node of its tape, only the arrays that its "
               "derivative needs. It counts the uses of each value in advance, and passes a "
               "gradient on when all have reported.")
    lesson.table([Row("difference from the lesson's gradient", 1e-14,
                      np.abs(library_gradient(weight, x, labels) - grad).max(), "", "≤")])
    if lesson.comm.rank == 0:
        show_tape(lesson)
    compare_gradients(lesson)


def library_gradient(weight: np.ndarray, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The gradient of the cross-entropy of relu(x weight)."""
    leaf = Tensor(weight, requires_grad=True)
    ag.cross_entropy(ag.relu(ag.linear(Tensor(x), leaf)), labels, len(x)).backward()
    return leaf.grad


def show_tape(lesson: Lesson) -> None:
    """Draw an MLP's tape, and count the bytes that a GPT's tape keeps."""
    rows = draw_and_count(lesson)
    model = GPT(SMALL).initialize()
    ids = np.random.default_rng(0).integers(0, SMALL.vocab_size, (8, SMALL.context + 1))
    inputs, targets = ids[:, :-1].copy(), ids[:, 1:].copy()
    with Ledger(model.parameters()).recording() as ledger:
        loss = model.loss(inputs, targets)
    kept = activation_bytes(SMALL, 8)
    rows.append(Row("GPT, 3 layers: kept after forward", kept, ledger.live, "B"))
    loss.backward()
    rows.append(Row("GPT: left after backward", 0, ledger.live, "B"))
    rows.append(Row("GPT: worst gradient error against finite differences", 1e-7,
                    check_derivatives(), rule="≤"))
    lesson.table(rows, "the tape")
    lesson.say("A layer keeps b·t·d (64 + 4 h t/d) + 8 b·t bytes here (t tokens, width d, h "
               "heads). The well-known s·b·h (34 + 5 a s/h) of Korthikanti et al. 2022 counts "
               "2-byte numbers; ours would be 32 + 2 a s/h in those. The difference is dropout, "
               "which is off here: two masks of s·b·h, and in attention a mask and the "
               "probabilities after it, 3 a s/h.")


def compare_gradients(lesson: Lesson) -> None:
    """Compare gradients and bytes of the two forms of data parallelism with one process."""
    comm, p = lesson.comm, lesson.comm.size
    ids = np.random.default_rng(1).integers(0, SMALL.vocab_size, (2 * p + 1, SMALL.context + 1))
    alone, _ = gradients(SMALL, ids)
    slab, slab_bytes = gradients(SMALL, ids, comm)
    graph, graph_bytes = gradients(SMALL, ids, comm, graph=True)
    weights = 8 * alone.size
    table = 8 * SMALL.vocab_size * SMALL.width      # tied: used by the embedding and by the head
    lesson.table([
        Row("slab form − one process", 1e-12, float(np.max(np.abs(slab - alone))), rule="≤"),
        Row("graph form − one process", 1e-12, float(np.max(np.abs(graph - alone))), rule="≤"),
        Row("slab form: 2 (p−1) n", 2 * (p - 1) * weights, total(comm, slab_bytes), "B"),
        Row("graph form: 2 (p−1) (n + wte, used twice)", 2 * (p - 1) * (weights + table),
            total(comm, graph_bytes), "B"),
        Row(f"a weight used {STEPS} times, slab form", 2 * (p - 1) * 8 * 72,
            recurrent_bytes(comm, graph=False), "B"),
        Row(f"a weight used {STEPS} times, graph form", 2 * (p - 1) * 8 * 72 * STEPS,
            recurrent_bytes(comm, graph=True), "B"),
    ], f"{len(ids)} samples, p = {p}: gradients in float64; bytes of all ranks")
