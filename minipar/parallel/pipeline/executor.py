"""The executor of pipelines: a loop over one rank's row of a schedule.

    1F0      wait for x, compute y, send it          the activation of stage 0, for stage 2
    1B0      wait for dy, compute dx, send it        the gradient from stage 2, for stage 0
    1I0 1W0  the same in halves: dx first, the gradients of the weights when the schedule says

No action says when to send or receive: that follows from what it needs and gives (p2p.py).
The same for 1F1B alone, to be read first: `one_f_one_b.py` of the folder above.

No part of the loss is divided by the number of microbatches: the last stage divides each by the
number of targets of the whole batch, and gradients add up.  Huang et al. 2019; Narayanan et al.
2021.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ...autograd import Tensor, backward
from ...backend import Array
from ...comm import Communicator, Trace
from ...comm.collectives import gather_object, gather_trace
from ...nn import Module
from ...number_formats import Format
from ...random import training_step
from ..strategy import Microbatch
from .p2p import P2P, ArraySpecs
from .schedule.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Placement, Schedule
from .schedule.dependencies import Op, sent
from .schedule.timeline import Interval, Timeline
from .schedule.validate import find_fault
from .stages import Staged

AHEAD = 2               # receives are begun so many actions before they are needed


class Pipeline(Staged):
    """Trains `model` by any schedule; a strategy, whose batch is all microbatches at once.

    `schedule_for(num_microbatches)` returns a schedule and the ranks of its stages, which do not
    depend on the number: `partial(make_schedule, "1f1b", comm.size)`, or `lambda m: yours`.  See
    Staged for `cuts`.  After a batch `intervals` are what this rank did and when, `most_in_flight`
    how many microbatches' activations it held at most (each stage's counted).  Activations are sent
    as codes of `activation_format`, if given.
    """

    def __init__(self, model: Module, comm: Communicator,
                 schedule_for: Callable[[int], tuple[Schedule, Placement]],
                 cuts: Sequence[int] | None = None, activation_format: Format | None = None):
        super().__init__(model, comm, schedule_for(1)[1], cuts)
        self.activation_format = activation_format
        self.schedule_for = schedule_for
        self.intervals: list[Interval] = []
        self.most_in_flight = 0
        self.specs: ArraySpecs = {}
        self._plans: dict[int, tuple[list[Action], dict[Op, str]]] = {}

    def plan(self, num_microbatches: int) -> tuple[list[Action], dict[Op, str]]:
        """This rank's row, and what each message is called: as the action that sends it.

        Raises ValueError for a schedule that would not work, saying why.
        """
        if num_microbatches not in self._plans:
            schedule, placement = self.schedule_for(num_microbatches)
            if len(schedule) != self.comm.size or placement != self.placement:
                raise ValueError(f"a schedule for {len(schedule)} ranks with stages on ranks "
                                 f"{placement} does not fit {self.comm.size} ranks with stages on "
                                 f"{self.placement}")
            fault = find_fault(schedule, placement, num_microbatches)
            if fault:
                raise ValueError(fault.sentence)
            messages = [(sent(action, self.num_stages), action) for row in schedule
                        for action in row]
            names = {message[0]: str(action) for message, action in messages if message}
            self._plans[num_microbatches] = schedule[self.comm.rank], names
        return self._plans[num_microbatches]

    def run_batch(self, microbatches: Sequence[Microbatch], num_targets: float, seed: int = 0,
            step: int = 0) -> float:
        """See Strategy."""
        row, names = self.plan(len(microbatches))
        self.check_fresh()
        run = BatchRun(self, names, microbatches, num_targets, seed, step)
        run.run(row)
        self.intervals, self.most_in_flight = run.intervals, run.most_in_flight
        self._synchronize()
        return run.loss

    def run_microbatch(self, batch: Microbatch, num_targets: float, seed: int = 0,
                       step: int = 0) -> float:
        """See Strategy: a batch of one microbatch."""
        return self.run_batch([batch], num_targets, seed, step)

    def reducing(self, stage: int, y: Tensor) -> AbstractContextManager:
        """Context in which gradients of a stage's weights come, from the graph behind `y`.

        Made before that graph is walked, and entered, perhaps later, when the gradients come.
        """
        return nullcontext()

    def timeline(self, trace: Trace | None = None) -> Timeline | None:
        """What all ranks did in the last batch, on rank 0, None elsewhere; all must call it.

        With this rank's trace of the batch, messages too.  Ranks are those of `comm`.
        """
        rows = gather_object(self.comm, self.intervals)
        whole = None if trace is None else gather_trace(self.comm, trace)
        if rows is None:
            return None
        intervals = [Interval(*interval) for row in rows for interval in row]
        names = {str(interval.action) for interval in intervals}
        number = {self.comm.world_rank_of(rank): rank for rank in range(self.comm.size)}
        return Timeline(self.comm.size, intervals, [
            m._replace(source=number[m.source], dest=number[m.dest])
            for m in whole.select() if m.label in names] if whole else [])


class BatchRun:
    """One batch on one rank."""

    def __init__(self, pipeline: Pipeline, names: dict[Op, str],
                 microbatches: Sequence[Microbatch], num_targets: float, seed: int, step: int):
        self.pipeline, self.comm, self.batches = pipeline, pipeline.comm, microbatches
        self.messages = P2P(pipeline.comm, pipeline.placement, pipeline.specs, names,
                                 [batch.inputs.shape for batch in microbatches],
                                 pipeline.slabs[0].data)
        self.num_targets, self.seed, self.step, self.loss = num_targets, seed, step, 0.0
        self.kept: dict[tuple[int, int], Any] = {}      # of each microbatch in flight on a stage
        self.intervals: list[Interval] = []
        self.most_in_flight = 0

    def run(self, row: Sequence[Action]) -> None:
        """Do all actions of the row, and wait until all that was sent has arrived."""
        do = {FORWARD: self.forward, BACKWARD: self.backward, INPUT: self.input,
              WEIGHT: self.weight}
        for position, action in enumerate(row):
            for later in row[position:position + AHEAD + 1]:
                self.messages.post_recv(later)
            fmt, array = self.pipeline.activation_format, self.messages.recv(action)
            start = self.comm.now()
            if fmt is not None and array is not None:
                array = fmt.decode(array)
            out = do[action.kind](action, array)
            if fmt is not None and out is not None and out.ndim:
                out = fmt.encode(out)
            self.intervals.append(Interval(self.comm.rank, *action, start, self.comm.now()))
            self.messages.send(action, out)
            self.poll()
        self.messages.finish()

    def forward(self, action: Action, x: Array | None) -> Array:
        """y of a stage; the last one makes the loss of it."""
        pipeline, (_, stage, i), batch = self.pipeline, action, self.batches[action.microbatch]
        x = Tensor(x, requires_grad=True) if stage else batch.inputs
        with training_step(self.seed, self.step, batch.samples):
            y = pipeline.run_stage(stage, x)
            if stage == pipeline.num_stages - 1:
                y = pipeline.model.criterion(y, batch.targets, self.num_targets)
                self.loss += float(y.data)
        out, y.data = y.data, np.broadcast_to(np.zeros_like(y.data, shape=()), y.shape)
        self.kept[stage, i] = x, y              # without y's numbers, which no derivative needs
        self.most_in_flight = max(self.most_in_flight, len(self.kept))
        return out

    def backward(self, action: Action, grad: Array | None) -> Array | None:
        """dx from dy; the gradients of the weights are added up on the way."""
        x, y = self.kept.pop(action[1:])
        with self.pipeline.reducing(action.stage, y):
            backward(y, grad, poll=self.poll)
        return x.grad if action.stage else None

    def input(self, action: Action, grad: Array | None) -> Array | None:
        """dx alone: what else there is to do of backward is kept for `weight`."""
        x, y = self.kept[action[1:]]
        reducing = self.pipeline.reducing(action.stage, y)      # while there is a graph to look at
        rest = backward(y, grad, defer_weights=True, poll=self.poll)
        self.kept[action[1:]] = rest, reducing
        return x.grad if action.stage else None

    def weight(self, action: Action, _: None) -> None:
        """The gradients of the weights."""
        rest, reducing = self.kept.pop(action[1:])
        with reducing:
            rest()

    def poll(self) -> None:
        """Let whatever is under way go on."""
        self.pipeline._poll()
        self.messages.poll()
