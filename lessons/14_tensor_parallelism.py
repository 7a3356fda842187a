"""Lesson 14. Tensor parallelism: where do f and g go?

A layer too large for one rank is split: A by columns, B by rows.  Then

    gelu(x [A₀ A₁]) [B₀; B₁]  =  gelu(x A₀) B₀ + gelu(x A₁) B₁

and the ranks exchange nothing between the two products.  Before them stands f, an all-reduce in
backward; after them stands g, an all-reduce in forward.  Attention is such a pair, too.

    python lessons/14_tensor_parallelism.py --ranks 8
    mpirun -n 4 python lessons/14_tensor_parallelism.py
"""

import numpy as np
from support.kit import Lesson, Row, number
from support.measuring import counted, total

from minipar.autograd import Tensor
from minipar.comm import Communicator
from minipar.comm.collectives import all_reduce, chunk_bounds
from minipar.launcher import launch
from minipar.nn import GPT, GPTConfig
from minipar.parallel.check_types import check_types
from minipar.parallel.tensor.layers import TensorSplit
from minipar.parallel.tensor.parallelize import split_model
from minipar.viz import draw_sharded_pair

B, T, V, SIZE = 2, 16, 50, 8        # samples, tokens, vocabulary, bytes of a float64
IDS = np.random.default_rng(0).integers(0, V, (B, T + 1))


def config(p: int, num_layers: int = 2) -> GPTConfig:
    """A GPT with two heads for each of p ranks."""
    return GPTConfig(V, T, num_layers, num_heads=2 * p, width=16 * p)


class ForgottenF(TensorSplit):
    """A split without f: right in forward, wrong in backward."""

    def enter(self, x: Tensor) -> Tensor:
        """x itself: no all-reduce in backward."""
        return x


class ForgottenG(TensorSplit):
    """A split without g: every rank continues with its own summand."""

    def leave(self, y: Tensor) -> Tensor:
        """y itself: no all-reduce in forward."""
        return y


def gradients(comm: Communicator | None, p: int, split: type = TensorSplit) -> tuple:
    """(loss, whole gradients by name, verdict of the types, model) of one process or of p ranks."""
    model = GPT(config(p))
    if comm is not None:
        split_model(model, split(comm))
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
    model = split_model(GPT(config(comm.size, num_layers)), TensorSplit(comm))
    model.initialize(dtype=np.float64)
    trace, _ = counted(comm, lambda: model.loss(IDS[:, :-1], IDS[:, 1:]).backward())
    sent = trace.num_sent(label="all_reduce") // (2 * (comm.size - 1) * comm.size)
    return total(comm, sent), total(comm, trace.bytes_sent())


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    alone, found = gradients(None, comm.size), gradients(comm, comm.size)
    compare_with_one_process(lesson, alone, found)
    forget_f_or_g(lesson, alone)
    draw(lesson, found[-1])
    lesson.takeaway("Split columns, then rows: f where the ranks begin to differ, g where their "
                    "results are summed, two all-reduces forward and two backward for each layer.")
    lesson.exercises(questions=[
        "Split A by rows and B by columns instead: how many messages, and why can gelu not wait?",
        "12 heads of queries share 4 heads of keys and values: which p are possible?",
        "At which b·t does an all-reduce of b·t·d take less time than the products of its layer?"])


def compare_with_one_process(lesson: Lesson, alone: tuple, found: tuple) -> None:
    """Compare values with one process, and count all-reduces, their bytes and the parameters."""
    comm, p = lesson.comm, lesson.comm.size
    d = config(p).width
    n = SIZE * B * T * d
    (reduces2, bytes2), (reduces3, bytes3) = count(comm, 2), count(comm, 3)
    off_loss, off_gradient, _ = errors(comm, alone, found)
    cut, kept = (slab.data.size for slab in found[-1].slabs)
    whole = sum(g.size for g in alone[1].values())
    lesson.table([
        Row("loss − one process", 1e-10, off_loss, rule="≤"),
        Row("worst gradient − one process", 1e-10, off_gradient, rule="≤"),
        Row("all-reduces of a layer, forward and backward", 4, reduces3 - reduces2),
        Row("… their bytes, all ranks: 4 · 2(p−1) · b·t·d", 4 * 2 * (p - 1) * n, bytes3 - bytes2,
            "B"),
        Row("all-reduces of a step: 4 L + 2 + 3", 4 * 2 + 2 + 3, reduces2),
        Row("… bytes of the loss and the ends: 2(p−1)(2 b·t·d + 3 b·t)",
            2 * (p - 1) * (2 * n + 3 * SIZE * B * T), bytes2 - 2 * (bytes3 - bytes2), "B"),
        Row("parameters: Σ of the split + the replicated, once", whole, total(comm, cut) + kept),
    ], f"p = {p}: GPT of 2 layers, {2 * p} heads, b·t·d = {B} · {T} · {d}, float64")
    lesson.say("The other all-reduces: g of the embedding, whose rows are split too, and f of the "
               "head. For the loss the ranks all-reduce three numbers a token (maximum, target's "
               "logit, sum of exponentials), so no rank ever holds all logits.")


def forget_f_or_g(lesson: Lesson, alone: tuple) -> None:
    """Leave out f, then g: show what is wrong, and what the check of the types says."""
    comm, rows = lesson.comm, []
    for name, split in (("as it is", TensorSplit), ("f forgotten", ForgottenF),
                        ("g forgotten", ForgottenG)):
        result = gradients(comm, comm.size, split)
        loss, gradient, num_wrong = errors(comm, alone, result)
        assert (num_wrong == 0) == (name == "as it is") == (result[2] == "accepted"), name
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
        path, bounds, num_columns, f"z = gelu(x A) B on {p} ranks: messages at its ends only"))


if __name__ == "__main__":
    launch(main)
