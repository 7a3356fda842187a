"""The executor of pipelines: a loop over one rank's row of a schedule.

    1F0      receive x, compute y, send it           x from stage 0, y for stage 2
    1B0      receive dy, compute dx, send it         dy from stage 2, dx for stage 0
    1I0 1W0  the same in halves: dx first, the weights' gradients when the schedule says

`train` runs every schedule with it.  Read `one_f_one_b.py` first: it does the same for 1F1B alone.
No action says when to send or receive: that follows from its dependencies (p2p.py).

The last stage divides each microbatch's loss by the number of targets of the whole batch, not by
the number of microbatches.  So gradients add up.  Huang et al. 2019; Narayanan et al. 2021.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...autograd import Tensor, backward
from ...backend import Array, to_float
from ...comm import Communicator, Trace
from ...comm.collectives import gather_object, gather_trace
from ...number_formats import Format
from .p2p import P2P, ArraySpecs
from .schedule.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Placement, Schedule
from .schedule.dependencies import Op, cells, sent
from .schedule.timeline import Interval, Timeline
from .schedule.validate import find_fault

if TYPE_CHECKING:
    from ..strategy import Microbatch, Strategy

AHEAD = 2               # receives are posted this many cells (an action or a pair) ahead


class RankSchedule(NamedTuple):
    """A rank's row of a schedule, the action that sends each message, and the ranks of all stages.
    """

    row: list[Action]
    labels: dict[Op, str]
    placement: Placement


class Pipeline:
    """Trains the stages of a strategy by any schedule, a whole batch in one call.

    `schedule_for(num_microbatches)` returns a schedule and its placement, the rank of each stage,
    which must be the same for any number.  `partial(make_schedule, "1f1b", pp.size)` is such a
    function, and so is `lambda m: yours`.  Activations and their gradients are sent as codes of
    `activation_format`, if given.  After a batch `intervals` are this rank's actions with their
    times.  `most_in_flight` is the largest number of microbatches in flight.  A microbatch counts
    once for each stage of the rank that holds it.
    """

    def __init__(self, pp: Communicator, strategy: "Strategy",
                 schedule_for: Callable[[int], tuple[Schedule, Placement]],
                 activation_format: Format | None = None):
        self.comm, self.strategy = pp, strategy
        self.schedule_for, self.activation_format = schedule_for, activation_format
        self.intervals: list[Interval] = []
        self.most_in_flight = 0
        self.batch_type: type[RankBatch] = RankBatch
        self.specs: ArraySpecs = {}
        self._made: dict[int, RankSchedule] = {}       # by number of microbatches

    def rank_schedule(self, num_microbatches: int) -> RankSchedule:
        """What this rank does with so many microbatches.

        Raises ValueError for a schedule that would not work, saying why.
        """
        if num_microbatches not in self._made:
            (schedule, placement) = self.schedule_for(num_microbatches)
            stages = self.strategy.stages
            if len(schedule) != self.comm.size or placement != stages.placement:
                raise ValueError(f"a schedule for {len(schedule)} ranks with stages on ranks "
                                 f"{placement} does not fit {self.comm.size} ranks with stages on "
                                 f"{stages.placement}")
            fault = find_fault(schedule, placement, num_microbatches)
            if fault:
                raise ValueError(fault.sentence)
            messages = [(sent(action, len(stages)), action) for row in schedule for action in row]
            labels = {message[0]: str(action) for message, action in messages if message}
            self._made[num_microbatches] = RankSchedule(schedule[self.comm.rank], labels, placement)
        return self._made[num_microbatches]

    def run(self, microbatches: Sequence["Microbatch"], loss_divisor: float, seed: int = 0,
            step: int = 0) -> float:
        """Run the schedule on all microbatches; return this rank's share of the loss."""
        row, labels, placement = self.rank_schedule(len(microbatches))
        batch = self.batch_type(self, labels, placement, microbatches, loss_divisor, seed, step)
        batch.run(row)
        self.intervals, self.most_in_flight = batch.intervals, batch.most_in_flight
        return batch.loss

    def timeline(self, trace: Trace | None = None) -> Timeline | None:
        """The timeline of the last batch on rank 0, None on the others.  Collective.

        It has messages too if each rank passes its trace of the batch.  Ranks are those of `comm`;
        `world_ranks` has their numbers in the world.
        """
        rows = gather_object(self.comm, self.intervals)
        whole = None if trace is None else gather_trace(self.comm, trace)
        if rows is None:
            return None
        intervals = [Interval(*interval) for row in rows for interval in row]
        names = {str(interval.action) for interval in intervals}
        world_ranks = [self.comm.world_rank_of(rank) for rank in range(self.comm.size)]
        number = {world_rank: rank for rank, world_rank in enumerate(world_ranks)}
        return Timeline(self.comm.size, intervals, [
            m._replace(source=number[m.source], dest=number[m.dest])
            for m in whole.select() if m.label in names] if whole else [], world_ranks)


