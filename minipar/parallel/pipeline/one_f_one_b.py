"""A pipeline by 1F1B: stages of a model on different ranks, each at work on its own microbatch.

This is the specification.  `train` runs every schedule, 1F1B among them, by executor.py.  The
executor takes rows of actions as data, derives the messages from them, puts several stages on a
rank and computes while messages travel.

    p = 3 stages, m = 4 microbatches; F forward, B backward, · waiting

              warm-up, steady part and drain of each stage, with │ between them
    stage 0   F0 F1│F2 ·  ·  B0 F3 B1│·  B2 ·  B3
    stage 1   ·  F0│F1 ·  B0 F2 B1 F3 B2│·  B3 ·
    stage 2   ·  · │F0 B0 F1 B1 F2 B2 F3 B3│·  ·

On stage s the warm-up is min(p - s - 1, m) forwards.  The steady part is pairs of one forward and
one backward: on stage 0, F2 with B0, then F3 with B1.  The drain is the backwards that are left.

Stage s runs p - s - 1 forwards ahead, the fewest that keep the last stage busy.  If F and B take
equally long, it waits p - s - 1 slots after the first forward of its steady part, for its first
gradient.  It never holds the activations of more than min(p - s, m) microbatches; under GPipe it
would hold m.

For each microbatch, neighbouring stages exchange one activation and one gradient.  Receives are
posted early (`irecv`).  A send is waited for only before the next send to the same stage, and at
the end of the batch.  No cycle of blocked ranks can form, whatever the message size.  With blocking
sends one would: in steady 1F1B two neighbours send to each other at the same time.  Activations
travel one way and gradients the other, each in the order of the microbatches, so messages need no
tags.

No stage divides by m: the last stage divides each microbatch's loss by the number of targets of the
whole batch, and gradients add up.

Narayanan et al. 2019, PipeDream; Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...autograd import Tensor, backward
from ...backend import Array
from ...comm import Communicator, Request
from ...comm.mesh import DeviceMesh
from ...nn import Module
from ..strategy import Microbatch, Strategy
from .schedule.actions import FORWARD, Placement
from .schedule.schedules import one_f_one_b_row


class OneFOneB(Strategy):
    """A strategy: `model` in as many stages as `comm` has ranks, trained by 1F1B.

    `width` is the last axis of this stage's input, a GPT's width.  With it each rank knows the
    shape of the activations to come, (*targets.shape, width).  See Stages for `cuts`.
    """

    def __init__(self, model: Module, comm: Communicator, width: int,
                 cuts: Sequence[int] | None = None):
        super().__init__(model, DeviceMesh(comm, pp=comm.size), cuts=cuts)
        self.width = width

    def plan_stages(self, *options: Any) -> Placement:
        """A stage for each rank."""
        return [*range(self.pp.size)]

    def run_batch(self, microbatches: Sequence[Microbatch], loss_divisor: float, seed: int = 0,
                  step: int = 0) -> float:
        """Forward and backward of all microbatches; return this rank's share of the loss."""
        self.check_fresh()
        batch = StageBatch(self, microbatches, loss_divisor, seed, step)
        for kind, _, i in one_f_one_b_row(self.comm.rank, self.comm.size, len(microbatches)):
            do = batch.forward if kind == FORWARD else batch.backward
            do(i)
        batch.wait_for_sends()
        self.sync_gradients()       # sums the gradients of weights that two stages hold
        return batch.loss


class PendingRecv(NamedTuple):
    """An array that is being received."""

    array: Array
    request: Request

    def wait(self) -> Array:
        """The array, when it has arrived."""
        self.request.wait()
        return self.array


class StageBatch:
    """One stage's work on one batch: its microbatches in flight, and its messages under way."""

    def __init__(self, strategy: OneFOneB, microbatches: Sequence[Microbatch], loss_divisor: float,
                 seed: int, step: int):
        self.strategy, self.comm = strategy, strategy.comm
        self.microbatches, self.loss_divisor = microbatches, loss_divisor
        self.seed, self.step, self.loss = seed, step, 0.0
        self.prev_rank, self.next_rank = self.comm.rank - 1, self.comm.rank + 1
        self.is_first = self.prev_rank < 0
        self.is_last = self.next_rank == self.comm.size
        self.in_flight: dict[int, tuple[Tensor | Array, Tensor]] = {}   # input and output
        self.activation_recv = self.post_activation(0)
        self.gradient_recvs: list[PendingRecv] = []
        self.sends: dict[int, Request] = {}         # the last one to each neighbour

    def forward(self, i: int) -> None:
        """Receive microbatch i's activation, compute this stage, send the result."""
        microbatch = self.microbatches[i]
        x: Tensor | Array = microbatch.inputs
        if self.activation_recv:
            x = Tensor(self.activation_recv.wait(), requires_grad=True)
            self.activation_recv = self.post_activation(i + 1)
        with self.strategy.context_of(microbatch, self.loss_divisor, self.seed, self.step):
            y = self.strategy.stages.run(self.comm.rank, x)
            if self.is_last:
                y = self.strategy.model.criterion(y, microbatch.targets, self.loss_divisor)
                self.loss += float(y.data)
        if not self.is_last:
            self.send(y.data, self.next_rank)
            self.gradient_recvs.append(self.post_recv(y.shape, self.next_rank))
        self.in_flight[i] = x, y

    def backward(self, i: int) -> None:
        """Receive the gradient of microbatch i's output, compute backward, send its input's."""
        x, y = self.in_flight.pop(i)
        backward(y, None if self.is_last else self.gradient_recvs.pop(0).wait())
        if isinstance(x, Tensor):
            self.send(x.grad, self.prev_rank)

    def post_activation(self, i: int) -> PendingRecv | None:
        """Begin to receive microbatch i's activation, if there is one to come."""
        if self.is_first or i == len(self.microbatches):
            return None
        return self.post_recv((*self.microbatches[i].targets.shape, self.strategy.width),
                              self.prev_rank)

    def post_recv(self, shape: tuple[int, ...], source: int) -> PendingRecv:
        """Begin to receive an array of that shape."""
        array = np.empty(shape, self.strategy.like.dtype, like=self.strategy.like)
        return PendingRecv(array, self.comm.irecv(array, source))

    def send(self, array: Array, dest: int) -> None:
        """Begin to send the array, once the previous send to that rank is complete."""
        if dest in self.sends:
            self.sends[dest].wait()
        self.sends[dest] = self.comm.isend(array, dest)

    def wait_for_sends(self) -> None:
        """Wait until all sends are complete: their arrays may be used again."""
        for request in self.sends.values():
            request.wait()
