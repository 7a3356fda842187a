"""Lesson 14: the library's tensor parallelism beside the lesson's; f or g forgotten; picture."""

from collections.abc import Callable

import numpy as np
from micro import Tensor, backward

from minipar import autograd as ag
from minipar.comm import Communicator
from minipar.comm.collectives import all_reduce, chunk_bounds
from minipar.nn import GPT, MLP, GPTConfig
from minipar.parallel.check_types import check_types
from minipar.parallel.tensor.parallelize import parallelize
from minipar.parallel.tensor.vocabulary import vocabulary_cross_entropy
from minipar.viz import draw_sharded_pair

from .kit import Lesson, Row, number
from .measuring import counted, total

B, T, V, SIZE = 2, 16, 50, 8        # samples, tokens, vocabulary, bytes of a float64
HEAD = 4                            # width of a head of the lesson
IDS = np.random.default_rng(0).integers(0, V, (B, T + 1))
Values = tuple[list[np.ndarray], np.ndarray]        # parts of weights, x or logits (tokens, …)


def compare_with_library(lesson: Lesson, mlp: Callable, attention: Callable,
                         cross_entropy: Callable) -> None:
    """Compare the lesson's functions with the library's; cut a GPT, and forget f and g."""
    comm, p = lesson.comm, lesson.comm.size
    own = {"MLP": lambda ws, x: mlp(x, *ws, comm),
           "attention": lambda ws, x: attention(x, ws[:3], ws[3], comm)}
    lesson.say("The library cuts the layers of an MLP or a GPT in this way; their code stays as it "
               "is. With the same weights:")
    rows = [Row(f"{name}: difference from the lesson's, with gradients", 1e-13, differ(
        lesson_values(own[name], *values), library(comm, *values)), "", "≤")
        for name, values, library in (("MLP", mlp_values(comm, 5), library_mlp),
                                      ("attention", attention_values(comm, 5), library_attention))]
    z, labels = logits_and_labels(comm, 5)
    found = lesson_values(lambda ws, x: cross_entropy(x, labels, comm), [], z)
    lesson.table([*rows, Row("cross-entropy: difference, with its gradient", 1e-13, differ(
        found, library_cross_entropy(comm, z, labels)), "", "≤")])
    alone, cut = gradients(None, p), gradients(comm, p)
    compare_with_one_process(lesson, alone, cut)
    forget_f_or_g(lesson, alone)
    draw(lesson, cut[-1])


def mlp_values(comm: Communicator, rows: int, seed: int = 0) -> Values:
    """This rank's columns of A and rows of B, and x."""
    draw = np.random.default_rng(seed)
    a, b = draw.standard_normal((6, 4 * comm.size)), draw.standard_normal((4 * comm.size, 6))
    mine = slice(4 * comm.rank, 4 * (comm.rank + 1))
    return [a[:, mine], b[mine]], draw.standard_normal((rows, 6))


def attention_values(comm: Communicator, rows: int, seed: int = 0) -> Values:
    """This rank's columns of the weights of q, k and v, its rows of the projection, and x."""
    draw, wide = np.random.default_rng(seed), 2 * HEAD          # two heads
    weights = draw.standard_normal((comm.size, 4, 6, wide))[comm.rank] / 2
    return [*weights[:3], weights[3].T], draw.standard_normal((rows, 6))