class RankBatch:
    """One rank's work on one batch, on all its stages.  (one_f_one_b.py has a StageBatch.)"""

    def __init__(self, pipeline: Pipeline, labels: dict[Op, str], placement: Placement,
                 microbatches: Sequence["Microbatch"], loss_divisor: float, seed: int, step: int):
        self.pipeline, self.strategy = pipeline, pipeline.strategy
        self.stages, self.comm = self.strategy.stages, pipeline.comm
        self.microbatches, self.loss_divisor = microbatches, loss_divisor
        self.messages = P2P(self.comm, placement, pipeline.specs, labels,
                            [microbatch.inputs.shape for microbatch in microbatches],
                            self.strategy.like)
        self.seed, self.step = seed, step
        self.loss = 0.0
        self.last: set[tuple[int, int]] = set()     # stage and microbatch of its last B or W
        # by stage and microbatch: (input, output) from F to B or I …
        self.in_flight: dict[tuple[int, int], Any] = {}
        # … and from I to W (function that computes the weights' gradients, context that reduces)
        self.deferred: dict[tuple[int, int], tuple[Any, AbstractContextManager]] = {}
        self.to_reduce: list[int] = []      # stages whose last B is over, until dx is sent
        self.intervals: list[Interval] = []
        self.most_in_flight = 0

    def run(self, row: Sequence[Action]) -> None:
        """Do all actions of the row, and wait until all sends have arrived."""
        self.last = {*{a.stage: a.microbatch for a in row if a.kind in (BACKWARD, WEIGHT)}.items()}
        todo = cells(row)
        for position, cell in enumerate(todo):      # one action, or a pair
            for later in chain(*todo[position:position + AHEAD + 1]):
                self.messages.post_recv(later)
            arrays = [self.messages.recv(action) for action in cell]
            outs = [self.do(action, array) for action, array in zip(cell, arrays)]
            for action, out in zip(cell, outs):
                self.messages.send(action, out)
            while self.to_reduce:
                self.strategy.reduce_stage(self.to_reduce.pop(0))
            self.poll()
        self.messages.finish()

    def do(self, action: Action, array: Array | None) -> Array | None:
        """The result of an action for the received array; either may be codes."""
        kinds: dict[str, Callable[[Action, Array | None], Array | None]] = {
            FORWARD: self.forward, BACKWARD: self.backward, INPUT: self.input_gradient,
            WEIGHT: self.weight_gradients}
        fmt, start = self.pipeline.activation_format, self.comm.now()
        if fmt is not None and array is not None:
            array = fmt.decode(array)
        out = kinds[action.kind](action, array)
        if fmt is not None and out is not None and out.ndim:
            out = fmt.encode(out)
        self.intervals.append(Interval(self.comm.rank, *action, start, self.comm.now()))
        return out

    def forward(self, action: Action, x: Array | None) -> Array:
        """The output y of a stage; the last stage returns the loss."""
        _, stage, i = action
        microbatch = self.microbatches[i]
        x = Tensor(x, requires_grad=True) if stage else microbatch.inputs
        with self.strategy.context_of(microbatch, self.loss_divisor, self.seed, self.step):
            y = self.stages.run(stage, x)
            if stage == len(self.stages) - 1:
                y = self.strategy.model.criterion(y, microbatch.targets, self.loss_divisor)
                self.loss += to_float(y.data)
        out = y.data
        drop_values(y)                          # no derivative needs them: the graph saves its own
        self.in_flight[stage, i] = x, y
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight) + len(self.deferred))
        return out

    def backward(self, action: Action, grad: Array | None) -> Array | None:
        """dx from dy; adds the weights' gradients on the way."""
        x, y = self.in_flight.pop(action[1:])
        # another stage waits for dx: it is sent before whole gradients are reduced
        reduces_later = action.stage and not self.strategy.reduces_each_backward
        with nullcontext() if reduces_later else self.reduce_during(action, y):
            backward(y, grad, poll=self.poll)
        if reduces_later and action[1:] in self.last:
            self.to_reduce.append(action.stage)
        return x.grad if action.stage else None

    def input_gradient(self, action: Action, grad: Array | None) -> Array | None:
        """dx from dy; the rest of backward is kept for `weight_gradients`."""
        x, y = self.in_flight.pop(action[1:])
        reducing = self.reduce_during(action, y)        # while there is a graph to look at
        rest = backward(y, grad, defer_weights=True, poll=self.poll)
        self.deferred[action[1:]] = rest, reducing
        return x.grad if action.stage else None

    def weight_gradients(self, action: Action, _: None) -> None:
        """Add the weights' gradients, which `input_gradient` left."""
        rest, reducing = self.deferred.pop(action[1:])
        with reducing:
            rest()

    def reduce_during(self, action: Action, y: Tensor) -> AbstractContextManager:
        """Context that reduces the weights' gradients of an action while they are computed."""
        return self.strategy.reduce_during(action.stage, y, action[1:] in self.last)

    def poll(self) -> None:
        """Advance pending messages, of the pipeline and of collectives."""
        self.strategy.poll()
        self.messages.poll()


def drop_values(y: Tensor) -> None:
    """Free the values of `y`, which becomes a view of one 0; its shape, dtype and graph stay."""
    if y.shape:
        y.data = np.broadcast_to(np.zeros((), y.data.dtype, like=y.data), y.shape)
