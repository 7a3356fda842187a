"""Distributed data parallelism: each bucket of gradients is summed while backward goes on.

    backward     ▓▓ h.3 ▓▓▓▓ h.2 ▓▓▓▓ h.1 ▓▓▓▓ h.0 ▓▓
    messages           ░░ 0 ░░░░ 1 ░░░░ 2 ░░░░ 3 ░░       at best near max(B, M), not B + M

    slab         wte h.0 … │ h.1 … │ h.2 … │ h.3 … ln_f    parameters, in the order of forward
    buckets          3     │   2   │   1   │     0         gradients come from the right

Every rank of dp has the same parameters and computes the gradients of its rows.  The parameters are
grouped into buckets, the last layers first.  A bucket is a run of neighbours, so its gradient is
one stretch of the slab and one message.  When its last gradient is ready, its all-reduce begins,
and goes on between the operations of backward (comm/work.py).  Backward takes B seconds, and all
messages take M.  Together they take at best the larger of two sums: B + the time of the last
bucket's message, and the time until the first bucket is ready + M.  Afterwards every rank has the
same summed gradients and takes the same step.

Who calls whom in a step:

    Strategy.backward(loss)
        reduce_during(0, loss)        finds the gradients that will come (ReductionQueue)
        autograd.backward(loss)       walks the graph; a complete gradient calls its ready hook:
            _on_ready                     the last one of a bucket
                reduce(flat)              begins its all-reduce
            poll                          between two operations: messages go on
        sync_gradients
            finish                    reduces what is left, and waits for all

Gradients of several microbatches add up: buckets are reduced in a stage's last backward.  In a
pipeline the stage before waits for dx.  So a backward (B) sends dx first, and then reductions begin
(reduce_stage).  Stage 0 has no dx to send, and neither has W, the half of a backward that a
schedule may defer.  In both of them reductions begin during backward.

All ranks start the reductions in one order, whatever becomes ready first:

    bucket      0: h.3    1: h.2    2: h.1
    ready       0 ✓       1 …       2 ✓         bucket 1 still lacks a gradient,
    started     0                               so bucket 2 waits too

A rank that started bucket 2 before bucket 1 would pair its message with the others' bucket 1.

Cost: on rings each of p ranks sends 2Ψ(p-1)/p elements, for Ψ parameters.  For short buckets "auto"
may choose an algorithm of fewer rounds and more bytes.  Li et al. 2020, PyTorch Distributed:
Experiences on Accelerating Data Parallel Training, section 3.2.3.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import groupby
from typing import Any

from ...autograd import GradientSlot, Tensor, reachable_slots
from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ...comm.work import Work, start_work
from ...nn import Module, Slab
from ..flats import Flat
from ..strategy import NO_CONTEXT, Strategy

MB = 1 << 20            # bytes: as in PyTorch, a bucket's megabytes are MiB
BUCKET_MB = 25.0        # PyTorch's default


class DistributedDataParallel(Strategy):
    """Every rank of dp holds all parameters of its stage, and all-reduces their gradients.

    `flats` are the buckets, in the order in which backward completes them: those of the rank's last
    stage, …, those of its first.  Buckets to which several stages of the rank add come last.  The
    strategies that shard are built on this class.
    """

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh,
                 bucket_mb: float = BUCKET_MB, first_bucket_mb: float = 1.0,
                 whole_parameters: bool = False, **options: Any):
        self.limits = bucket_limits(first_bucket_mb, bucket_mb)
        self.whole_parameters = whole_parameters
        super().__init__(model, ranks, **options)

    def place(self) -> None:
        """Cut the slabs into flats, and watch their gradients."""
        self.works: list[tuple[Flat, Work]] = []            # reductions under way
        # in the order of slabs; a flat is empty if only other stages have parameters of its slab
        self.flats_of_slabs = [flat for slab in self.stages.whole_slabs for flat in self.cut(slab)]
        orders = self.stages.completion_orders(self.flats_of_slabs, self.reduces_each_backward)
        self.queues = {stage: self.make_queue(order) for stage, order in orders.items()}
        completed = [flat for order in orders.values() for flat in order]
        # in a pipeline no stage alone completes a flat that several stages here use: it comes last
        others = [flat for flat in self.flats_of_slabs if flat.parameters]
        self.flats = [*dict.fromkeys(completed + others)]

    def make_queue(self, order: Sequence[Flat]) -> "ReductionQueue":
        """A queue that begins to reduce these flats, in this order, during a stage's backward."""
        return ReductionQueue([flat.parameters for flat in order], lambda i: self.reduce(order[i]))

    def cut(self, slab: Slab) -> list[Flat]:
        """The flats of a slab: its buckets."""
        sizes = [parameter.data.nbytes for parameter in slab.parameters]
        buckets = cut_into_buckets(sizes, self.stages.bucket_keys(slab), self.limits)
        return [self.make_flat(slab, members) for members in buckets or [[]]]

    def make_flat(self, slab: Slab, members: Sequence[int]) -> Flat:
        """These parameters of a slab as a flat, which all ranks with the same parameters sum."""
        return Flat(slab, members, self.ranks_of(slab, "replicate", *self.summed_over),
                    self.along())

    def reduce(self, flat: Flat) -> None:
        """Begin to sum a flat's gradient, which is complete on this rank, over its replicas."""
        flat.fill_missing()
        grad = flat.grad
        work = start_work(self.wire.of(flat).all_reduce, flat.comm, grad, out=grad)
        self.works.append((flat, work))

    def reduce_during(self, stage: int, y: Tensor, is_last: bool = True) -> AbstractContextManager:
        """Context of a backward from `y` that reduces the flats it completes."""
        reduces = self.is_synchronizing and (is_last or self.reduces_each_backward)
        later = not reduces or self.wire.waits_for_all
        return NO_CONTEXT if later else self.queues[stage].watch(y)

    def reduce_stage(self, stage: int) -> None:
        """Begin to reduce all gradients of a stage whose last backward is over."""
        if self.is_synchronizing and not self.wire.waits_for_all:
            self.queues[stage].start_all()

    def finish(self) -> None:
        """Reduce the flats whose reduction has not begun; wait for all reductions."""
        if self.wire.waits_for_all:
            self.wire.see_all(self.stages.whole_slabs, self.replicas.size)
        begun = {flat for flat, _ in self.works}
        for flat in self.flats:
            if flat not in begun:
                self.reduce(flat)
        for _, work in self.works:
            work.wait()
        self.works.clear()


