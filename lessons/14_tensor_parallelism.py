"""Lesson 14. Tensor parallelism: where do f and g go?

A layer too large for one rank is cut: A by columns, B by rows.  Then

    relu(x [A₀ A₁]) [B₀; B₁]  =  relu(x A₀) B₀ + relu(x A₁) B₁

    rank 0   x ──▶ f ──▶ x A₀ ─▶ relu ─▶ · B₀ ──▶ g ──▶ z        forward          backward
                   ↕                              ↕         f    nothing          an all-reduce
    rank 1   x ──▶ f ──▶ x A₁ ─▶ relu ─▶ · B₁ ──▶ g ──▶ z   g    an all-reduce    nothing

and the ranks exchange nothing between the two products.  Attention is such a pair, too.  A head
needs its own columns of the weights of q, k and v, and its own rows of the projection.

A layer has two pairs: 2 all-reduces forward, 2 backward, each 2(p-1)·t·d numbers of all ranks.
The library's: minipar/parallel/tensor/layers.py, and vocabulary.py beside it.

    python lessons/14_tensor_parallelism.py          mpirun -n 4 python lessons/14_…
"""

import numpy as np
from micro import Tensor, all_gather, all_reduce, backward, linear, part, relu
from support.kit import Lesson, Row
from support.lesson_14 import compare_with_library
from support.measuring import counted, total

from minipar.comm import Communicator
from minipar.launcher import launch

N = 4                               # width of a head


def f(x: Tensor, comm: Communicator) -> Tensor:
    """x itself.  Each rank uses it with its own weights, so the gradients add up."""
    return Tensor(x.data, (x,), lambda grad: (all_reduce(comm, grad),))


def g(y: Tensor, comm: Communicator) -> Tensor:
    """The sum of all ranks' y.  Each summand has the gradient of the sum, which all ranks have."""
    return Tensor(all_reduce(comm, y.data), (y,), lambda grad: (grad,))


def mlp(x: Tensor, a: Tensor, b: Tensor, comm: Communicator) -> Tensor:
    """relu(x A) B.  This rank has the columns a of A, and the rows b of B."""
    return g(linear(relu(linear(f(x, comm), a)), b), comm)


def heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kᵀ / √N) v in each head, which is N columns of q, k and v (tokens, …)."""
    def apart(x: np.ndarray) -> np.ndarray:         # (tokens, heads · N) → (heads, tokens, N)
        return x.reshape(len(x), -1, N).swapaxes(0, 1)

    def join(x: np.ndarray) -> np.ndarray:          # and back
        return x.swapaxes(0, 1).reshape(x.shape[1], -1)
    qs, ks, vs = (apart(x.data) for x in (q, k, v))
    exps = np.tril(np.exp(qs @ ks.mT / N**.5))      # a token sees no later ones
    probs = exps / exps.sum(2, keepdims=True)

    def pull(grad: np.ndarray) -> list:
        dprobs = apart(grad) @ vs.mT
        ds = probs * (dprobs - (probs * dprobs).sum(2, keepdims=True)) / N**.5
        return [join(ds @ ks), join(ds.mT @ qs), join(probs.mT @ apart(grad))]
    return Tensor(join(probs @ vs), (q, k, v), pull)


def attention(x: Tensor, qkv: list[Tensor], o: Tensor, comm: Communicator) -> Tensor:
    """This rank has the columns of some heads in each of the three qkv, and their rows of o."""
    x = f(x, comm)
    return g(linear(heads(*[linear(x, w) for w in qkv]), o), comm)


def cross_entropy(z: Tensor, labels: np.ndarray, comm: Communicator) -> Tensor:
    """Mean of -log softmax(z)[label].  This rank has z, V/p of the V logits of each row."""
    (rows, columns), p = z.data.shape, comm.size
    largest = all_gather(comm, z.data.max(1), p * rows).reshape(p, rows).max(0)
    shifted = z.data - largest[:, None]             # so no exp is too large
    exps = np.exp(shifted)
    right = labels[:, None] == np.arange(columns) + comm.rank * columns     # at most one of a row
    sums = all_reduce(comm, exps.sum(1))            # one number for each row, where z has V/p
    at_label = all_reduce(comm, (shifted * right).sum(1))
    return Tensor((np.log(sums) - at_label).mean(), (z,), lambda grad: (
        grad * (exps / sums[:, None] - right) / rows,))


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, t, d, wide, draw = comm.size, 6, 8, 2 * N * comm.size, np.random.default_rng(0)
    axes = 1, 1, 1, 0, 1, 0, 1      # columns of wq, wk, wv, rows of wo; A; B; the last layer
    weights = [draw.normal(size=(d, wide) if axis else (wide, d)) / 2 for axis in axes]
    x, labels = draw.normal(size=(t, d)), draw.integers(0, wide, t)

    def step(comm: Communicator) -> tuple:
        *ws, last = [Tensor(part(comm, w, axis)) for w, axis in zip(weights, axes)]
        layer, y = counted(comm, lambda: mlp(
            attention(Tensor(x), ws[:3], ws[3], comm), ws[4], ws[5], comm))
        end, loss = counted(comm, lambda: cross_entropy(linear(f(y, comm), last), labels, comm))
        back, _ = counted(comm, lambda: backward(loss))
        return [layer, end, back], loss.data, [w.grad for w in (*ws, last)]
    (traces, loss, grads), (_, right, alone) = step(comm), step(comm.split(comm.rank))
    error = max(np.abs(mine - part(comm, whole, axis)).max()
                for mine, whole, axis in zip(grads, alone, axes))
    sent, n = [total(comm, trace.bytes_sent()) for trace in traces], 2 * (p - 1) * t * d * 8
    lesson.table([
        Row("loss: difference from one process", 1e-14, abs(loss - right), "", "≤"),
        Row("gradients: difference from one process", 1e-14, error, "", "≤"),
        Row("a layer forward: 2 all-reduces", 2 * n, sent[0], "B"),
        Row("loss: a maximum and two sums a token", (p - 1) * (p + 4) * t * 8, sent[1], "B"),
        Row("backward: 2 all-reduces, and f before the logits", 3 * n, sent[2], "B")],
        f"p = {p}, t = {t} tokens, d = {d}")
    compare_with_library(lesson, mlp, attention, cross_entropy)
    lesson.takeaway("Split columns, then rows: f where the ranks begin to differ, g where their "
                    "results are summed, two all-reduces forward and two backward for each layer.")
    lesson.exercises(questions=[
        "In f, write `(grad,)` in place of `(all_reduce(comm, grad),)`. Which results are wrong?",
        "Split A by rows, B by columns instead: how many collectives, and why can relu not wait?",
        "12 heads of queries share 4 heads of keys and values: which p are possible?",
        "At which b·t does an all-reduce of b·t·d take less time than the products of its layer?"])


if __name__ == "__main__":
    launch(main)
