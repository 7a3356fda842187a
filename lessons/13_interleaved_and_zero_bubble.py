"""Lesson 13. Interleaved 1F1B and zero bubble: can the bubble shrink without more microbatches?

In 1F1B each rank idles for p - 1 forwards and p - 1 backwards of its stage.  To idle less:

    interleaved   v small stages on each rank       each wait is shorter: bubble / v, but at
                                                    least v times as many messages
    ZB-H1         B = I + W: some rank waits for    W fills gaps, (p-1)(F + I - W) remains,
                  I, the gradient of the input,     a third of the bubble if F = I = W;
                  none for W, that of the weights   activations are kept until W
    ZB-V          both, two stages on each rank     half of ZB-H1's bubble

p = 2 ranks, m = 4 microbatches, F = I = W:

    1F1B     rank 0   F0 F1 ·  ·  B0 B0 F2 B1 B1 F3 B2 B2 ·  B3 B3
             rank 1   ·  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 ·  ·
    ZB-H1    rank 0   F0 F1 ·  I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
             rank 1   ·  F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3

The library's: minipar/parallel/pipeline/schedule/schedules.py, zero_bubble.py; executor.py.

    python lessons/13_interleaved_and_zero_bubble.py         mpirun -n 4 python lessons/13_…
"""

from functools import partial

import numpy as np
from micro import Tensor, backward, cross_entropy, one_process
from support.kit import Lesson, Row
from support.lesson_13 import bubble_of, compare_with_library
from support.measuring import counted, total

from minipar.comm import Communicator
from minipar.launcher import launch


def interleaved(p: int, m: int, v: int, r: int) -> list[tuple]:
    """Rank r has stages r, r + p, …: p microbatches go through all of them, then the next p."""
    stages, groups = range(r, p * v, p), [range(i, i + p) for i in range(0, m, p)]
    forwards = [("F", s, i) for group in groups for s in stages for i in group]
    backwards = [("B", s, i) for group in groups for s in reversed(stages) for i in group]
    ahead = min((v - 1) * p + 2 * (p - r - 1), m * v)   # then the first gradient is back
    row = forwards[:ahead]
    for pair in zip(forwards[ahead:], backwards):
        row += pair
    return row + backwards[m * v - ahead:]


def zb_h1(p: int, m: int, r: int) -> list[tuple]:
    """1F1B of stage r, whose W come `delay` microbatches after their I."""
    ahead, delay = p - r - 1, r
    row = [("F", r, i) for i in range(ahead)]
    for i in range(m + delay):
        row += [("F", r, ahead + i)] if ahead + i < m else []
        row += [("I", r, i)] if i < m else []
        row += [("W", r, i - delay)] if i >= delay else []
    return row


def run(comm: Communicator, row: list[tuple], weights: np.ndarray, xs: np.ndarray,
        labels: np.ndarray) -> dict:
    """Do this rank's actions in order.  Stage s is a layer, relu(x) weights[s], on rank s mod p."""
    p, last, in_flight, grads, sends = comm.size, len(weights) - 1, {}, {}, []

    def receive(stage: int, tag: int) -> np.ndarray:
        comm.recv(out := np.empty_like(xs[0]), stage % p, tag)
        return out
    for kind, s, i in row:                  # tag 2s: an input of stage s; 2s + 1: a gradient for it
        if kind == "F":
            x = np.maximum(receive(s - 1, 2 * s), 0) if s else xs[i]
            y = Tensor(x @ weights[s])
            if s == last:
                backward(cross_entropy(y, labels[i], labels.size))
            else:
                sends.append(comm.isend(y.data, (s + 1) % p, 2 * s + 2))
            in_flight[s, i] = x, y
        if kind in "BI":                    # the gradient of the input: stage s - 1 waits for it
            x, y = in_flight[s, i]
            y.grad = y.grad if s == last else receive(s + 1, 2 * s + 1)
            if s:
                dx = (y.grad @ weights[s].T) * (x > 0)
                sends.append(comm.isend(dx, (s - 1) % p, 2 * s - 1))
        if kind in "BW":                    # that of the weights: at any time
            x, y = in_flight.pop((s, i))
            grads[s] = grads.get(s, 0) + x.T @ y.grad
    for request in sends:
        request.wait()
    return grads


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, m, draw, rows = comm.size, 2 * comm.size, np.random.default_rng(0), []
    weights = draw.normal(size=(2 * p, 8, 8)) / 2           # layers of width 8
    xs, labels = draw.normal(size=(m, 4, 8)), draw.integers(0, 8, (m, 4))   # 4 samples each
    for name, v, schedule, bubble in (
            ("interleaved", 2, [interleaved(p, m, 2, r) for r in range(p)], (p - 1) / (2 * m)),
            ("ZB-H1", 1, [zb_h1(p, m, r) for r in range(p)], (p - 1) / (3 * m))):
        ws = weights[:v * p]
        trace, grads = counted(comm, partial(
            run, comm, schedule[comm.rank], ws, xs, labels))
        alone = one_process(ws, xs.reshape(-1, 8), labels.ravel())
        error = max(np.abs(grad - alone[s]).max() for s, grad in grads.items())
        rows += [Row(f"{name}: difference from one process", 1e-14, error, "", "≤"),
                 Row("    idle time / work", bubble, bubble_of(schedule, v)),
                 Row("    messages", 2 * m * (v * p - 1), total(comm, trace.num_sent()))]
    lesson.table(rows, f"p = {p}, m = {m}, v = 2, F = I = W")
    compare_with_library(lesson, interleaved, zb_h1, run)
    lesson.takeaway("Smaller stages divide the bubble by v, and send v times as many messages or "
                    "more. W in the gaps leaves a third of the bubble, but activations are kept "
                    "longer. Neither needs more microbatches.")
    lesson.exercises(questions=[
        "In zb_h1, write `p - r - 1, 0` in place of `p - r - 1, r`. What remains of the saving?",
        "Why does ZB-H1's formula no longer hold if W > min(F, I)?",
        "Messages take a tenth of F. From which v on does interleaving cost time?",
        "In 1F1B the last rank keeps one microbatch, in ZB-H1 p. Which rank's memory decides?"])


if __name__ == "__main__":
    launch(main)
