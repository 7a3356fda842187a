"""Lesson 32. Late weights: how old may a gradient be?

1F1B drains the pipeline before each step.  PipeDream never does: a stage steps as soon as it has a
gradient, and goes on.  *Version* v of a stage is its weights after v steps.  By *weight stashing*
a microbatch meets the same version forward and backward, since the stage keeps it until then:

    stage 0   F0 F1 F2 ·  ·  B0 F3 B1 F4 B2 F5 B3     F3 and B3 with version 1: at B3 two steps late
    stage 1   ·  F0 F1 ·  B0 F2 B1 F3 B2 F4 B3 F5              with version 2: one step late
    stage 2   ·  ·  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4              with version 3: never late

PipeDream: stage s of p is p-1-s steps late, and keeps p - s versions.  *Vertical sync*: all are p-1
late.  *2BW* steps once in p microbatches: all are one step late, with two versions.  For curvature
λ and learning rate η, a delay of D steps is stable if ηλ < 2 sin(π / (4D + 2)).

    python lessons/32_late_weights.py        mpirun -n 4 python lessons/32_late_weights.py
"""

from collections.abc import Callable, Sequence

import numpy as np
from micro import Tensor, all_reduce, backward, cross_entropy, linear, one_process, relu
from support.kit import Lesson, Row
from support.lesson_32 import compare_with_library

from minipar.comm import Communicator
from minipar.launcher import launch

RATE = 0.5


def stream(comm: Communicator, weight: np.ndarray, x: np.ndarray, labels: np.ndarray, delay: int,
           per_step: int = 1) -> np.ndarray:
    """This rank's layer after microbatches (m, rows, …), with a step after every `per_step`."""
    p, s, m = comm.size, comm.rank, len(x)
    ahead, in_flight, sends, versions, grad = min(p - s - 1, m), {}, [], [weight], 0
    for i in range(m + ahead):
        if i < m:                               # forward of microbatch i
            h = Tensor(x[i] if s == 0 else np.empty((x.shape[1], len(weight))))
            if s > 0:
                comm.recv(h.data, s - 1)
            w = Tensor(versions[max(0, i // per_step - delay)])     # backward uses it, too
            out = linear(relu(h) if s > 0 else h, w)
            if s < p - 1:
                sends.append(comm.isend(out.data, s + 1))
            else:
                out = cross_entropy(out, labels[i], per_step * labels[i].size)
            in_flight[i] = h, w, out
        if i >= ahead:                          # backward of the oldest one
            h, w, out = in_flight.pop(i - ahead)
            g = 1.0 if s == p - 1 else np.empty_like(out.data)
            if s < p - 1:
                comm.recv(g, s + 1)
            backward(out, g)
            if s > 0:
                sends.append(comm.isend(h.grad, s - 1))
            grad = grad + w.grad
            if (i - ahead + 1) % per_step == 0:         # step at once, whatever others do
                versions, grad = [*versions, versions[-1] - RATE * grad], 0
    for request in sends:
        request.wait()
    return versions[-1]


def late_sgd(gradient: Callable, w: np.ndarray, delays: Sequence[int], steps: int,
             rate: float = RATE) -> np.ndarray:
    """One process, all versions: step t by the gradient at a w whose part s is delays[s] late."""
    versions = [w]
    for t in range(steps):
        late = np.array([versions[max(0, t - delay)][s] for s, delay in enumerate(delays)])
        versions.append(versions[t] - rate * gradient(late, t))
    return np.array(versions)


def delayed_averaging(comm: Communicator, gradient: Callable, w: np.ndarray, delay: int,
                      steps: int) -> np.ndarray:
    """Data parallelism: step by one's own gradient, and correct it when the mean has arrived."""
    own, means = [], []
    for t in range(steps + delay):
        if t < steps:
            own.append(gradient(w, t))
            means.append(all_reduce(comm, own[t]) / comm.size)  # could take until it is used
            w = w - RATE * own[t]
        if t >= delay:
            w = w - RATE * (means[t - delay] - own[t - delay])
    return w


def main(comm: Communicator) -> None:
    lesson, p, s, m = Lesson(comm, __file__, __doc__), comm.size, comm.rank, 3 * comm.size
    draw, rows, found = np.random.default_rng(0), [], []
    weights, x = draw.normal(0, 0.4, (p, 8, 8)), draw.standard_normal((m, 4, 8))
    labels = draw.integers(0, 8, (m, 4))
    for name, delays, n in (("PipeDream", range(p)[::-1], 1), ("2BW", [1] * p, p),
                            ("vertical sync", [p - 1] * p, 1)):
        xs, ys = x.reshape(m // n, -1, 8), labels.reshape(m // n, -1)       # a batch for each step
        right = late_sgd(lambda w, t, xs=xs, ys=ys: np.array(one_process(w, xs[t], ys[t])),
                         weights, delays, len(xs))
        found.append(stream(comm, weights[s], x, labels, delays[s], n))
        rows.append(Row(f"{name}: difference from late SGD of one process", 1e-12,
                        np.abs(found[-1] - right[-1, s]).max(), rule="≤"))
    w = delayed_averaging(comm, lambda w, t: w - s, np.zeros(1), 2, 9)
    settles, grows = (abs(late_sgd(lambda w, t: w, np.ones(1), [3], 999, rate)[-1, 0])
                      for rate in (1.94 * np.sin(np.pi / 14), 2.06 * np.sin(np.pi / 14)))
    rows += [Row("delayed averaging: at the end ranks differ by", 1e-12,
                 np.abs(all_reduce(comm, w) / p - w).max(), rule="≤"),
             Row("w²/2, D = 3, at 0.97 of the limit: |w| at the end", 0.01, settles, rule="≤"),
             Row("    at 1.03 of it: 1/|w|", 0.01, 1 / grows, rule="≤")]
    lesson.table(rows, f"{m} microbatches on p = {p} stages")
    compare_with_library(lesson, weights, x, labels, found, late_sgd)
    lesson.takeaway("A pipeline that never waits trains by late gradients of known age: with D "
                    "steps the largest stable rate is about π/(4D + 2) of that of SGD.")
    lesson.exercises("one_f_one_b", "dualpipe_v", "chimera", "slice_backward", questions=[
        "In stream, write `np.subtract(versions[-1], RATE * grad, versions[-1])` in place of "
        "`versions[-1] - RATE * grad`. Which ranks compute something else now?",
        "How few microbatches may a step of 2BW have, and why?",
        "16 stages step at ηλ = 0.3, at which SGD is far from its limit. Which of them diverge?"])


if __name__ == "__main__":
    launch(main)
