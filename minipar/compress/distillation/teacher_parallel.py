"""A teacher that one rank cannot hold, cut over ranks of its own or over those of its students.

    teachers   │ batch 0 │ batch 1 │ batch 2 │             all ranks announce each batch:
                       ╲ logits  ╲         ╲               teachers compute it and begin to send,
    students             │ train on 0 │ train on 1 │ …     students begin to receive their rows

Batches are announced one ahead, so batch k + 1 travels while students train on batch k.  Under "tp"
each teacher rank holds a part of every layer, under "pp" a stage of whole layers.
`teacher_messages.py` plans which rank sends which piece to which student.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...autograd import Tensor, no_grad
from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import chunk_bounds
from ...nn import GPT, Module
from ...nn.chain import chain
from ...parallel.pipeline.cut_points import cut_evenly
from ...parallel.pipeline.p2p import recv_header, send_header
from ...parallel.pipeline.stages import Stages
from ...parallel.tensor.parallelize import parallelize
from .distill import Recipe, disable_dropout
from .feature_taps import TappedOutputs, hidden_parts, part_widths, run_parts_with_taps
from .teacher_messages import TeacherMessage, TeacherOutput, messages

SPLITS = ("tp", "pp")
LABEL, INSIDE = "teacher to student", "inside teacher"      # of messages


class ParallelTeacher:
    """A teacher, `model`, on the ranks `teachers` of comm, for the ranks in `students`.

    Collective: all ranks of `comm` make one, and announce every batch.  On the ranks in `teachers`,
    `model` has its values (of `dtype`) and is changed; elsewhere a model without values is enough.
    Student i of n receives the i-th of n parts of a batch, as in `Strategy.rows`.  Raises
    ValueError for ranks that do not exist, or over which this model cannot be cut.
    """

    def __init__(self, model: Module, recipe: Recipe, comm: Communicator, teachers: Sequence[int],
                 students: Sequence[int], split: str = "tp", dtype: Any = np.float32):
        for ranks in (teachers, students):
            if not ranks or not set(ranks) <= set(range(comm.size)):
                raise ValueError(f"teachers and students are ranks in 0 … {comm.size - 1}, at "
                                 f"least one of each, not {list(ranks)}")
        if split not in SPLITS:
            raise ValueError(f"a teacher is split by {' or '.join(SPLITS)}, not {split!r}")
        self.comm = comm.split(0)           # carries no other messages
        is_teacher = comm.rank in teachers
        self.own = self.comm.split(0 if is_teacher else None,       # the teachers, in order
                                   list(teachers).index(comm.rank) if is_teacher else None)
        self.teachers, self.students, self.dtype = list(teachers), list(students), np.dtype(dtype)
        self.model, self.recipe, self.parts = model, recipe, chain(model)
        self.hidden, self.attention = ([hidden_parts(model)[i] for i in layers]
                                       for layers in recipe.watched(1))
        self.arriving: deque[tuple[_PendingOutputs, tuple[int, int]]] = deque()
        self.sending: list[tuple[Array, Any]] = []
        self.stages = [(0, len(self.parts))]        # (first, stop) parts of each stage
        if split == "pp":
            cuts = cut_evenly([part.num_parameters() for part in self.parts], len(teachers))
            self.stages = list(zip([0, *cuts], [*cuts, len(self.parts)]))
        if self.own is not None:
            disable_dropout(model)
            if split == "pp":
                Stages(model, self.own, list(range(self.own.size)), cuts)   # frees the other stages
            elif self.own.size > 1:
                parallelize(model, self.own)

    def outputs(self, inputs: Array) -> list[TeacherOutput]:
        """The outputs that the recipe needs: logits, hidden layers, maps."""
        is_gpt, widths = isinstance(self.model, GPT), part_widths(self.model)
        before = inputs.shape[1:] if is_gpt else inputs.shape[1:-1]
        found = [TeacherOutput(i, (*before, widths[i])) for i in (len(widths) - 1, *self.hidden)]
        return found + [TeacherOutput(i, (self.model.config.num_heads, *before, *before), True)
                        for i in self.attention]

    def plan(self, inputs: Array) -> list[TeacherMessage]:
        """The messages of a batch."""
        outputs = self.outputs(inputs)
        owners = [self.teachers if len(self.stages) == 1 else
                  [self.teachers[next(stage for stage, (_, stop) in enumerate(self.stages)
                                      if output.part < stop)]] for output in outputs]
        shares = chunk_bounds(len(inputs), len(self.students))
        return messages(outputs, owners, dict(zip(self.students, shares)))

    def announce(self, inputs: Array, num_microbatches: int = 1) -> None:
        """Collective: announce the next batch, with all its rows, in the same order on all ranks.

        Students need only the shape of `inputs`; they will ask for their rows in `num_microbatches`
        parts.
        """
        plan, me = self.plan(inputs), self.comm.rank
        arrival = None
        if me in self.students:
            arrival = _PendingOutputs(self, inputs, [m for m in plan if m.dest == me])
            rows = chunk_bounds(arrival.num_rows, num_microbatches)
            self.arriving += [(arrival, part) for part in rows]
        if self.own is None:
            return
        with no_grad():
            found = self._compute(inputs)
        self.finish()                       # the sends of the batch before
        for message in plan:
            if message.source == me:
                part = np.ascontiguousarray(message.take(found[message.output]))
                if message.dest == me:
                    arrival.buffers[message][...] = part
                    continue
                with self.comm.labelled(LABEL):
                    self.sending.append((part, self.comm.isend(part, message.dest)))

    def __call__(self, inputs: Array) -> TappedOutputs:
        """The teacher's outputs for this student's next microbatch.

        Raises ValueError if the batch was not announced.
        """
        if not self.arriving:
            raise ValueError("the teacher does not have this batch: all ranks must call "
                             "announce(inputs) first")
        arrival, (start, stop) = self.arriving.popleft()
        if stop - start != len(inputs):
            raise ValueError(f"a microbatch of {stop - start} rows was announced here, but "
                             f"{len(inputs)} were asked for: announce as many as are trained on")
        found = [Tensor(array[start:stop]) for array in arrival.wait()]
        first_map = 1 + len(self.hidden)
        return TappedOutputs(found[0], found[1:first_map], found[first_map:])

    def finish(self) -> None:
        """Wait until all sends of this rank are complete."""
        for _, request in self.sending:
            request.wait()
        self.sending.clear()

    def _compute(self, x: Array | Tensor) -> list[Array | None]:
        """This rank's part of every output: a piece, the whole, or None if it has none."""
        own, num_stages = self.own, len(self.stages)
        stage = own.rank if num_stages > 1 else 0
        first, stop = self.stages[stage]
        if stage:
            shape, dtype = recv_header(own, stage - 1)
            x = Tensor(np.empty(shape, dtype, like=x))
            with own.labelled(INSIDE):
                own.recv(x.data, stage - 1)
        parts = {i: self.parts[i] for i in range(first, stop)}
        with own.labelled(INSIDE):
            y, states, maps = run_parts_with_taps(parts, x, self.hidden, self.attention)
        if stage + 1 < num_stages:
            send_header(own, y.data, stage + 1).wait()
            with own.labelled(INSIDE):
                own.send(np.ascontiguousarray(y.data), stage + 1)
        noted = [y if stop == len(self.parts) else None, *map(states.get, self.hidden),
                 *map(maps.get, self.attention)]
        return [None if x is None else x.data for x in noted]


