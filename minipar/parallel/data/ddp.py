"""Distributed data parallelism: each bucket of gradients is summed while backward goes on.

    backward     ▓▓ h.3 ▓▓▓▓ h.2 ▓▓▓▓ h.1 ▓▓▓▓ h.0 ▓▓
    messages           ░░ 0 ░░░░ 1 ░░░░ 2 ░░░░ 3 ░░       at best near max(B, M), not B + M

Every rank of dp has the same parameters and computes the gradients of its rows.  The parameters are
grouped into buckets, the last layers first.  When the last gradient of a bucket is ready, its
all-reduce begins, and goes on between the operations of backward (comm/work.py).  If backward takes
B seconds and all messages M, both take the longer of two at best: B plus the last bucket's message,
which no computation hides; or the time until the first bucket is ready, plus M.  Afterwards every
rank has the same summed gradients and takes the same step.

Gradients of several microbatches add up: buckets are reduced in a stage's last backward.

All ranks start the reductions in one order, whatever becomes ready first:

    bucket      0: h.2    1: h.1    2: h.0
    ready       0 ✓       1 …       2 ✓         bucket 1 still lacks a gradient,
    started     0                               so bucket 2 waits too

A rank that started bucket 2 before bucket 1 would pair its message with the others' bucket 1.

Cost: on rings each of p ranks sends 2Ψ(p-1)/p elements, for Ψ parameters.  For short buckets "auto"
may choose an algorithm of fewer rounds and more bytes.  Li et al. 2020, PyTorch Distributed:
Experiences on Accelerating Data Parallel Training, section 3.2.3.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from ...autograd import GradientSlot, Tensor, reachable_slots
from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ...comm.work import Work, start_work
from ...nn import Module, Slab
from ..flats import Flat
from ..strategy import NO_CONTEXT, Strategy
from .buckets import BUCKET_MB, bucket_limits, cut_into_buckets


class DistributedDataParallel(Strategy):
    """Every rank of dp holds all parameters of its stage, and all-reduces their gradients.

    `flats` are the buckets, in the order in which backward completes them.  Base of the strategies
    that shard.
    """

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh,
                 bucket_mb: float = BUCKET_MB, first_bucket_mb: float = 1.0,
                 **options: Any):
        self.limits = bucket_limits(first_bucket_mb, bucket_mb)
        super().__init__(model, ranks, **options)

    def place(self) -> None:
        """Cut the slabs into flats, and watch their gradients."""
        self.works: list[tuple[Flat, Work]] = []            # reductions under way
        self.flats_of_slabs = [flat for slab in self.stages.slabs for flat in self.cut(slab)]
        uses = {flat: {use for p in flat.parameters for use in self.users[p]}
                for flat in self.flats_of_slabs}            # (stage, part)
        # a gradient that several stages of this rank add to is reduced when all are through
        self.late = [flat for flat, places in uses.items() if not self.reduces_each_backward
                     and len({stage for stage, _ in places}) > 1]
        self.flats, self.queues = [], {}
        for stage in self.stages.here[::-1]:
            # backward completes a flat's gradient in the first part that uses the flat
            first = {flat: min(part for where, part in places if where == stage)
                     for flat, places in uses.items() if stage in {where for where, _ in places}}
            order = [*first][::-1]
            order.sort(key=first.__getitem__, reverse=True)
            self.flats += [flat for flat in order if flat not in self.flats]
            order = [flat for flat in order if flat not in self.late]
            self.queues[stage] = ReductionQueue([flat.parameters for flat in order],
                                                partial(self._start, order))

    def cut(self, slab: Slab) -> list[Flat]:
        """The flats of a slab: its buckets.  No bucket mixes parameters of different stages.

        In a slab that stages share, each parameter is a bucket of its own: all ranks that share it
        must cut it alike.
        """
        is_shared = any(slab is shared for _, shared in self.stages.shared)
        keys = [(i * is_shared, {stage for stage, _ in self.users[p]})
                for i, p in enumerate(slab.parameters)]
        sizes = [parameter.data.nbytes for parameter in slab.parameters]
        return [Flat(slab, members, *self.ranks_of(slab)) for members in
                cut_into_buckets(sizes, keys, self.limits) or [[]]]

    def ranks_of(self, slab: Slab) -> tuple[Communicator, Communicator]:
        """The ranks that sum a flat of the slab, or share it out, and those with the same piece."""
        return self.replicas_of(slab, "replicate", *self.summed_over), self.along()

    def _start(self, flats: Sequence[Flat], i: int) -> None:
        self.reduce(flats[i])

    def reduce(self, flat: Flat) -> None:
        """Begin to sum a flat's gradient, which is complete on this rank, over its replicas."""
        flat.fill_missing()
        grad = flat.grad
        work = start_work(self.wire.of(flat).all_reduce, flat.over, grad, out=grad)
        self.works.append((flat, work))

    def reducing(self, stage: int, y: Tensor, is_last: bool = True) -> AbstractContextManager:
        """Context of a backward from `y`, in which the flats are reduced that it completes."""
        if not (self.is_synchronizing and (is_last or self.reduces_each_backward)):
            return NO_CONTEXT
        return self.queues[stage].reducing(y)

    def finish(self) -> None:
        """Reduce what several stages of this rank use; wait for all reductions."""
        for flat in self.late:
            self.reduce(flat)
        for _, work in self.works:
            work.wait()
        self.works.clear()


class ReductionQueue:
    """Calls start(0), start(1), …, each when all gradients of its group are ready.

    A parameter calls its ready hooks when backward has completed its gradient.  Before a backward,
    a walk over the graph finds the parameters that this rank uses in it: a group waits only for
    gradients that will come.  Only those between `before_backward` and `after_backward` count.
    """

    def __init__(self, groups: Sequence[Sequence[Tensor]], start: Callable[[int], None]):
        self.groups = [[p.slot for p in group] for group in groups]
        self.start = start
        self.awaited: list[set[GradientSlot]] = []      # of each group; [] outside a backward
        self.num_started = 0
        for i, slots in enumerate(self.groups):
            for slot in slots:
                slot.ready_hooks.append(partial(self._on_ready, i))

    def before_backward(self, loss: Tensor) -> None:
        """Find the gradients that a backward from `loss` will complete."""
        coming = reachable_slots(loss)
        self.awaited = [coming.intersection(slots) for slots in self.groups]
        self.num_started = 0

    def _on_ready(self, i: int, slot: GradientSlot) -> None:
        if self.awaited:
            self.awaited[i].discard(slot)
            self._start_ready()

    def _start_ready(self) -> None:
        while self.num_started < len(self.awaited) and not self.awaited[self.num_started]:
            self.num_started += 1
            self.start(self.num_started - 1)

    def after_backward(self) -> None:
        """Start the reductions that are left: no gradient came for them, so no hook was called."""
        self.awaited = [set()] * len(self.groups)
        self._start_ready()
        self.awaited = []

    def reducing(self, loss: Tensor) -> AbstractContextManager:
        """Context of a backward from `loss`, whose graph must be there now.

        Other backwards may come before it is entered: in a pipeline with FSDP, those of other
        microbatches.  Entered after its backward, it starts all reductions at once.
        """
        self.before_backward(loss)
        awaited, self.awaited = self.awaited, []
        return self._reducing(awaited)

    @contextmanager
    def _reducing(self, awaited: list[set[GradientSlot]]) -> Iterator[None]:
        self.awaited, self.num_started = awaited, 0
        yield
        self.after_backward()