def logits_and_labels(comm: Communicator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """This rank's columns of logits, and labels."""
    draw = np.random.default_rng(0)
    z, labels = draw.standard_normal((comm.size, rows, 3)), draw.integers(0, 3 * comm.size, rows)
    return 100 * z[comm.rank], labels


def lesson_values(function: Callable, weights: list[np.ndarray],
                  x: np.ndarray) -> list[np.ndarray]:
    """function(weights, x), and the gradients of x and the weights for a gradient of cosines."""
    ws, entering = [Tensor(w) for w in weights], Tensor(x)
    y = function(ws, entering)
    backward(y, np.cos(np.arange(y.data.size)).reshape(y.data.shape))
    return [y.data, *[each.grad for each in (entering, *ws)]]


def library_values(y: ag.Tensor, x: ag.Tensor, grads: Callable) -> list[np.ndarray]:
    """The same of the library's y and x, whose weights' gradients grads() returns."""
    ag.backward(y, np.cos(np.arange(y.data.size)).reshape(y.shape))
    return [y.data.reshape(-1, *y.shape[2:]) if y.ndim == 3 else y.data,
            x.grad.reshape(-1, *x.shape[2:]) if x.ndim == 3 else x.grad, *grads()]


def library_mlp(comm: Communicator, weights: list[np.ndarray],
                x: np.ndarray) -> list[np.ndarray]:
    """A cut MLP of two layers with these parts of its weights."""
    a, b = weights
    model = parallelize(MLP([len(a), comm.size * len(b), len(a)]), comm).initialize(
        dtype=np.float64)
    model[0].weight.data[...], model[2].weight.data[...] = a, b
    entering = ag.Tensor(x, requires_grad=True)
    return library_values(model(entering), entering,
                          lambda: [model[i].weight.grad for i in (0, 2)])


def library_attention(comm: Communicator, weights: list[np.ndarray],
                      x: np.ndarray) -> list[np.ndarray]:
    """The attention of a cut GPT with these parts of its weights, of one sample x."""
    d, wide = weights[0].shape
    model = parallelize(GPT(GPTConfig(comm.size, max(1, len(x)), 1, comm.size * wide // HEAD, d,
                                      head_width=HEAD, bias=False)), comm)
    attention = model.initialize(dtype=np.float64).h[0].attn
    attention.c_attn.weight.data[...] = np.hstack(weights[:3])          # [q | k | v]
    attention.c_proj.weight.data[...] = weights[3]
    entering = ag.Tensor(x[None], requires_grad=True)
    return library_values(attention(entering), entering, lambda: [
        *np.split(attention.c_attn.weight.grad, 3, axis=1), attention.c_proj.weight.grad])


def library_cross_entropy(comm: Communicator, z: np.ndarray,
                          labels: np.ndarray) -> list[np.ndarray]:
    """The library's cross-entropy of this rank's columns z, and its gradient."""
    entering = ag.Tensor(z, requires_grad=True)
    loss = vocabulary_cross_entropy(entering, labels, comm, comm.size * z.shape[1])
    return library_values(loss, entering, list)


def differ(found: list[np.ndarray], right: list[np.ndarray]) -> float:
    """The largest difference of two lists of arrays."""
    return float(max(np.abs(one - two).max() for one, two in zip(found, right, strict=True)))


def config(p: int, num_layers: int = 2) -> GPTConfig:
    """A GPT with two heads for each of p ranks."""
    return GPTConfig(V, T, num_layers, num_heads=2 * p, width=16 * p)


def gradients(comm: Communicator | None, p: int, forgotten: str = "") -> tuple:
    """(loss, whole gradients by name, verdict of the types, model) of one process or of p ranks.

    `forgotten` is "f" or "g": then values enter, or leave, the pairs of layers as they are.
    """
    model = GPT(config(p))
    if comm is not None:
        split = parallelize(model, comm).split
        if forgotten:
            setattr(split, {"f": "enter", "g": "leave"}[forgotten], lambda x: x)
    model.initialize(dtype=np.float64)
    loss, verdict = model.loss(IDS[:, :-1], IDS[:, 1:]), ""
    if comm is not None:
        named = dict(model.named_parameters())
        try:
            check_types(loss, comm, named, {n for n, x in named.items() if not x.replicated})
            verdict = "accepted"
        except TypeError as error:
            verdict = str(error).partition(": the gradient")[0]
    loss.backward()
    whole = model.slabs.gradients()
    return loss.item(), whole, verdict, model


def errors(comm: Communicator, alone: tuple, found: tuple) -> tuple[float, float, int]:
    """(error of the loss, worst gradient error, number of wrong gradients), over all ranks."""
    off = np.array([np.max(np.abs(found[1][name] - g)) for name, g in alone[1].items()])
    off = all_reduce(comm, np.append(off, abs(found[0] - alone[0])), "max")
    return float(off[-1]), float(off[:-1].max()), int(np.sum(off[:-1] > 1e-9))


def count(comm: Communicator, num_layers: int) -> tuple[int, int]:
    """(all-reduces, bytes of all ranks) of one forward and backward."""
    model = parallelize(GPT(config(comm.size, num_layers)), comm).initialize(dtype=np.float64)
    trace, _ = counted(comm, lambda: model.loss(IDS[:, :-1], IDS[:, 1:]).backward())
    sent = trace.num_sent(label="all_reduce") // (2 * (comm.size - 1) * comm.size)
    return total(comm, sent), total(comm, trace.bytes_sent())


def compare_with_one_process(lesson: Lesson, alone: tuple, found: tuple) -> None:
    """Compare values with one process, and count all-reduces, their bytes and the parameters."""
    comm, p = lesson.comm, lesson.comm.size
    d = config(p).width
    n = SIZE * B * T * d
    (reduces2, bytes2), (reduces3, bytes3) = count(comm, 2), count(comm, 3)
    off_loss, off_gradient, _ = errors(comm, alone, found)
    cut, kept = (slab.data.size for slab in found[-1].slabs)
    whole = sum(g.size for g in alone[1].values())
    lesson.say(f"A GPT of 2 layers and {2 * p} heads, b·t·d = {B} · {T} · {d}, float64:")
    lesson.table([
        Row("loss and worst gradient − one process", 1e-10, max(off_loss, off_gradient),
            rule="≤"),
        Row("all-reduces of a layer, forward and backward", 4, reduces3 - reduces2),
        Row("… their bytes, all ranks: 4 · 2(p−1) · b·t·d", 4 * 2 * (p - 1) * n, bytes3 - bytes2,
            "B"),
        Row("all-reduces of a step: 4 L + 2 + 3", 4 * 2 + 2 + 3, reduces2),
        Row("… bytes of the loss and the ends: 2(p−1)(2 b·t·d + 3 b·t)",
            2 * (p - 1) * (2 * n + 3 * SIZE * B * T), bytes2 - 2 * (bytes3 - bytes2), "B"),
        Row("parameters: Σ of the cut + the replicated, once", whole, total(comm, cut) + kept),
    ], f"p = {p}")
    lesson.say("The all-reduces outside of the layers: g of the embedding, whose rows are cut too, "
               "and f before the logits. For the loss three numbers a token: the maximum, the "
               "target's logit, the sum of exponentials. The library all-reduces the maximum, too, "
               "where the lesson gathers those of all ranks. So no rank ever holds all logits.")


def forget_f_or_g(lesson: Lesson, alone: tuple) -> None:
    """Leave out f, then g: show what is wrong, and what the check of the types says."""
    comm, rows = lesson.comm, []
    for name, forgotten in (("as it is", ""), ("f forgotten", "f"), ("g forgotten", "g")):
        result = gradients(comm, comm.size, forgotten)
        loss, gradient, num_wrong = errors(comm, alone, result)
        assert (num_wrong == 0) == (not forgotten) == (result[2] == "accepted"), name
        rows.append((name, number(loss), number(gradient), f"{num_wrong} of {len(alone[1])}",
                     result[2]))
    lesson.say("What goes wrong without f or g? A forgotten f is the classic mistake: the loss is "
               "right, the gradients are wrong, and training continues without an error. The types "
               "I, R, V, P (`parallel/check_types.py`) find it before the first step:")
    lesson.grid(["program", "loss off by", "gradients off by", "wrong", "the types say"], rows)


def draw(lesson: Lesson, model: GPT) -> None:
    """Draw the MLP of the first block, with the columns and rows of each rank."""
    p, weight = lesson.comm.size, model.h[0].mlp.c_fc.weight
    num_columns = weight.global_shape[1]
    bounds = chunk_bounds(num_columns, p)
    assert bounds[lesson.comm.rank] == weight.box[1]
    lesson.picture(lambda path: draw_sharded_pair(
        path, bounds, num_columns, f"The GPT's gelu(x A) B, {p} ranks: messages at its ends only"))
