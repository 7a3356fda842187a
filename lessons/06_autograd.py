"""Lesson 06. Autograd and the loop: what must parallelism preserve?

Forward writes a tape: each tensor knows the tensors it was made of, and how its gradient becomes
theirs.  Backward walks the tape from the loss and adds to the gradient of every weight.  Training
needs no more.  So a parallel program is right if it computes the gradient of the whole batch.

    x ──▶ a = x w ──▶ h = relu(a) ──▶ … ──▶ loss        da = dh · [a > 0]
          ▲                                             dw = xᵀ da          forward must keep x
    w ────┘                                             dx = da wᵀ          and w

A tensor that is used k times gets the sum of k gradients, and may pass it on when all are there.
Else backward walks every path: 1,024 of 10 doublings x + x.  (micro.py; minipar/autograd/engine.py)

    python lessons/06_autograd.py          mpirun -n 4 python lessons/06_autograd.py
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from micro import all_reduce, cross_entropy, part
from support.kit import Lesson, Row
from support.lesson_06 import compare_with_library, pulls
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch


class Tensor:
    """An array, the tensors it was made of, and `pull`: from its gradient to one for each."""

    def __init__(self, data: np.ndarray, inputs: tuple = (), pull: Callable = lambda g: ()):
        self.data, self.inputs, self.pull, self.grad = data, inputs, pull, 0.0


def add(x: Tensor, y: Tensor) -> Tensor:
    return Tensor(x.data + y.data, (x, y), lambda g: (g, g))


def linear(x: Tensor, w: Tensor) -> Tensor:
    return Tensor(x.data @ w.data, (x, w), lambda g: (g @ w.data.T, x.data.T @ g))


def relu(x: Tensor) -> Tensor:
    return Tensor(np.maximum(x.data, 0), (x,), lambda g: (g * (x.data > 0),))


def along_paths(tensor: Tensor, grad: float | np.ndarray = 1.0) -> None:
    """The chain rule as it stands: right, but a tensor used twice passes on twice."""
    tensor.grad = tensor.grad + grad
    for each, g in zip(tensor.inputs, tensor.pull(grad)):
        along_paths(each, g)


def in_order(tensor: Tensor, order: dict) -> dict:
    """Add the tensor and everything that it came from to `order`, each after its inputs."""
    if tensor not in order:
        for each in tensor.inputs:
            in_order(each, order)
        order[tensor] = len(order)              # a dict keeps this order
    return order


def backward(root: Tensor) -> None:
    """Each tensor passes on once: after all that was made of it, when its gradient is whole."""
    root.grad = 1.0
    for tensor in reversed(in_order(root, {})):
        for each, g in zip(tensor.inputs, tensor.pull(tensor.grad)):
            each.grad = each.grad + g


def finite_differences(loss: Callable[[], float], w: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """∂loss/∂w, a number at a time: move it up and down, and look at the loss."""
    grad = np.empty_like(w)
    for i in np.ndindex(w.shape):
        number, w[i] = w[i], w[i] + step
        up, w[i] = loss(), number - step
        grad[i], w[i] = (up - loss()) / (2 * step), number
    return grad


def train(comm: Communicator, weights: list, x: np.ndarray, labels: np.ndarray, steps: int) -> None:
    """The loop: forward, backward, the sum over ranks, a step.  The weights change in place."""
    for _ in range(steps):
        ws, h = [Tensor(w) for w in weights], Tensor(part(comm, x))
        for i, w in enumerate(ws):
            h = linear(relu(h) if i else h, w)
        backward(cross_entropy(h, part(comm, labels), len(x)))      # rows of all ranks
        for w in ws:
            w.data -= 0.1 * all_reduce(comm, w.grad)


def main(comm: Communicator) -> None:
    lesson, p, draw = Lesson(comm, __file__, __doc__), comm.size, np.random.default_rng(0)
    start, x, labels = draw.normal(0, 0.5, (2, 5, 5)), draw.random((7, 5)), np.arange(7) % 5
    w, found, alone = Tensor(start[0].copy()), [*start.copy()], [*start.copy()]
    backward(cross_entropy(relu(linear(Tensor(x), w)), labels, 7))
    error = w.grad - finite_differences(
        lambda: cross_entropy(relu(linear(Tensor(x), w)), labels, 7).data, w.data)
    trace, _ = counted(comm, partial(train, comm, found, x, labels, steps=3))
    train(comm.split(comm.rank), alone, x, labels, steps=3)             # one process
    rows = [Row("10 doublings: pulls along all paths, 2¹⁰ − 1", 1023, pulls(along_paths, add)),
            Row("    each tensor once", 10, pulls(backward, add)),
            Row("a gradient − finite differences", 1e-8, np.abs(error).max(), "", "≤"),
            Row(f"3 steps on {p} ranks − one process", 1e-14,
                np.abs(np.array(found) - alone).max(), "", "≤")]
    lesson.table(rows + [Row("    sent, 2 (p − 1) n in each", 6 * (p - 1) * start.nbytes,
                             trace.bytes_sent(), "B")] * (comm.rank == 0))
    compare_with_library(lesson, w.grad, w.data, x, labels)
    lesson.takeaway("Parallelism must preserve one thing, the gradient of the whole batch. Divide "
                    "the loss by the global number of targets, and gradients simply add up.")
    lesson.exercises(questions=[
        "In backward, write `each.grad = g` in place of `each.grad = each.grad + g`. What breaks?",
        "Divide each rank's loss by its own count: by which factor is the gradient wrong?",
        "From which sequence length on do attention's probabilities take most bytes of a layer?"])


if __name__ == "__main__":
    launch(main)
