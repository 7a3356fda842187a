"""Lesson 25. Distillation: what does a teacher know that a label does not say?

A label is one number: "1".  A teacher gives a probability for each class, and so it also says that
this 1 looks like a 7.  At temperature 1 that is nearly hidden; its logits z', divided by T, show
it:

    p = softmax(z'/T)   q = softmax(z/T)        loss = α T² Σ p ln(p/q) + (1 - α) cross-entropy

The student's hidden layer can be compared with the teacher's, too.  If their widths differ, a
learned projection W makes one as wide as the other; it is dropped after training:

    x ──▶ hidden h ──▶ logits z                 + β ‖h W - h'‖² / (width of h')

A teacher too large for one rank runs on several, perhaps on none of its students' ranks.  Then
only its outputs travel, each number once.  The library's: minipar/compress/distillation/.

    python lessons/25_distillation.py          mpirun -n 4 python lessons/25_distillation.py
"""

import numpy as np
from micro import Tensor, all_reduce, backward, cross_entropy, linear, part, relu
from support.kit import Lesson, Row
from support.lesson_25 import compare_with_library

from minipar.comm import Communicator
from minipar.launcher import launch

T, ALPHA, BETA = 4.0, 0.9, 0.1


def softmax(z: np.ndarray) -> np.ndarray:
    """Probabilities of logits (rows, classes)."""
    weights = np.exp(z - z.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def soft_targets(z: Tensor, teacher: np.ndarray, temperature: float, num_rows: int) -> Tensor:
    """T² Σ p ln(p/q), by the teacher's logits.  T² keeps the gradient's size at every T."""
    p, q = softmax(teacher / temperature), softmax(z.data / temperature)
    loss = temperature**2 * (p * np.log(p / q)).sum() / num_rows
    return Tensor(loss, (z,), lambda g: (g * temperature * (q - p) / num_rows,))


def squared_error(x: Tensor, target: np.ndarray, num_rows: int) -> Tensor:
    """Σ ‖x - target‖² / width."""
    d = x.data - target
    return Tensor((d**2).sum() / target.shape[1] / num_rows, (x,), lambda g: (
        g * 2 * d / target.shape[1] / num_rows,))


def weighted_sum(factors: list, losses: list) -> Tensor:
    total = sum(factor * loss.data for factor, loss in zip(factors, losses))
    return Tensor(total, tuple(losses), lambda g: [g * factor for factor in factors])


def distill(comm: Communicator, weights: list, x: np.ndarray, labels: np.ndarray,
            hidden: np.ndarray, logits: np.ndarray) -> tuple[float, list]:
    """The loss, and the gradients of the student's two weights and of the projection.

    `hidden` and `logits` are the teacher's outputs for x; each rank computes 1/p of the rows.
    """
    first, second, projection = ws = [Tensor(w) for w in weights]
    h = relu(linear(Tensor(part(comm, x)), first))
    z = linear(h, second)
    loss = weighted_sum([1 - ALPHA, ALPHA, BETA], [
        cross_entropy(z, part(comm, labels), len(x)),
        soft_targets(z, part(comm, logits), T, len(x)),
        squared_error(linear(h, projection), part(comm, hidden), len(x))])
    backward(loss)                              # the teacher's outputs take no gradient
    return (all_reduce(comm, np.array([loss.data], float))[0],
            [all_reduce(comm, w.grad) for w in ws])


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    draw = np.random.default_rng(0)
    weights = [draw.normal(0, 0.5, shape) for shape in ((6, 4), (4, 3), (4, 8))]
    teacher = [draw.normal(0, 1, shape) for shape in ((6, 8), (8, 3))]
    x, labels = draw.random((7, 6)), draw.integers(0, 3, 7)
    taught = (hidden := np.maximum(x @ teacher[0], 0)), hidden @ teacher[1]
    loss, grads = distill(comm, weights, x, labels, *taught)
    alone_loss, alone = distill(comm.split(comm.rank), weights, x, labels, *taught)
    error = max(np.abs(a - b).max() for a, b in zip(grads, alone))
    z, rows = draw.standard_normal((7, 3)), []
    limit = z - taught[1] - (z - taught[1]).mean(1, keepdims=True)  # T → ∞, times n · classes
    for temperature in (1.0, 4.0, 1000.0):
        backward(soft_targets(logits := Tensor(z), taught[1], temperature, 7))
        size = np.linalg.norm(logits.grad) / (np.linalg.norm(limit) / 7 / 3)
        rows.append(Row(f"T = {temperature:g}: ‖dz‖ ÷ its limit, ‖z − z'‖ / (n · classes)", 1.0,
                        size, "", "≈"))
    lesson.table([Row("loss − one process", 1e-14, abs(loss - alone_loss), "", "≤"),
                  Row("gradients − one process", 1e-14, error, "", "≤"), *rows])
    compare_with_library(lesson, weights, teacher, x, labels, [loss, *grads])
    lesson.takeaway("Soft targets say what else an image might be. T makes that visible, T² keeps "
                    "the size of the gradient, and a teacher on other ranks sends only its "
                    "outputs.")
    lesson.exercises(questions=[
        "In soft_targets, write `g * (q - p)` in place of `g * temperature * (q - p)`. What loss "
        "has that gradient?",
        "Logits are 50,000 numbers a token, hidden layers 4,096: what would you send to a student "
        "that has the teacher's head?",
        "Why is the teacher's dropout off while the student's is on?",
        "At T → ∞ the loss compares the logits: how large is it for a confident mistake?"])


if __name__ == "__main__":
    launch(main)
