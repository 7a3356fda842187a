"""Lesson 10. FSDP: when to gather, when to free?

Parameters, gradients and optimizer states are all sharded: 16 Ψ/p bytes on each rank.  A weight is
gathered before its use (*unshard*) and freed after it (*reshard*).  The *unit* decides how much is
gathered at a time: the unit in use and the next, prefetched one are whole, all others are shards.
(▓ and ▒ tell neighbouring units apart.)

    units      embed h.0  h.1  h.2  head │ h.2  h.1  h.0          unshard each before its use,
    gathered   ▓▓▓▓▓ ▒▒▒▒ ▓▓▓▓ ▒▒▒▒ ▓▓▓▓ │ ▒▒▒▒ ▓▓▓▓ ▒▒▒▒         reshard it after
               forward                   │ backward, reduce-scatters each gradient

Weights are gathered twice and gradients reduced once: up to 3 Ψ (p-1)/p elements, where DDP sends
2 Ψ (p-1)/p.  With enough memory, keep what forward gathered (reshard_after_forward=False) and send
no more than DDP.  The library's: minipar/parallel/zero/fsdp.py.

    python lessons/10_fsdp.py          mpirun -n 4 python lessons/10_fsdp.py
"""

from functools import partial

import numpy as np
from micro import Tensor, backward, cross_entropy, one_process, part, reduce_scatter
from support.kit import Lesson, Row
from support.lesson_10 import compare_with_library
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch


def gather(comm: Communicator, shard: np.ndarray, shape: tuple) -> tuple[np.ndarray, list]:
    """Begin to gather a weight; return it, and what to wait for before it is used."""
    weight = np.empty(shape)
    pieces = np.array_split(weight.reshape(-1), comm.size)          # views
    pieces[comm.rank][:] = shard
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    return weight, [*(comm.irecv(pieces[rank], rank) for rank in others),
                    *(comm.isend(shard, rank) for rank in others)]


def fsdp(comm: Communicator, shards: list, shape: tuple, x: np.ndarray, labels: np.ndarray,
         num_rows: int) -> tuple[list, int]:
    """The gradients of this rank's shards, and the most weights that were whole at a time.

    The model is an MLP whose weights, units of one layer each, have the same shape.
    """
    units, inputs, grads, most = range(len(shards)), {}, {}, 0
    whole = {}                                  # the weights that are gathered, or on their way

    def unshard(i: int, ahead: range) -> np.ndarray:
        """Weight i, while the one ahead is on its way."""
        nonlocal most
        for unit in (i, *ahead):
            if unit not in whole:
                whole[unit] = gather(comm, shards[unit], shape)
        most = max(most, len(whole))
        weight, requests = whole[i]
        for request in requests:
            request.wait()
        return weight
    h = x
    for i in units:                             # forward saves its inputs, but no weight
        inputs[i] = np.maximum(h, 0) if i else h
        h = inputs[i] @ unshard(i, units[i + 1:i + 2])
        del whole[i]                            # reshard
    out = Tensor(h)
    backward(cross_entropy(out, labels, num_rows))
    g = out.grad
    for i in reversed(units):                   # backward gathers each again
        grads[i] = reduce_scatter(comm, (inputs[i].T @ g).reshape(-1))
        g = g @ unshard(i, units[:i][-1:]).T * (inputs[i] > 0)
        del whole[i]
    return [grads[i] for i in units], most


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    p, draw, width = comm.size, np.random.default_rng(0), 4 * comm.size
    weights = draw.normal(0, 0.5, (6, width, width))
    x, labels = draw.random((3 * p, width)), draw.integers(0, width, 3 * p)
    shards = [part(comm, w.reshape(-1)).copy() for w in weights]
    mine = part(comm, x), part(comm, labels)
    trace, (grads, most) = counted(comm, partial(fsdp, comm, shards, (width, width), *mine, len(x)))
    alone = [part(comm, grad.reshape(-1)) for grad in one_process(weights, x, labels)]
    error = np.abs(np.array(grads) - alone).max()
    rows = [Row("difference from the gradients of one process", 1e-14, error, "", "≤"),
            Row("weights whole at a time: in use, and the next", 2, most)]
    if comm.rank == 0:
        rows.append(Row("sent by all ranks, 3 Ψ (p − 1)", 3 * weights.nbytes * (p - 1),
                        trace.bytes_sent(), "B"))
    lesson.table(rows, f"an MLP of {len(weights)} layers, Ψ = {weights.size} parameters, p = {p}")
    compare_with_library(lesson, weights, *mine, grads)
    lesson.takeaway("Gather a unit just before its use, prefetch the next one meanwhile, free it "
                    "just after: memory 16 Ψ/p plus two units, for 1.5 times the traffic of DDP.")
    lesson.exercises("fsdp_reshard_others", "fsdp_predict_next", questions=[
        "In fsdp, write `units[i + 1:]` in place of `units[i + 1:i + 2]`. What changes in "
        "gradients, bytes and memory?",
        "Backward gathers weight 0, too. What for?",
        "Set tied=True in CONFIG of support/lesson_10.py: 3,072 parameters fewer. Why is the peak "
        "by part higher now?",
        "Without prefetch the peak is the same. Why? What would be lost if it were lower?",
        "From which p on do two gathered blocks outweigh the shards, 16 Ψ/p?",
        "Where would you use reshard_after_forward=False: for every block, or for the last?"])


if __name__ == "__main__":
    launch(main)
