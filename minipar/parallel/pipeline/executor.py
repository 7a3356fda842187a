"""The executor of pipelines: a loop over one rank's row of a schedule.

    1F0      wait for x, compute y, send it          the activation of stage 0, for stage 2
    1B0      wait for dy, compute dx, send it        the gradient from stage 2, for stage 0
    1I0 1W0  the same in halves: dx first, the gradients of the weights when the schedule says

Nothing says when to send or receive: that follows from what an action needs and gives
(dependencies.py).  A receive is begun a few actions before its array is needed, so that the message
travels during other work and its sender never waits for this rank to ask.  A send is begun at once
and nobody waits for it before the end: so no order of actions that is possible at all can hang,
however large the messages are.  Blocking sends would hang in 1F1B, where neighbours send to each
other at the same time.  Every message has an array of its own, freed when it has arrived.

No part of the loss is divided by the number of microbatches: the last stage divides each by the
number of targets of the whole batch, and gradients add up.  Huang et al. 2019; Narayanan et al.
2021.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...autograd import Tensor, backward
from ...backend import Array
from ...comm import Communicator, Request, Trace
from ...comm.collectives import gather_objects, gather_trace
from ...nn import Module
from ...random import training_step
from ..strategy import Microbatch
from .dependencies import Part, needs, sent
from .messages import Form, receive_shape, send_shape
from .schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Placement, Schedule
from .stages import Staged
from .timeline import Interval, Timeline
from .validate import find_fault

AHEAD = 2               # receives are begun so many actions before they are needed
NUM_TAGS = 1 << 15      # tags come round again long after a message has arrived


class Pipeline(Staged):
    """Trains `model` by any schedule; a strategy, whose batch is all microbatches at once.

    `schedule_for(num_microbatches)` returns a schedule and the ranks of its stages, which do not
    depend on the number: `partial(make_schedule, "1f1b", comm.size)`, or `lambda m: yours`.  See
    Staged for `cuts`.  After a batch `intervals` are what this rank did and when, `most_in_flight`
    how many microbatches' activations it held at most (each stage's counted).
    """

    def __init__(self, model: Module, comm: Communicator,
                 schedule_for: Callable[[int], tuple[Schedule, Placement]],
                 cuts: Sequence[int] | None = None):
        super().__init__(model, comm, schedule_for(1)[1], cuts)
        self.schedule_for = schedule_for
        self.intervals: list[Interval] = []
        self.most_in_flight = 0
        self.forms: dict[tuple[int, tuple[int, ...]], Form] = {}    # of stage's y, inputs' shape
        self.known: set[tuple[int, ...]] = set()        # shapes of inputs whose forms are known
        self._plans: dict[int, tuple[list[Action], dict[Part, str]]] = {}

    def plan(self, num_microbatches: int) -> tuple[list[Action], dict[Part, str]]:
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

    def run(self, microbatches: Sequence[Microbatch], num_targets: float, seed: int = 0,
            step: int = 0) -> float:
        """See Strategy."""
        row, names = self.plan(len(microbatches))
        self.check_fresh()
        run = Run(self, names, microbatches, num_targets, seed, step)
        run.play(row)
        self.known.update(batch.inputs.shape for batch in microbatches)
        self.intervals, self.most_in_flight = run.intervals, run.most_in_flight
        if self.synchronizing:
            self.finish()
        return run.loss

    def loss_of(self, batch: Microbatch, num_targets: float, seed: int = 0, step: int = 0) -> float:
        """See Strategy: a batch of one microbatch."""
        return self.run([batch], num_targets, seed, step)

    def timeline(self, trace: Trace | None = None) -> Timeline | None:
        """What all ranks did in the last batch, on rank 0, None elsewhere; all must call it.

        With this rank's trace of the batch, messages too, where `comm` is all there is.
        """
        rows = gather_objects(self.comm, self.intervals)
        whole = None if trace is None else gather_trace(self.comm, trace)
        if rows is None:
            return None
        intervals = [Interval(*interval) for row in rows for interval in row]
        names = {str(interval.action) for interval in intervals}
        return Timeline(self.comm.size, intervals,
                        [m for m in whole.select() if m.label in names] if whole else [])


class Run:
    """One batch on one rank."""

    def __init__(self, pipeline: Pipeline, names: dict[Part, str],
                 microbatches: Sequence[Microbatch], num_targets: float, seed: int, step: int):
        self.pipeline, self.comm, self.batches = pipeline, pipeline.comm, microbatches
        self.names = names
        self.num_targets, self.seed, self.step, self.loss = num_targets, seed, step, 0.0
        self.kept: dict[tuple[int, int], Any] = {}      # of each microbatch in flight on a stage
        self.posted: dict[Part, tuple[Array, Request]] = {}     # receives under way
        self.here: dict[Part, Array] = {}       # from one stage of this rank to another
        self.sends: list[Request] = []          # under way; each holds its array
        self.intervals: list[Interval] = []
        self.most_in_flight = 0

    def play(self, row: Sequence[Action]) -> None:
        """Do all actions of the row, and wait until all that was sent has arrived."""
        do = {FORWARD: self.forward, BACKWARD: self.backward, INPUT: self.input,
              WEIGHT: self.weight}
        for position, action in enumerate(row):
            for later in row[position:position + AHEAD + 1]:
                self.post(later)
            array = self.take(action)
            start = self.comm.now()
            out = do[action.kind](action, array)
            self.intervals.append(Interval(self.comm.rank, *action, start, self.comm.now()))
            self.give(action, out)
            self.poll()
        for request in self.sends:
            request.wait()

    def forward(self, action: Action, x: Array | None) -> Array:
        """y of a stage; the last one makes the loss of it."""
        pipeline, (_, stage, i), batch = self.pipeline, action, self.batches[action.microbatch]
        x = Tensor(x, requires_grad=True) if stage else batch.inputs
        with training_step(self.seed, self.step, batch.samples):
            y = pipeline.forward_of(stage, x)
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
        backward(y, grad, between=self.poll)
        return x.grad if action.stage else None

    def input(self, action: Action, grad: Array | None) -> Array | None:
        """dx alone: what else there is to do of backward is kept for `weight`."""
        x, y = self.kept[action[1:]]
        self.kept[action[1:]] = backward(y, grad, defer_weights=True, between=self.poll)
        return x.grad if action.stage else None

    def weight(self, action: Action, _: None) -> None:
        """The gradients of the weights."""
        self.kept.pop(action[1:])()

    def incoming(self, action: Action) -> Part | None:
        """What the action needs of another stage."""
        return next((need for need in needs(action, self.pipeline.num_stages)
                     if need[1] != action.stage), None)

    def post(self, action: Action) -> None:
        """Begin to receive what the action needs from another rank, if its form is known."""
        part = self.incoming(action)
        if part is None or part in self.posted:
            return
        kind, stage, i = part
        if self.pipeline.placement[stage] == self.comm.rank:
            return
        boundary = stage if kind == FORWARD else stage - 1
        form = self.pipeline.forms.get((boundary, self.batches[i].inputs.shape))
        if form is not None and not self.has_header(part):
            self.receive(part, form)

    def receive(self, part: Part, form: Form) -> None:
        """Begin to receive an array of that form."""
        array = np.empty_like(self.pipeline.slabs[0].data, shape=form[0], dtype=form[1])
        source = self.pipeline.placement[part[1]]
        with self.comm.labelled(self.names[part]):
            self.posted[part] = array, self.comm.irecv(array, source, self.tag(part))

    def take(self, action: Action) -> Array | None:
        """What the action needs of another stage, when it is there."""
        part = self.incoming(action)
        if part is None:
            return None
        kind, stage, i = part
        source = self.pipeline.placement[stage]
        if source == self.comm.rank:
            return self.here.pop(part)
        if self.has_header(part):
            form = receive_shape(self.comm, source, self.tag(part))
            self.pipeline.forms[stage, self.batches[i].inputs.shape] = form
            self.receive(part, form)
        self.post(action)
        array, request = self.posted.pop(part)
        request.wait()
        return array

    def give(self, action: Action, array: Array | None) -> None:
        """What another stage needs of the action is on its way."""
        message = sent(action, self.pipeline.num_stages)
        if message is None:
            return
        part, dest_stage = message
        kind, stage, i = part
        dest = self.pipeline.placement[dest_stage]
        if kind == FORWARD:
            form = tuple(array.shape), array.dtype
            self.pipeline.forms[stage, self.batches[i].inputs.shape] = form
        if dest == self.comm.rank:
            self.here[part] = array
            return
        if self.has_header(part):
            self.sends.append(send_shape(self.comm, array, dest, self.tag(part)))
        with self.comm.labelled(self.names[part]):
            self.sends.append(self.comm.isend(array, dest, self.tag(part)))

    def has_header(self, part: Part) -> bool:
        """Whether its form goes before the array: of activations, in every batch in which a shape
        of inputs first occurs; sender and receiver agree, whatever order they get to them in.
        """
        kind, _, i = part
        return kind == FORWARD and self.batches[i].inputs.shape not in self.pipeline.known

    def tag(self, part: Part) -> int:
        """One for each message, so that two ranks may take their messages in different orders."""
        kind, stage, i = part
        return (2 * (i * self.pipeline.num_stages + stage) + (kind == FORWARD)) % NUM_TAGS

    def poll(self) -> None:
        """Let messages that are under way go on, and forget those that have arrived."""
        self.pipeline._move_on()
        self.sends = [request for request in self.sends if not request.peek()]
        for _, request in self.posted.values():
            request.peek()