class ReductionQueue:
    """Calls start(0), start(1), … in order, each once all gradients of its group are ready.

    A parameter calls its ready hooks when backward has completed its gradient.  Before a backward,
    a walk over the graph finds the parameters that this rank uses in it.  So a group waits only for
    gradients that will come.  Gradients count only in a backward that is watched.
    """

    def __init__(self, groups: Sequence[Sequence[Tensor]], start: Callable[[int], None]):
        self.groups = [[p.slot for p in group] for group in groups]
        self.start = start
        self.awaited: list[set[GradientSlot]] = []      # of each group; [] outside a backward
        self.num_started = 0
        for i, slots in enumerate(self.groups):
            for slot in slots:
                slot.ready_hooks.append(partial(self._on_ready, i))

    def watch(self, loss: Tensor) -> AbstractContextManager:
        """Context of a backward from `loss`, whose graph must exist at this call.

        Before the context is entered, backwards of other microbatches may run (in a pipeline with
        FSDP).
        """
        return self._watching(self.gradients_of(loss))

    def start_all(self) -> None:
        """Call start(0), start(1), … after a backward that was not watched."""
        for i in range(len(self.groups)):
            self.start(i)

    def gradients_of(self, loss: Tensor) -> list[set[GradientSlot]]:
        """The gradients of each group that a backward from `loss` will complete."""
        coming = reachable_slots(loss)
        return [coming.intersection(slots) for slots in self.groups]

    @contextmanager
    def _watching(self, awaited: list[set[GradientSlot]]) -> Iterator[None]:
        self.awaited, self.num_started = awaited, 0
        yield
        self._start_ready()         # groups to which this backward brought no gradient
        self.awaited = []

    def _on_ready(self, i: int, slot: GradientSlot) -> None:
        if self.awaited:
            self.awaited[i].discard(slot)
            self._start_ready()

    def _start_ready(self) -> None:
        while self.num_started < len(self.awaited) and not self.awaited[self.num_started]:
            self.num_started += 1
            self.start(self.num_started - 1)


def assign_buckets(sizes: Sequence[int], limits: Sequence[int]) -> list[list[int]]:
    """The indices of the parameters of each bucket; `sizes` in bytes, in the order of arrival.

    PyTorch's rule: the parameter that brings a bucket to its limit or above closes it.  The first
    bucket has limits[0], the next limits[1], …, all further ones the last limit.
    """
    buckets: list[list[int]] = []
    num_bytes, is_full = 0, True
    for i, size in enumerate(sizes):
        if is_full:
            buckets.append([])
            num_bytes = 0
        buckets[-1].append(i)
        num_bytes += size
        is_full = num_bytes >= limits[min(len(buckets), len(limits)) - 1]
    return buckets


def bucket_limits(first_bucket_mb: float, bucket_mb: float) -> tuple[int, int]:
    """Both limits in bytes, the first at most the second.  Raises ValueError unless positive."""
    for name, size in (("first_bucket_mb", first_bucket_mb), ("bucket_mb", bucket_mb)):
        if not 0 < size < math.inf:
            raise ValueError(f"{name}={size}: a bucket needs room: give a number of megabytes > 0")
    return int(min(first_bucket_mb, bucket_mb) * MB), int(bucket_mb * MB)


def cut_into_buckets(sizes: Sequence[int], keys: Sequence[Any],
                     limits: Sequence[int]) -> list[list[int]]:
    """The numbers of the parameters of each bucket of a slab, in the order of the slab.

    `sizes` are in bytes.  The parameters of a bucket are neighbours with equal keys; such a key may
    be the stages that use a parameter.
    """
    buckets = []
    for _, neighbours in groupby(range(len(sizes))[::-1], key=keys.__getitem__):
        here = [*neighbours]
        buckets += [sorted(here[i] for i in members)
                    for members in assign_buckets([sizes[i] for i in here], limits)]
    return buckets[::-1]
