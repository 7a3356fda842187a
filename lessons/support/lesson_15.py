"""Lesson 15: a GPT whose tokens are cut between its layers; what it keeps and sends; picture."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from micro import Tensor, backward

from minipar import autograd as ag
from minipar.comm import Communicator
from minipar.comm.collectives import all_reduce, sum_over_ranks
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.nn.step_context import training_step
from minipar.parallel.cost.activations import layer_activations
from minipar.parallel.tensor.layers import TensorSplit
from minipar.parallel.tensor.parallelize import parallelize
from minipar.parallel.tensor.sequence import SequenceSplit
from minipar.viz import draw_stacked_bars

from .kit import Lesson, Row
from .measuring import counted

B, V, SIZE = 2, 50, 8               # samples, vocabulary, bytes of a float64
MODES = {"one process": None, "tensor": {}, "sequence": {"sequence_parallel": True},
         "gathered again": {"sequence_parallel": True, "gather_again": True}}


def kept(y: Tensor, weights: Sequence[Tensor]) -> int:
    """The numbers that y's backward still needs: what the pulls refer to, without the weights."""
    found: dict[int, int] = {id(w.data): 0 for w in weights}
    seen: set[int] = set()

    def look(value: Any) -> None:
        value = value.data if isinstance(value, Tensor) else value
        if isinstance(value, np.ndarray):
            found.setdefault(id(value), value.size)

    def visit(tensor: Tensor) -> None:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            for cell in tensor.pull.__closure__ or ():
                look(cell.cell_contents)
            for each in tensor.inputs:
                visit(each)
    visit(y)
    return sum(found.values())


def compare_with_library(lesson: Lesson, tensor_layer: Callable, sequence_layer: Callable) -> None:
    """Compare the lesson's layers with the library's; cut a GPT in each mode."""
    comm, p = lesson.comm, lesson.comm.size
    lesson.say("The library's splits stand at the same places of any pair of layers:")
    lesson.table([Row(f"{name}: difference from the lesson's, with gradients", 1e-12, max(
        float(np.abs(one - two).max()) for one, two in zip(
            lesson_values(layer, comm, name), library_values(comm, name), strict=True)), rule="≤")
        for name, layer in (("tensor", tensor_layer), ("sequence", sequence_layer))])
    measured = compare_modes(lesson)
    lesson.say(f"Once a step sequence parallelism also reduces the gradients of "
               f"{6 * config(p, 1).width} numbers a layer that are used on split tokens.  It still "
               "keeps the gathered inputs of the column layers whole.  Gathering them **again** in "
               "backward costs a quarter more bytes, and leaves exactly 1/p of the activations.")
    compare_formulas(lesson, measured)
    lesson.picture(lambda path: draw_stacked_bars(
        path, {mode: parts(mode, p) for mode in MODES}, measured,
        f"Activations that a rank keeps of one layer, {p} ranks", "bytes kept for backward"))


def values(comm: Communicator, mode: str, tokens: int = 3) -> list[np.ndarray]:
    """This rank's x, gain, a, b, and the gradient of the result; `tokens` of each rank."""
    p, draw = comm.size, np.random.default_rng(tokens)
    x, grad = draw.standard_normal((2, p * tokens, 6))
    gain, a, b = (draw.standard_normal(shape) for shape in (6, (6, 4 * p), (4 * p, 6)))
    of_columns = slice(4 * comm.rank, 4 * (comm.rank + 1))
    rows = slice(None) if mode == "tensor" else slice(tokens * comm.rank, tokens * (comm.rank + 1))
    return [x[rows], gain, a[:, of_columns], b[of_columns], grad[rows]]


def lesson_values(layer: Callable, comm: Communicator, mode: str,
                  tokens: int = 3) -> list[np.ndarray]:
    """The result of the lesson's layer, and the gradients of x and the weights."""
    *given, grad = values(comm, mode, tokens)
    inputs = [Tensor(each) for each in given]
    y = layer(*inputs, comm)
    backward(y, grad)
    return [y.data, *[each.grad for each in inputs]]


def library_values(comm: Communicator, mode: str, tokens: int = 3) -> list[np.ndarray]:
    """The same by the library's splits, of samples (1, tokens, width)."""
    *given, grad = values(comm, mode, tokens)
    split = (TensorSplit if mode == "tensor" else SequenceSplit)(comm)
    x, gain, a, b = inputs = [ag.Tensor(each if i else each[None], requires_grad=True)
                              for i, each in enumerate(given)]
    h = ag.layer_norm(x, split.shared(gain), ag.Tensor(np.zeros(gain.shape)), 0.0)
    y = split.leave(ag.linear(ag.relu(ag.linear(split.enter(h), a)), b))
    ag.backward(y, grad[None])
    return [y.data[0], x.grad[0], *[each.grad for each in inputs[1:]]]


