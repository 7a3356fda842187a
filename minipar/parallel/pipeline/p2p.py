"""The messages of a pipeline, derived from its schedule: nobody writes a send or a receive.

    rank 0   … 0F1 ─▶ isend           1F1 needs the F of stage 0: a receive; 0F1 is needed by
                 ╲                    stage 1: a send (dependencies.py)
    rank 1   irecv … 1F0 … wait, 1F1

A receive is begun a few actions before its array is needed, so that the message travels during
other work and its sender never waits for this rank to ask.  A send is begun at once and nobody
waits for it before the end of the batch: so no order of actions that is possible at all can hang,
however large the messages are.  Blocking sends would hang in 1F1B, where neighbours send to each
other at the same time.  Every message has an array of its own, freed when it has arrived.
"""

from collections.abc import Sequence

import numpy as np

from ...backend import Array
from ...comm import Communicator, Request
from .headers import Form, recv_shape, send_shape
from .schedule.actions import FORWARD, Action, Placement
from .schedule.dependencies import Op, needs, sent

Shape = tuple[int, ...]
Forms = dict[tuple[int, Shape], Form]   # of a stage's activation, for inputs of a shape
NUM_TAGS = 1 << 15      # tags come round again long after a message has arrived


class P2P:
    """What one rank sends and receives in one batch of microbatches with inputs of `shapes`.

    `forms`, learnt batch by batch, say what to receive; `names[op]` what a message is called;
    `like` which kind of array.
    """

    def __init__(self, comm: Communicator, placement: Placement, forms: Forms,
                 names: dict[Op, str], shapes: Sequence[Shape], like: Array):
        self.comm, self.placement, self.forms, self.names = comm, placement, forms, names
        self.shapes, self.like = shapes, like
        self.new = {*shapes} - {shape for _, shape in forms}
        self.posted: dict[Op, tuple[Array, Request]] = {}     # receives under way
        self.here: dict[Op, Array] = {}       # from one stage of this rank to another
        self.sends: list[Request] = []          # under way; each holds its array

    def incoming(self, action: Action) -> Op | None:
        """What the action needs of another stage."""
        return next((need for need in needs(action, len(self.placement))
                     if need[1] != action.stage), None)

    def post_recv(self, action: Action) -> None:
        """Begin to receive what the action needs from another rank, if its form is known."""
        op = self.incoming(action)
        if op is None or op in self.posted:
            return
        kind, stage, i = op
        if self.placement[stage] == self.comm.rank:
            return
        boundary = stage if kind == FORWARD else stage - 1
        form = self.forms.get((boundary, self.shapes[i]))
        if form is not None and not self.has_header(op):
            self.receive(op, form)

    def receive(self, op: Op, form: Form) -> None:
        """Begin to receive an array of that form."""
        array = np.empty_like(self.like, shape=form[0], dtype=form[1])
        source = self.placement[op[1]]
        with self.comm.labelled(self.names[op]):
            self.posted[op] = array, self.comm.irecv(array, source, self.tag(op))

    def recv(self, action: Action) -> Array | None:
        """What the action needs of another stage, when it is there."""
        op = self.incoming(action)
        if op is None:
            return None
        kind, stage, i = op
        source = self.placement[stage]
        if source == self.comm.rank:
            return self.here.pop(op)
        if self.has_header(op):
            form = recv_shape(self.comm, source, self.tag(op))
            self.forms[stage, self.shapes[i]] = form
            self.receive(op, form)
        self.post_recv(action)
        array, request = self.posted.pop(op)
        request.wait()
        return array

    def send(self, action: Action, array: Array | None) -> None:
        """What another stage needs of the action is on its way."""
        message = sent(action, len(self.placement))
        if message is None:
            return
        op, dest_stage = message
        kind, stage, i = op
        dest = self.placement[dest_stage]
        if kind == FORWARD:
            form = tuple(array.shape), array.dtype
            self.forms[stage, self.shapes[i]] = form
        if dest == self.comm.rank:
            self.here[op] = array
            return
        if self.has_header(op):
            self.sends.append(send_shape(self.comm, array, dest, self.tag(op)))
        with self.comm.labelled(self.names[op]):
            self.sends.append(self.comm.isend(array, dest, self.tag(op)))

    def has_header(self, op: Op) -> bool:
        """Whether its form goes before the array: of activations, in every batch in which a shape
        of inputs first occurs; sender and receiver agree, whatever order they get to them in.
        """
        kind, _, i = op
        return kind == FORWARD and self.shapes[i] in self.new

    def tag(self, op: Op) -> int:
        """One for each message, so that two ranks may take their messages in different orders."""
        kind, stage, i = op
        return (2 * (i * len(self.placement) + stage) + (kind == FORWARD)) % NUM_TAGS

    def poll(self) -> None:
        """Let messages that are under way go on, and forget those that have arrived."""
        self.sends = [request for request in self.sends if not request.peek()]
        for _, request in self.posted.values():
            request.peek()

    def finish(self) -> None:
        """Wait until all that was sent has arrived."""
        for request in self.sends:
            request.wait()
