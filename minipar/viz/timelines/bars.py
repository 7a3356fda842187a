"""A trace as plain data: bars for what each rank computed, for its messages, and for its waiting.

    rank 1  ████████▒▒▒▒████████████▓▓▓      compute: by phase, and where it waited
               ▂▂▂▂▂    ▂▂▂▂▂▂▂▂             messages that this rank sent
              ▂▂▂▂▂▂▂                        copy out, to its host memory,
                            ▂▂▂▂▂▂           copy in, back from there

Pictures and terminal draw these bars, so a test can compare them with the trace.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...comm.simulated.copy_stream import COPY_IN, COPY_OUT
from ...comm.trace import Trace
from ...parallel.pipeline.schedule.actions import FORWARD
from ...parallel.pipeline.schedule.csv import CELL

COMPUTE, MESSAGES = "compute", "messages"
COPIES = COPY_OUT, COPY_IN
WAITING = "waiting"
COMPUTING, TRANSFER, BLOCKED = "computing", "a message under way", "blocked"
# A span's name ends with its phase; what each phase is drawn as:
PHASES = {"forward": "forward", "again": "forward", "backward": "backward", "weights": "backward",
          "optimizer": "optimizer"}


class Bar(NamedTuple):
    """What `rank` did in one `row` of its lane from `start` to `end` (seconds).

    `row` is "compute", "messages", "copy out" or "copy in".  `kind` is a phase or "waiting", the
    collective of a message, or the row's name again for a copy.
    """

    rank: int
    row: str
    kind: str
    start: float
    end: float


class EndlessWait(NamedTuple):
    """A wait that never ends: since `since`, `rank` waits to "send to" or "receive from" `peer`.

    `details` are the tag and the size of the message.
    """

    rank: int
    what: str
    peer: int
    details: str
    since: float


class TracedRun(NamedTuple):
    """One run to draw: its trace and, if it hung, what its ranks wait for."""

    title: str
    trace: Trace
    waits: Sequence[EndlessWait] = ()
    num_ranks: int | None = None

    def from_zero(self) -> "TracedRun":
        """The same run, shifted so that its first event is at time 0."""
        starts = [event[-2] for event in (*self.trace.messages, *self.trace.spans)]
        first = min(starts + [wait.since for wait in self.waits], default=0.0)
        return self._replace(trace=earlier(self.trace, first),
                             waits=[w._replace(since=w.since - first) for w in self.waits])

    def size(self) -> int:
        """The number of ranks, with those that a wait names."""
        named = [rank + 1 for wait in self.waits for rank in (wait.rank, wait.peer)]
        return count_ranks(self.trace, max([self.num_ranks or 1, *named]))

    def last(self) -> float:
        """The time of the last event."""
        ends = [event[-1] for event in (*self.trace.messages, *self.trace.spans)]
        return max(ends + [wait.since for wait in self.waits], default=0.0)


def waits_of(report: str, clocks: Sequence[float]) -> list[EndlessWait]:
    """The waits that a deadlock report names; `clocks` is the time of each rank when it stopped."""
    found = re.findall(r"rank (\d+) waits to (send to|receive from) rank (\d+) \((.*?)\)", report)
    return [EndlessWait(int(rank), what, int(peer), details, clocks[int(rank)])
            for rank, what, peer, details in found]


def timeline_bars(trace: Trace, num_ranks: int | None = None, resolution: float = 0.0,
                  apart: bool = False) -> list[Bar]:
    """The bars of the timeline; time 0 is the first event.

    A rank's waiting ends with the last event of all ranks or, if they are `apart`, with its own.
    Bars of one row never overlap: neighbours of one kind are one bar, and messages that are under
    way at the same time share a bar.  Gaps of at most `resolution` seconds are closed.
    """
    trace = earlier(trace, trace.first())
    pieces: dict[tuple[int, str], list[tuple]] = defaultdict(list)
    for span in trace.named_spans():
        kind = PHASES.get(span.name.rpartition(" ")[2], span.name)
        pieces[span.rank, kind if kind in COPIES else COMPUTE].append((span.start, span.end, kind))
    for m in trace.select() + trace.select(label="control"):
        pieces[m.source, MESSAGES].append((m.start, m.end, _kind_of(m.label)))
    bars = []
    for rank in range(count_ranks(trace, num_ranks) if pieces else 0):
        computed, *others = (join(rank, row, pieces[rank, row], resolution)
                             for row in (COMPUTE, MESSAGES, *COPIES))
        sent = [bar for row in others for bar in row]
        end = max((bar.end for bar in computed + sent), default=0.0) if apart else trace.duration()
        bars += computed + gaps(rank, COMPUTE, WAITING, computed, end, resolution) + sent
    return bars


def _kind_of(label: str) -> str:
    """The kind of a message; in a pipeline its label is the action that made it, 2F0 or 2B0."""
    action = CELL.fullmatch(label)
    if action:
        return "activations" if action[2] == FORWARD else "gradients"
    return label or "message"


def states(trace: Trace, num_ranks: int | None = None,
           waits: Sequence[EndlessWait] = ()) -> list[Bar]:
    """The states of each rank as bars: computing, a message under way, or blocked.

    All ranks begin at time 0.  A rank is blocked while it neither computes nor has a message under
    way, until its last event.  A rank with an `EndlessWait` stays blocked, drawn until the last
    event of all ranks.
    """
    bars, spans, transfers = [], defaultdict(list), defaultdict(list)
    for rank, _, start, end in trace.spans:
        spans[rank].append((start, end, COMPUTING))
    for source, dest, *_, start, end in trace.messages:
        for rank in {source, dest}:
            transfers[rank].append((start, end, TRANSFER))
    hung = {wait.rank for wait in waits}
    for rank in range(count_ranks(trace, num_ranks)):
        computed = join(rank, COMPUTING, spans[rank])
        moving = join(rank, TRANSFER, transfers[rank])
        both = join(rank, "either", [(b.start, b.end, "either") for b in computed + moving])
        until = both[-1].end if both else 0.0
        if rank in hung:
            until = TracedRun("", trace, waits).last()
        bars += computed + moving + gaps(rank, BLOCKED, BLOCKED, both, until)
    return bars


def count_ranks(trace: Trace, num_ranks: int | None = None) -> int:
    """One more than the highest rank of an event, but at least `num_ranks`."""
    seen = [m[0] for m in trace.messages] + [m[1] for m in trace.messages]
    return max([num_ranks or 0, *(r + 1 for r in seen), *(s[0] + 1 for s in trace.spans)])


def refuse_empty(trace: Trace) -> None:
    """Raise ValueError for a trace without events."""
    if not trace.messages and not trace.spans:
        raise ValueError("the trace is empty: run on Cluster(n, trace=True), or comm.start_trace()")


def join(rank: int, row: str, pieces: Iterable[tuple], resolution: float = 0.0) -> list[Bar]:
    """Bars of pieces (start, end, kind), in order, without overlaps; equal kinds join."""
    bars: list[Bar] = []
    for start, end, kind in sorted(pieces):
        if bars and start - bars[-1].end <= resolution:
            start = bars[-1].end
            if kind == bars[-1].kind:
                bars[-1] = bars[-1]._replace(end=max(start, end))
                continue
        if end > start:
            bars.append(Bar(rank, row, kind, start, end))
    return bars


def gaps(rank: int, row: str, kind: str, bars: list[Bar], until: float,
         resolution: float = 0.0) -> list[Bar]:
    """Bars for the gaps between `bars`, which are in order, from 0 to `until`."""
    starts, ends = [0.0, *(bar.end for bar in bars)], [*(bar.start for bar in bars), until]
    return [Bar(rank, row, kind, start, end) for start, end in zip(starts, ends)
            if end - start > resolution]


def earlier(trace: Trace, seconds: float) -> Trace:
    """The messages and spans of a trace, shifted earlier by `seconds`."""
    return Trace([(*m[:4], *(time - seconds for time in m[4:])) for m in trace.messages],
                 [(*s[:2], *(time - seconds for time in s[2:])) for s in trace.spans])


def side_by_side(traces: Sequence[Trace]) -> Trace:
    """Several runs of one rank as one trace: run i becomes rank i, and begins at time 0."""
    together = Trace()
    for i, trace in enumerate(traces):
        moved = earlier(trace, trace.first())
        together.messages += [(i, i, *m[2:]) for m in moved.messages]
        together.spans += [(i, *s[1:]) for s in moved.spans]
    return together