def config(p: int, num_layers: int, dropout: float = 0.0) -> GPTConfig:
    """A GPT with two heads and eight tokens for each of p ranks."""
    return GPTConfig(V, min(8 * p, 64 // p * p), num_layers, num_heads=2 * p, width=16 * p,
                     dropout=dropout)


def parts(mode: str, p: int) -> dict[str, int]:
    """Predicted bytes that a rank keeps of one layer, by operation."""
    how = (1, "tensor") if mode == "one process" else (p, mode)
    kept = layer_activations(config(p, 1), B, *how, itemsize=SIZE)
    return {what: size for what, size in kept.items() if size}


def run(comm: Communicator, mode: str, num_layers: int, dropout: float = 0.0) -> tuple:
    """(bytes kept, trace of all ranks' messages, loss and gradients) of a forward and backward."""
    c = config(comm.size, num_layers, dropout)
    ids = np.random.default_rng(0).integers(0, V, (B, c.context + 1))
    model = GPT(c) if MODES[mode] is None else parallelize(GPT(c), comm, **MODES[mode])
    model.initialize(dtype=np.float64)
    ledger = Ledger(model.parameters())

    def forward_backward() -> tuple[int, float]:
        with ledger.recording(), training_step(0, 0, np.arange(B)):
            loss = model.loss(ids[:, :-1].copy(), ids[:, 1:].copy())
        kept = ledger.live
        loss.backward()
        return kept, loss.item()
    trace, (kept, loss) = counted(comm, forward_backward)
    return kept, trace, {"loss": loss, **model.slabs.gradients()}


def layer(comm: Communicator, mode: str) -> tuple[int, dict[str, int]]:
    """(bytes kept, bytes sent by label) of one layer: three layers minus two."""
    (kept3, trace3, _), (kept2, trace2, _) = run(comm, mode, 3), run(comm, mode, 2)
    return kept3 - kept2, {
        label: int(sum_over_ranks(comm, trace3.bytes_sent(label=label)
                                - trace2.bytes_sent(label=label)))
        for label in ("all_reduce", "all_gather", "reduce_scatter")}


def compare_modes(lesson: Lesson) -> dict[str, int]:
    """Compare memory, messages and gradients of all modes; return the bytes a layer keeps."""
    comm, p, c = lesson.comm, lesson.comm.size, config(lesson.comm.size, 1)
    t, d, h = c.context, c.width, c.num_heads
    n, small = SIZE * B * t * d, SIZE * 6 * d       # one activation; norms and biases of a layer
    alone = run(comm, "one process", 2, dropout=0.1)[2]
    keeps, sends, measured = [], [], {}
    sums = {"tensor": (4, 0, 0), "sequence": (0, 4, 4), "gathered again": (0, 6, 4)}
    for mode in MODES:
        measured[mode], sent = layer(comm, mode)
        keeps.append(Row(f"{mode}: a layer keeps", sum(parts(mode, p).values()), measured[mode],
                         "B"))
        if mode in sums:
            reduces, gathers, scatters = sums[mode]
            sends.append(Row(f"{mode}: 2(p−1) a reduce, (p−1) a half, of b·t·d",
                             (p - 1) * n * (2 * reduces + gathers + scatters),
                             sum(sent.values()) - 2 * (p - 1) * small * (mode != "tensor"), "B"))
            found = run(comm, mode, 2, dropout=0.1)[2]
            off = np.array([np.max(np.abs(found[name] - x)) for name, x in alone.items()], float)
            sends.append(Row("    loss and gradients − one process, with dropout", 1e-10,
                             float(np.max(all_reduce(comm, off, "max"))), rule="≤"))
    lesson.say(f"A layer of a GPT, attention too, on p = {p} ranks: b·t·d = {B} · {t} · {d}, {h} "
               "heads, float64.")
    lesson.table(keeps, "memory")
    lesson.table(sends, "sent by all ranks")
    return measured


def compare_formulas(lesson: Lesson, measured: dict[str, int]) -> None:
    """Show the paper's formulas beside ours, and check that ours give the bytes `measured`."""
    p, c = lesson.comm.size, config(lesson.comm.size, 1)
    t, d, h = c.context, c.width, c.num_heads
    n = SIZE * B * t * d
    lesson.say("The same as bytes per b·t·d, in 2-byte numbers, without the scales of the norms "
               "(h heads and p ranks; the paper writes s·b·h, a heads and t ranks):")
    lesson.grid(["", "Korthikanti et al. 2022", "… without dropout's share", "minipar"], [
        ("one process", "34 + 5ht/d", "32 + 2ht/d", "32 + 2ht/d"),
        ("tensor", "10 + 24/p + 5ht/dp", "8 + 24/p + 2ht/dp", "8 + 24/p + 2ht/dp"),
        ("sequence", "–", "–", "4 + 28/p + 2ht/dp"),
        ("gathered again", "34/p + 5ht/dp", "32/p + 2ht/dp", "32/p + 2ht/dp")])
    halves = {"one process": (32, 0), "tensor": (8, 24), "sequence": (4, 28),
              "gathered again": (0, 32)}
    for mode, (whole, split) in halves.items():         # the last column equals the ledger
        q = 1 if mode == "one process" else p
        scales = 2 * SIZE * B * t // (1 if mode in ("one process", "tensor") else p)
        two_byte = (whole * q + split) * n + 2 * h * t * n // d
        assert measured[mode] - scales == two_byte // (2 * q), mode
