"""The trace of a run: a list of messages and a list of computations, with their times.

A message is recorded once, by its sender:  (source, dest, bytes, label, posted, start, end)
A span is time that a rank computed:        (rank, name, start, end)

`posted` is when the sender began, `start` when both ranks had begun, `end` when the bytes had
arrived.  (On a simulated cluster `start` also waits for free ports.  On real ranks `end` is when
the receiver noticed.)  A real sender does not know the times of its receiver, so a real receiver
records its half as well:

    a receive                               (source, dest, bytes, label, posted, end)

`Trace.merged` of all ranks gives each message the times of both.  (Real ranks read the clock of
their machine.  The clocks of two machines differ by an unknown constant.)

In all other time a rank waited, or did work that it did not report.  On request a trace also keeps
each rank's *program*: its actions in order, with no times but those of computations.  With the
programs the run can be replayed on different links (`simulated/replay.py`):

    ("send", group, tag, dest, bytes)           ("recv", group, tag, source, bytes)
    ("wait", number of the send or receive)     ("compute", name, seconds)
    ("split", group, color, key, new group)     ("poll",)     ("world", group where it began)
    ("shared", bytes)           an all-reduce in shared memory, which has no messages

In programs `group` is the communicator's number on that rank, and ranks are numbers in that
communicator.  Elsewhere ranks are world numbers.  Times are seconds of the rank's own clock.

The label of a message is the collective that sent it, on a mesh with its axis: "all_reduce over
tp".  A message outside collectives has the label "".  "control" marks bookkeeping (token counts,
traces), which the formulas do not count.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

POLL = ("poll",)        # the rank asked whether a request is done: what follows depends on the time


class Message(NamedTuple):
    """A message; its fields are explained at the head of this file."""

    source: int
    dest: int
    num_bytes: int
    label: str
    posted: float
    start: float
    end: float


class Span(NamedTuple):
    """A stretch of time when a rank computed."""

    rank: int
    name: str
    start: float
    end: float


@dataclass
class Trace:
    """The log of one rank, or of all of them together.

    Events are appended as plain tuples (a NamedTuple takes eight times as long to make); `select`
    and `named_spans` give their fields names.  `programs` has the programs of ranks that log them.
    """

    messages: list[tuple] = field(default_factory=list)
    spans: list[tuple] = field(default_factory=list)
    programs: dict[int, list[tuple]] = field(default_factory=dict)
    receives: list[tuple] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all events."""
        self.messages.clear()
        self.spans.clear()
        self.receives.clear()
        for program in self.programs.values():
            program.clear()

    def select(self, rank: int | None = None, label: str | None = None) -> list[Message]:
        """The messages sent by `rank` under `label`; by default by all ranks, under all labels.

        Without `label`, messages labelled "control" are left out.  The name of a collective alone,
        "all_reduce", selects its messages over all axes of a mesh.
        """
        return [m for m in map(Message._make, self.messages) if rank in (None, m.source)
                and (label in (m.label, m.label.partition(" over ")[0]) if label
                     else m.label != "control")]

    def named_spans(self) -> list[Span]:
        """The spans, their fields by name."""
        return [Span._make(span) for span in self.spans]

    def bytes_sent(self, rank: int | None = None, label: str | None = None) -> int:
        """Bytes of the messages that `select` finds."""
        return sum(m.num_bytes for m in self.select(rank, label))

    def num_sent(self, rank: int | None = None, label: str | None = None) -> int:
        """Number of the messages that `select` finds."""
        return len(self.select(rank, label))

    def first(self) -> float:
        """The start of the first message or computation; 0 if there is none."""
        return min((event[-2] for event in (*self.messages, *self.spans)), default=0.0)

    def duration(self) -> float:
        """Seconds from the first event to the last."""
        ends = [event[-1] for event in (*self.messages, *self.spans)]
        return max(ends) - self.first() if ends else 0.0

    @classmethod
    def merged(cls, traces: Iterable["Trace"]) -> "Trace":
        """The events of several ranks in one trace, the halves of real messages joined."""
        whole = cls()
        for trace in traces:
            whole.messages += trace.messages
            whole.spans += trace.spans
            whole.receives += trace.receives
            for rank, program in trace.programs.items():
                whole.programs.setdefault(rank, []).extend(program)
        whole.join_halves()
        return whole

    def join_halves(self) -> None:
        """Give each message the times of its receive; forget the receives.

        Among messages of the same ranks, label and size, the first receive belongs to the first
        send.  A receive that ended before that send began belongs to a message that is not logged.
        """
        if not self.receives:
            return
        halves: dict[tuple, list[tuple]] = {}
        for receive in sorted(self.receives, key=lambda r: -r[4]):      # the first one last
            halves.setdefault(receive[:4], []).append(receive)
        self.receives.clear()
        for i, message in sorted(enumerate(self.messages), key=lambda item: item[1][4]):
            waiting = halves.get(message[:4], [])
            while waiting:
                *_, posted, end = waiting.pop()
                if end >= message[4]:
                    self.messages[i] = (*message[:5], max(message[4], posted), end)
                    break

    def as_lists(self) -> list:
        """Plain lists, to be written as JSON."""
        return [self.messages, self.spans, list(self.programs.items()), self.receives]

    @classmethod
    def from_lists(cls, lists: list) -> "Trace":
        """The inverse of `as_lists`."""
        messages, spans, programs, receives = lists
        return cls([tuple(m) for m in messages], [tuple(s) for s in spans],
                   {rank: [tuple(action) for action in program] for rank, program in programs},
                   [tuple(r) for r in receives])
