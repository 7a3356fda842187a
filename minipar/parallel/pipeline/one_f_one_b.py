"""A pipeline by 1F1B: stages of a model on different ranks, all at work on different microbatches.

    p = 3 stages, m = 4 microbatches; F forward, B backward, · waiting

    stage 0   F0 F1 F2 ·  ·  B0 F3 B1 ·  B2 ·  B3      warm-up: min(p - s - 1, m) forwards
    stage 1   ·  F0 F1 ·  B0 F2 B1 F3 B2 ·  B3 ·       steady:  one forward, one backward, …
    stage 2   ·  ·  F0 B0 F1 B1 F2 B2 F3 B3 ·  ·       drain:   the backwards that are left

Stage s is so far ahead that its first backward comes back just when it is due.  It never holds the
activations of more than min(p - s, m) microbatches, however many there are: m in GPipe.

Neighbours exchange an activation and a gradient for each microbatch.  The receive of an activation
is begun when the one before is taken up, that of a gradient as soon as its activation is on its
way.  A send is begun and left, and waited for when the next one is due, whose receiver has long
asked for it.  So nobody waits in a circle, however large the messages.  With sends that block and
receives that begin when they are needed they would: in steady 1F1B two neighbours send to each
other.  Activations go one way and gradients the other, each in the order of the microbatches, so
there is no need of tags.

Nobody divides by m: the last stage divides each microbatch's loss by the number of targets of the
whole batch, and gradients add up.

This is the specification, in one piece.  The product (`pipeline/`) takes any schedule as data, this
row (`one_f_one_b_row`) among others, derives its messages from it and learns their shapes; it has
several stages on a rank, cuts by weight, and computes while messages travel.

Narayanan et al. 2019, PipeDream; Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...autograd import Tensor, backward, count_targets
from ...backend import Array
from ...comm import Communicator, Request
from ...comm.collectives import agree_on_sum, all_reduce, chunk_bounds
from ...nn import Module, Parameter, Slab
from ...nn.chain import chain
from ...nn.parameter import Unmaterialized
from ...random import training_step
from .schedule.actions import FORWARD, one_f_one_b_row

Microbatch = tuple[Array, Array, Array]     # inputs, targets, global numbers of the samples


class PendingRecv(NamedTuple):
    """An array that is being received."""

    array: Array
    request: Request

    def wait(self) -> Array:
        """The array, when it is there."""
        self.request.wait()
        return self.array


class OneFOneB:
    """`model` cut into as many stages as `comm` has ranks, each of as many parts (`parts.py`).

    A rank keeps the parameters of its stage, in `slabs`; all ranks have given their model the same
    numbers.  `width` is how many numbers its stage takes for each target, a GPT's width say: so
    ranks know the shape of what comes, (*targets.shape, width), without a message.
    """

    def __init__(self, model: Module, comm: Communicator, width: int):
        self.model, self.comm, self.width = model, comm, width
        parts = chain(model)
        if len(parts) < comm.size:
            raise ValueError(f"a model of {len(parts)} parts has no {comm.size} stages: take fewer "
                             "ranks, or a deeper model")
        stages = [parts[start:stop] for start, stop in chunk_bounds(len(parts), comm.size)]
        self.stage = stages[comm.rank]
        holders = {parameter: [r for r, stage in enumerate(stages)
                               if any(parameter in part.parameters() for part in stage)]
                   for parameter in model.parameters()}
        mine = [(name, parameter) for name, parameter in model.named_parameters()
                if comm.rank in holders[parameter]]
        self.slabs, model.slabs = [Slab(mine, like=mine[0][1].data)], []
        self.sends: dict[int, Request] = {}     # the last one to each neighbour
        self.shared: list[tuple[Communicator, Parameter]] = []      # a tied embedding
        for parameter, ranks in holders.items():
            if len(ranks) > 1:
                group = comm.split(0 if comm.rank in ranks else None)
                self.shared += [(group, parameter)] if group else []
            if comm.rank not in ranks:
                parameter.data = Unmaterialized(parameter.shape, parameter.dtype)
                parameter.slot.grad_buffer = None

    def count_targets(self, microbatches: Sequence[Microbatch]) -> int:
        """This rank's share of the number of targets: all are the last stage's."""
        last = self.comm.rank == self.comm.size - 1
        return last * sum(count_targets(y, self.model.ignore_index) for _, y, _ in microbatches)

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0,
                         step: int = 0) -> float:
        """Compute the gradients of the whole batch; return its loss.  Collective."""
        num_targets = agree_on_sum(self.comm, self.count_targets(microbatches)) or 1.0
        return agree_on_sum(self.comm, self.run_batch(microbatches, num_targets, seed, step))

    def run_batch(self, microbatches: Sequence[Microbatch], num_targets: float, seed: int = 0,
            step: int = 0) -> float:
        """Forward and backward of all microbatches; this rank's share of the loss.

        Every rank is given all of them; `num_targets` is how many targets count in the whole batch.
        Gradients add up in `slabs`, and in the end those of shared weights are summed over their
        holders: once, since `copy_to`, which does it in backward, would hang.  There the last stage
        would wait for the first one, which waits for its gradient.
        """
        rank, last = self.comm.rank, self.comm.size - 1
        if any(parameter.grad is not None for _, parameter in self.shared):
            raise ValueError("the gradients of shared weights were summed already, and would be "
                             "again: call zero_grad() first")
        shapes = [(*targets.shape, self.width) for _, targets, _ in microbatches]
        loss, kept = 0.0, {}                    # kept: of each microbatch that is in flight
        activations = [self.expect(shapes[0], rank - 1)] if rank else []
        gradients: list[PendingRecv] = []
        for kind, _, i in one_f_one_b_row(rank, self.comm.size, len(microbatches)):
            if kind == FORWARD:
                x, targets, samples = microbatches[i]
                if rank:
                    x = Tensor(activations.pop().wait(), requires_grad=True)
                    activations += [self.expect(shape, rank - 1) for shape in shapes[i + 1:i + 2]]
                y = x
                with training_step(seed, step, samples):
                    for part in self.stage:
                        y = part.apply(y)
                    if rank == last:
                        y = self.model.criterion(y, targets, num_targets)
                        loss += float(y.data)
                if rank < last:
                    self.send(y.data, rank + 1)
                    gradients.append(self.expect(y.shape, rank + 1))
                kept[i] = x, y
            else:
                x, y = kept.pop(i)
                backward(y, gradients.pop(0).wait() if rank < last else None)
                if rank:
                    self.send(x.grad, rank - 1)
        while self.sends:
            self.sends.popitem()[1].wait()
        for slab in self.slabs:
            slab.complete_grad()
        for holders, parameter in self.shared:
            all_reduce(holders, parameter.grad, algorithm="ring", out=parameter.grad)
        return loss

    def expect(self, shape: tuple[int, ...], source: int) -> PendingRecv:
        """Begin to receive an array of that shape."""
        array = np.empty_like(self.slabs[0].data, shape=shape)
        return PendingRecv(array, self.comm.irecv(array, source))

    def send(self, array: Array, dest: int) -> None:
        """Begin to send, when the last array that was sent there has arrived."""
        if dest in self.sends:
            self.sends[dest].wait()
        self.sends[dest] = self.comm.isend(array, dest)