class _PendingOutputs:
    """A student's rows of a batch, in flight.

    The buffers are on the device of `inputs`.  A rank copies its message to itself into the buffer.
    """

    def __init__(self, teacher: ParallelTeacher, inputs: Array, messages: Sequence[TeacherMessage]):
        self.num_rows, self.whole = messages[0].shape[0], None
        self.buffers = {m: np.empty(m.shape, teacher.dtype, like=inputs) for m in messages}
        with teacher.comm.labelled(LABEL):
            self.requests = [teacher.comm.irecv(buffer, m.source)
                             for m, buffer in self.buffers.items()
                             if m.source != teacher.comm.rank]

    def wait(self) -> list[Array]:
        """Wait for all messages; return the outputs."""
        if self.whole is None:
            for request in self.requests:
                request.wait()
            by_output: dict[tuple[int, int], list[Array]] = {}
            for m, buffer in self.buffers.items():
                by_output.setdefault((m.output, m.axis), []).append(buffer)
            self.whole = [pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis)
                          for (_, axis), pieces in by_output.items()]
            self.buffers, self.requests = {}, []
        return self.whole


class AnnouncedBatches:
    """The `batches` of a task, each announced to a teacher one step before its use.

    Ranks that only teach call `serve`; the others call `batch`, as for the batches themselves.
    """

    def __init__(self, batches: Any, teacher: ParallelTeacher, steps: range,
                 num_microbatches: int = 1):
        self.batches, self.teacher, self.steps = batches, teacher, iter(steps)
        self.num_microbatches, self.last_announced = num_microbatches, -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batches, name)

    def announce_next(self) -> bool:
        """Announce the next batch; return False if there is none, after all sends have finished."""
        step = next(self.steps, None)
        if step is None:
            self.teacher.finish()
            return False
        self.teacher.announce(self.batches.batch(step)[0], self.num_microbatches)
        self.last_announced = step
        return True

    def batch(self, step: int) -> tuple:
        """The batch of a step, after announcing it and the next one."""
        while self.last_announced <= step and self.announce_next():
            pass
        return self.batches.batch(step)

    def serve(self) -> None:
        """Announce all batches, one after the other."""
        while self.announce_next():
            pass
