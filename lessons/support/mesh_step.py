"""Lesson 18: one training step of a GPT on a mesh, and the bytes that each axis sends."""

from typing import NamedTuple

import numpy as np

from minipar.comm import Communicator, Trace
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, GPTConfig
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy

from .kept_trace import stop_trace

V, T, D, L, M, SIZE = 50, 16, 64, 6, 2, 8       # M microbatches; bytes of a float64
ROWS = 8                                        # of a microbatch, all ranks of dp together
CONFIG = GPTConfig(V, T, L, num_heads=8, width=D, tied=False)


class Step(NamedTuple):
    """One step on one rank: its messages and time; the loss and gradient norm of all ranks."""

    mesh: DeviceMesh | None
    trace: Trace            # until the gradients are reduced
    update: Trace           # of the optimizer's step
    seconds: float          # of `trace`
    loss: float
    norm: float


def step(comm: Communicator, sizes: dict[str, int] | None = None,
         nesting: tuple[str, ...] | None = None, data_parallel: str = "ddp") -> Step:
    """A step on M microbatches on a mesh; without `sizes` each rank trains the model alone."""
    model, mesh = GPT(CONFIG).initialize(0, np.float64), None
    if sizes is None:
        strategy = Strategy(model, comm.split(comm.rank))
    else:
        mesh = DeviceMesh(comm, order=nesting, **sizes)
        strategy = make_strategy(data_parallel, model, mesh)
    ids, rows = np.random.default_rng(0).integers(0, V, (M, ROWS, T + 1)), [*strategy.rows(ROWS)]
    batches = [Microbatch(part[rows, :-1], part[rows, 1:], np.array(rows)) for part in ids]
    begun = comm.now()
    comm.start_trace()
    loss = strategy.forward_backward(batches)
    seconds, trace = comm.now() - begun, stop_trace(comm)
    norm, optimizer = strategy.clip_grad_norm(np.inf), SGD(strategy.slabs, lr=0.1)
    comm.start_trace()
    strategy.step(optimizer)
    return Step(mesh, trace, comm.stop_trace(), seconds, loss, norm)


def predicted(pp: int, dp: int, tp: int, sums: int = 2) -> dict[str, int]:
    """Bytes that all ranks together send along each axis in a step.

    n = ROWS T D are the activations of a microbatch.  A ring's all-reduce of n over p ranks sends
    2 (p-1) n, a reduce-scatter or an all-gather (`sums` = 1) half of it.
    """
    n, model = ROWS * T * D, GPT(CONFIG).num_parameters()
    once = T * D + L * 6 * D + 2 * D            # positions, norms, biases of row layers: not cut
    reduces = 4 * L + 2                         # one each for the embedding and the head
    held = model - once + tp * once             # parameters on all ranks of one dp index
    return {"pp": SIZE * tp * 2 * M * n * (pp - 1), "dp": SIZE * sums * (dp - 1) * held,
            "tp": SIZE * M * 2 * (tp - 1) * (reduces * n + 3 * ROWS * T)}
