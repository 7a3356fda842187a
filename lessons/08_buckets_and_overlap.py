"""Lesson 08. Buckets and overlap: what hides?

Forward takes F seconds, backward B, the messages M.  One after the other they take F + B + M.  But
the gradients of the last layers are ready soon after backward begins.  DDP collects gradients in
buckets, from the last layer to the first, and reduces each full bucket while backward goes on:

    backward    ▓▓ h.3 ▓▓▓▓ h.2 ▓▓▓▓ h.1 ▓▓▓▓ h.0 ▓▓
    messages          ░░ 0 ░░░░ 1 ░░░░ 2 ░░░░ 3 ░░░░         at best F + max(B, M)

A message that has begun moves by itself, but the next round of a ring does not begin by itself.  So
backward asks, between two operations, whether a round has ended.  (minipar/parallel/data/ddp.py)

    python lessons/08_buckets_and_overlap.py          (or: mpirun -n 4 python lessons/…)
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from micro import Tensor, cross_entropy, in_order, mlp, one_process, part
from support.kit import Lesson, Row
from support.lesson_08 import compare_with_library
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch


def ring(comm: Communicator, flat: np.ndarray, tag: int) -> Iterator:
    """All-reduce in place, a round at a time: each yields the messages that it waits for."""
    p, r, pieces = comm.size, comm.rank, np.array_split(flat, comm.size)       # views
    for i in range(2 * (p - 1)):                # p - 1 rounds that add, p - 1 that copy
        piece = pieces[(r - 2 - i) % p]
        arrived = np.empty_like(piece)
        yield [comm.isend(pieces[(r - 1 - i) % p], (r + 1) % p, tag),
               comm.irecv(arrived, (r - 1) % p, tag)]
        piece[:] = piece + arrived if i < p - 1 else arrived


def go_on(rings: list, wait: bool = False) -> None:
    """Begin the next round of the oldest ring, if its last one has ended; or wait for them all."""
    while rings:
        oldest, messages = rings[0]
        if wait:
            for message in messages:
                message.wait()
        elif not all(message.test() for message in messages):
            return
        rings[0] = oldest, next(oldest, [])     # begins a round
        if not rings[0][1]:
            rings.pop(0)                        # there was none left
        if not wait:
            return


def backward(root: Tensor, ready: Callable, between: Callable) -> None:
    """micro's, with two hooks: ready(w), for a tensor made of no other, when its grad is whole."""
    root.grad = 1.0
    for tensor in reversed(in_order(root, {})):     # all that was made of it came before
        if not tensor.inputs:
            ready(tensor)
        for each, g in zip(tensor.inputs, tensor.pull(tensor.grad)):
            each.grad = each.grad + g
        between()


def ddp(comm: Communicator, weights: list, x: np.ndarray, labels: np.ndarray, num_rows: int,
        size: int) -> list:
    """The summed gradients, from this rank's rows, in buckets of `size` weights, the last first."""
    ws, rings, sums, bucket = [Tensor(w) for w in weights], [], [], []

    def ready(tensor: Tensor) -> None:
        if tensor in ws:
            bucket.insert(0, tensor.grad)
            if len(bucket) == size or tensor is ws[0]:      # full
                sums.append(np.stack(bucket))
                bucket.clear()
                one = ring(comm, sums[-1].reshape(-1), tag=len(sums))
                rings.append((one, next(one, [])))
    backward(cross_entropy(mlp(Tensor(x), ws), labels, num_rows), ready, partial(go_on, rings))
    go_on(rings, wait=True)
    return [*np.concatenate(sums[::-1])]


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, draw, rows = comm.size, np.random.default_rng(0), []
    weights, x, labels = draw.normal(0, 0.5, (6, 8, 8)), draw.random((12, 8)), np.arange(12) % 8
    alone, mine = one_process(weights, x, labels), [part(comm, x), part(comm, labels)]
    for size in (6, 2):
        trace, found = counted(comm, partial(ddp, comm, [*weights], *mine, len(x), size))
        assert np.abs(np.array(found) - alone).max() < 1e-14, "the gradients of one process"
        if comm.rank == 0:
            rows += [Row(f"buckets: {6 // size}; bytes of all ranks, 2 (p − 1) n",
                         2 * (p - 1) * weights.nbytes, trace.bytes_sent(), "B"),
                     Row("    messages, 2 p (p − 1) a bucket", 6 // size * 2 * p * (p - 1),
                         trace.num_sent())]
    lesson.table(rows, f"p = {p} ranks, n = {weights.nbytes:,} bytes of gradients")
    compare_with_library(lesson, weights, *mine, found)
    lesson.takeaway("Start each bucket's all-reduce as soon as its last gradient is ready. "
                    "Communication then overlaps with the rest of backward, and a step takes at "
                    "best F + max(B, M) instead of F + B + M.")
    lesson.exercises("assign_buckets", "in_order_ready", "accumulate_microbatches", questions=[
        "Which bucket can never hide, however fast the link? Which size of it helps?",
        "In backward, write `pass` in place of `between()`. Are the gradients right? What hides?",
        "Set latency=1e-3 in time_step of support/lesson_08.py: which number of buckets is best?",
        "With m microbatches M is paid once. From which m on is overlap not worth the effort?"])


if __name__ == "__main__":
    launch(main)
