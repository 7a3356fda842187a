"""Lesson 21. Offload: what does a slow link cost?

Arrays that backward needs later can wait elsewhere: a GPU's in host memory, a laptop's in a file.
An array is copied out when forward saves it, and copied back before backward uses it.  Arrays
return in reverse order: while backward uses one, the next is already being copied.

    compute    ▓▓ h.0 ▓▓▓▓ h.1 ▓▓▓▓ h.2 ▓▓│▓▓ h.2 ▓▓▓▓ h.1 ▓▓▓▓ h.0 ▓▓
    copy out        ░░░ 0 ░░░░░░ 1 ░░░    │                                out and in at the same
    copy in                               │     ░░░ 1 ░░░░░░ 0 ░░░         time: duplex

Two arrays are here at a time: the one in use, and the one being copied (*double buffering*).
Nothing is recomputed and nothing is rounded.  If the link is fast enough, the copies cost no time:

    forward max(F, S/w), backward max(B, S/w)       S bytes on a link of w bytes a second

The library's: minipar/memory/offload/activations.py.

    python lessons/21_offload.py          mpirun -n 4 python lessons/21_offload.py
"""

from functools import partial

import numpy as np
from micro import Tensor, backward, cross_entropy, one_process
from support.kit import Lesson, Row
from support.lesson_21 import compare_with_library
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch


def begin_copy(comm: Communicator, array: np.ndarray, out: np.ndarray) -> list:
    """Begin to copy: a message of this rank to itself.  Return what to wait for."""
    return [comm.irecv(out, comm.rank), comm.isend(array, comm.rank)]


def offloaded(comm: Communicator, weights: list, x: np.ndarray, labels: np.ndarray
              ) -> tuple[list, int]:
    """The gradients of an MLP, and the most inputs of layers that were here at a time."""
    n, here, elsewhere, copies, grads, most = len(weights), {}, {}, {}, {}, 0

    def wait(i: int) -> None:
        for request in copies.pop(i):
            request.wait()
    h = x
    for i, w in enumerate(weights):             # forward
        here[i] = np.maximum(h, 0) if i else h
        most = max(most, len(here))
        h = here[i] @ w                         # meanwhile the input of layer i - 1 leaves
        if i > 0:
            wait(i - 1)
            del here[i - 1]
        if i < n - 1:                           # (that of the last layer is needed at once)
            elsewhere[i] = np.empty_like(here[i])
            copies[i] = begin_copy(comm, here[i], elsewhere[i])
    out = Tensor(h)
    backward(cross_entropy(out, labels, len(x)))
    g = out.grad
    for i in reversed(range(n)):                # backward: the input of layer i is here
        if i < n - 1:
            wait(i)
        if i > 0:                               # … and that of layer i - 1 is on its way
            here[i - 1] = np.empty_like(elsewhere[i - 1])
            copies[i - 1] = begin_copy(comm, elsewhere.pop(i - 1), here[i - 1])
        most = max(most, len(here))
        grads[i] = here[i].T @ g
        g = g @ weights[i].T * (here.pop(i) > 0)
    return [grads[i] for i in range(n)], most


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    draw, n = np.random.default_rng(0), 6
    weights, x = draw.normal(0, 0.5, (n, 8, 8)), draw.random((16, 8))
    labels = draw.integers(0, 8, 16)
    trace, (grads, most) = counted(comm, partial(offloaded, comm, [*weights], x, labels))
    error = np.abs(np.array(grads) - one_process(weights, x, labels)).max()
    rows = [Row("gradients − those of a step that keeps all", 1e-15, error, "", "≤"),
            Row(f"inputs of layers here at a time, of {n}", 2, most)]
    if comm.rank == 0:
        rows.append(Row("copied by all ranks: out and in, but for the last layer's",
                        2 * (n - 1) * x.nbytes * comm.size, trace.bytes_sent(), "B"))
    lesson.table(rows, f"an MLP of {n} layers, on each rank by itself")
    compare_with_library(lesson, weights, x, labels, grads)
    lesson.takeaway("Offloading costs no time as long as the link copies each array while the "
                    "device computes the next; on a slower link a step takes max(compute, copy).")
    lesson.exercises(questions=[
        "In offloaded, write `pass` in place of `del here[i - 1]`. What is it worth then?",
        "Rematerialize each block and offload only its input: how fast must the link be now?",
        "With ahead=0 the device waits for every copy. Predict the time of a step, then try it.",
        "Which costs less here, to copy a block's activations or to recompute them?",
        "Why does FSDP offload parameters unit by unit, not array by array?"])


if __name__ == "__main__":
    launch(main)
