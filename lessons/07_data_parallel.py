"""Lesson 07. DataParallel or DDP: why one process each?

Both divide the batch, and both take the same steps as one process.  They differ in which rank talks
to which:

    DataParallel   rank 0 drives: it scatters the inputs, broadcasts the parameters, gathers the
                   outputs, computes the loss alone, scatters the output gradients, reduces the
                   parameter gradients, and steps alone   five exchanges, all through rank 0
    DDP            every rank does all of this for its own samples: one exchange, a ring all-reduce,
                   in which every rank sends equally much

    bytes through      rank 0 of DataParallel    2 (p-1) n + samples     n: bytes of the parameters
                       any rank of DDP           4 n (p-1)/p

In this lesson every rank is a process with both.  PyTorch's DataParallel is *one* process with a
thread for each device.  Threads cost more: Python's global interpreter lock (GIL) lets only one
thread at a time run Python, and a step of many small operations is mostly Python.  In DDP each
process has its own GIL.  The library's: minipar/parallel/data/classic_data_parallel.py, ddp.py.

    python lessons/07_data_parallel.py          mpirun -n 4 python lessons/07_data_parallel.py
"""

from functools import partial

import numpy as np
from micro import Tensor, all_reduce, backward, cross_entropy, mlp, one_process, part
from support.kit import Lesson, Row
from support.lesson_07 import compare_with_library
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch


def from_root(comm: Communicator, parts: list, mine: np.ndarray) -> None:
    """Rank 0 sends parts[r] to each rank r, which has it in `mine` then."""
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.send(parts[other], other)
        mine[:] = parts[0]
    else:
        comm.recv(mine, 0)


def to_root(comm: Communicator, mine: np.ndarray, parts: list) -> None:
    """The way back: rank 0 has the `mine` of each rank r in parts[r] then."""
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.recv(parts[other], other)
        parts[0][:] = mine
    else:
        comm.send(mine, 0)


def with_root(comm: Communicator, weights: list, x: np.ndarray, labels: np.ndarray) -> list:
    """DataParallel: the gradients, on rank 0.  Only rank 0's weights, x and labels are used."""
    rows = np.array_split(x, comm.size)
    mine = np.empty_like(rows[comm.rank])
    from_root(comm, rows, mine)                                     # 1. scatter the inputs
    for w in weights:
        from_root(comm, [w] * comm.size, w)                         # 2. broadcast the parameters
    ws = [Tensor(w) for w in weights]
    out = mlp(Tensor(mine), ws)
    outputs = [np.empty((len(each), out.data.shape[1])) for each in rows]
    to_root(comm, out.data, outputs)                                # 3. gather the outputs
    whole = Tensor(np.concatenate(outputs))
    if comm.rank == 0:
        backward(cross_entropy(whole, labels, len(x)))              # the loss, on rank 0 alone
    grad = np.empty_like(out.data)
    from_root(comm, np.array_split(whole.grad, comm.size) if comm.rank == 0 else [], grad)    # 4.
    backward(out, grad)
    for w in ws:
        grads = [np.empty_like(w.grad) for _ in range(comm.size)]
        to_root(comm, w.grad, grads)                                # 5. reduce the gradients
        w.grad = sum(grads)
    return [w.grad for w in ws]


def ddp(comm: Communicator, weights: list, x: np.ndarray, labels: np.ndarray) -> list:
    """DDP: the gradients, on all ranks; each takes its rows, and no rank waits for a driver."""
    ws = [Tensor(w) for w in weights]
    out = mlp(Tensor(part(comm, x)), ws)
    backward(cross_entropy(out, part(comm, labels), len(x)))        # divided by the rows of all
    return [all_reduce(comm, w.grad) for w in ws]                   # so the sum is the gradient


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, draw, width = comm.size, np.random.default_rng(0), 4 * comm.size
    weights, x = draw.normal(0, 0.5, (4, width, width)), draw.random((2 * p + 1, width))
    labels, n, others = draw.integers(0, width, len(x)), weights.nbytes, 2 * (p - 1)
    alone, rows, found = one_process(weights, x, labels), [], {}
    for way, through in ((with_root, 2 * (p - 1) * n + others * 3 * width * 8),
                         (ddp, 4 * n * (p - 1) // p)):
        trace, found[way] = counted(comm, partial(way, comm, [*weights.copy()], x, labels))
        if comm.rank == 0:
            rows += [Row(f"{way.__name__}: difference from one process", 1e-14,
                         np.abs(np.array(found[way]) - alone).max(), "", "≤"),
                     Row("    bytes through rank 0", through, sum(
                         m.num_bytes for m in trace.select() if 0 in (m.source, m.dest)), "B")]
    lesson.table(rows, f"{len(x)} samples on p = {p} ranks, n = {n:,} bytes of parameters")
    compare_with_library(lesson, weights, x, labels, found[ddp])
    lesson.takeaway("Both take the same steps. With one driver all bytes pass through rank 0, and "
                    "all threads share one GIL. With one process for each device a ring carries "
                    "less than 4n bytes through any rank.")
    lesson.exercises("data_parallel_after_backward", questions=[
        "The root also computes the loss and steps alone. What do the others do meanwhile, and "
        "how large a part of the step is that for a large vocabulary?",
        "Replace the loops of the five exchanges with binomial trees: how does the root's traffic "
        "change?",
        "In ddp, write `part(comm, labels), len(part(comm, x))))` in place of "
        "`part(comm, labels), len(x)))`, as if each rank were alone. What do 4 ranks get from 9 "
        "samples, and can dividing by p mend it?"])


if __name__ == "__main__":
    launch(main)
