"""The messages of a pipeline, derived from its schedule: no send or receive is written by hand.

    rank 0   … 0F1 ─▶ isend             stage 1 needs 0F1: a send
                 ╲
    rank 1   irecv … 1F0 … wait, 1F1    1F1 needs the F of stage 0: a receive (`needs`)

A receive is posted a few actions before its array is needed, so the message travels during other
work.  A send starts at once, and its rank waits for it only at the end of the batch.  So no valid
schedule can hang, whatever the message size.  Blocking sends would hang under 1F1B, where
neighbours send to each other at the same time.  Every message has an array of its own, which is
freed when its send is complete.

A receiver learns the shape and dtype of activations from a header, a control message before each
activation of the first batch with inputs of that shape.  A header always has 8 numbers, int64, so
the receiver needs to know nothing before:

    [ code of the dtype | number of axes | length of each axis, then zeros ]
"""

from collections.abc import Sequence

import numpy as np

from ...backend import Array
from ...comm import Communicator, Request
from ...comm.errors import NUM_TAGS
from .schedule.actions import FORWARD, Action, Placement
from .schedule.dependencies import Op, is_other_way, needs, rank_of, sent

MOST_AXES = 6
Shape = tuple[int, ...]
ArraySpec = tuple[Shape, np.dtype]
Inputs = tuple[Shape, bool]         # of a microbatch: their shape, and the way through the ranks
ArraySpecs = dict[tuple[int, Inputs], ArraySpec]    # of activations, by the stage that sends them


class P2P:
    """The messages of one rank in one batch, whose microbatches have inputs of `shapes`.

    `specs` are the shapes and dtypes of activations, learnt batch by batch.  `labels[op]` is a
    message's label in traces.  Received arrays are of the kind of `like`.
    """

    def __init__(self, comm: Communicator, placement: Placement, specs: ArraySpecs,
                 labels: dict[Op, str], shapes: Sequence[Shape], like: Array):
        self.comm, self.placement, self.specs, self.labels = comm, placement, specs, labels
        self.inputs = [(shape, is_other_way(placement, i)) for i, shape in enumerate(shapes)]
        self.new, self.like = {*self.inputs} - {inputs for _, inputs in specs}, like
        self.posted: dict[Op, tuple[Array, Request]] = {}       # receives under way
        self.local: dict[Op, Array] = {}        # from one stage of this rank to another
        self.sends: list[Request] = []          # under way; each keeps its array

    def incoming(self, action: Action) -> Op | None:
        """The op (kind, stage, microbatch) of another stage that the action needs, if any."""
        ops = needs(action, len(self.placement))
        return next(((kind, stage, i) for kind, stage, i in ops if stage != action.stage), None)

    def post_recv(self, action: Action) -> None:
        """Begin to receive what the action needs from another rank, if shape and dtype are known.
        """
        op = self.incoming(action)
        if op is None or op in self.posted:
            return
        kind, stage, i = op
        if rank_of(self.placement, stage, i) == self.comm.rank:
            return
        boundary = stage if kind == FORWARD else stage - 1
        spec = self.specs.get((boundary, self.inputs[i]))
        if spec is not None and not self.has_header(op):
            self.irecv(op, spec)

    def irecv(self, op: Op, spec: ArraySpec) -> None:
        """Begin to receive an array with that spec."""
        array = np.empty(spec[0], spec[1], like=self.like)
        source = rank_of(self.placement, *op[1:])
        with self.comm.labelled(self.labels[op]):
            self.posted[op] = array, self.comm.irecv(array, source, self.tag(op))

    def recv(self, action: Action) -> Array | None:
        """The array that the action needs of another stage, once it has arrived."""
        op = self.incoming(action)
        if op is None:
            return None
        kind, stage, i = op
        source = rank_of(self.placement, stage, i)
        if source == self.comm.rank:
            return self.local.pop(op)
        if self.has_header(op):
            spec = recv_header(self.comm, source, self.tag(op))
            self.specs[stage, self.inputs[i]] = spec
            self.irecv(op, spec)
        self.post_recv(action)
        array, request = self.posted.pop(op)
        request.wait()
        return array

    def send(self, action: Action, array: Array | None) -> None:
        """Begin to send the array of the action to the stage that needs it, if one does."""
        message = sent(action, len(self.placement))
        if message is None or array is None:
            return
        op, dest_stage = message
        kind, stage, i = op
        dest = rank_of(self.placement, dest_stage, i)
        if kind == FORWARD:
            self.specs[stage, self.inputs[i]] = tuple(array.shape), array.dtype
        if dest == self.comm.rank:
            self.local[op] = array
            return
        if self.has_header(op):
            self.sends.append(send_header(self.comm, array, dest, self.tag(op)))
        with self.comm.labelled(self.labels[op]):
            self.sends.append(self.comm.isend(array, dest, self.tag(op)))

    def has_header(self, op: Op) -> bool:
        """True if a header with the spec precedes the array.

        Only an activation has one, and only in the first batch with inputs of its shape that go
        through the ranks in its direction.  So sender and receiver agree, in whatever order they
        reach their messages.
        """
        kind, _, i = op
        return kind == FORWARD and self.inputs[i] in self.new

    def tag(self, op: Op) -> int:
        """A tag for each message, so that two ranks may handle their messages in any order.

        A tag is used again long after its first message has arrived.
        """
        kind, stage, i = op
        return (2 * (i * len(self.placement) + stage) + (kind == FORWARD)) % NUM_TAGS

    def poll(self) -> None:
        """Advance pending messages, and forget sends that have arrived."""
        self.sends = [request for request in self.sends if not request.peek()]
        for _, request in self.posted.values():
            request.peek()

    def finish(self) -> None:
        """Wait until all sends have arrived."""
        for request in self.sends:
            request.wait()


def send_header(comm: Communicator, array: Array, dest: int, tag: int = 0) -> Request:
    """Begin to send the shape and dtype of `array`."""
    if array.ndim > MOST_AXES:
        raise ValueError(f"an array between stages has at most {MOST_AXES} axes, not {array.ndim}: "
                         "reshape it, and back in the next part")
    header = np.zeros(2 + MOST_AXES, np.int64)
    header[:2 + array.ndim] = ord(array.dtype.char), array.ndim, *array.shape
    with comm.labelled("control"):
        return comm.isend(header, dest, tag)


def recv_header(comm: Communicator, source: int, tag: int = 0) -> ArraySpec:
    """Receive the header of the array to come; wait for it."""
    header = np.empty(2 + MOST_AXES, np.int64)
    with comm.labelled("control"):
        comm.recv(header, source, tag)
    code, num_axes, *shape = header.tolist()
    return tuple(shape[:num_axes]), np.dtype(chr(code))
