"""A timeline as plain data: rectangles for what each rank computed, and for its messages.

    rank 1  ████████▒▒▒▒████████████▓▓▓      compute: by phase, and where it waited
               ▂▂▂▂▂    ▂▂▂▂▂▂▂▂             messages that this rank sent
              ▂▂▂▂▂▂▂                        copy out, to its host memory,
                            ▂▂▂▂▂▂           copy in, back from there

`timeline.py` draws these rectangles, so a test can compare the picture with the trace.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..comm.simulated.copy_stream import COPY_IN, COPY_OUT
from ..comm.trace import Trace
from ..parallel.pipeline.schedule.actions import FORWARD
from ..parallel.pipeline.schedule.csv import CELL

COMPUTE, MESSAGES = "compute", "messages"
COPIES = COPY_OUT, COPY_IN
WAITING = "waiting"
# A span's name ends with its phase; what each phase is drawn as:
PHASES = {"forward": "forward", "again": "forward", "backward": "backward", "weights": "backward",
          "optimizer": "optimizer"}


class Bar(NamedTuple):
    """A rectangle: what `rank` did in one `row` of its band from `start` to `end` (seconds).

    `row` is "compute", "messages", "copy out" or "copy in"; `kind` a phase, "waiting", what a
    message was part of, or the row again.
    """

    rank: int
    row: str
    kind: str
    start: float
    end: float


def timeline_bars(trace: Trace, num_ranks: int | None = None, resolution: float = 0.0,
          apart: bool = False) -> list[Bar]:
    """The rectangles of the timeline; time 0 is the first event.

    A rank waits until the last event of all; if the ranks are `apart`, until its own last event.
    Bars of one row never overlap: neighbours of one kind are one bar, and messages that are under
    way at the same time share it.  Gaps of at most `resolution` seconds are closed.
    """
    messages, spans = trace.select() + trace.select(label="control"), trace.named_spans()
    if not messages and not spans:
        return []
    first = trace.first()
    last = max(event.end for event in (*messages, *spans))
    pieces: dict[tuple[int, str], list[tuple]] = {}
    for s in spans:
        kind = PHASES.get(s.name.rpartition(" ")[2], s.name)
        row = kind if kind in COPIES else COMPUTE
        pieces.setdefault((s.rank, row), []).append((s.start - first, s.end - first, kind))
    for m in messages:
        pieces.setdefault((m.source, MESSAGES), []).append(
            (m.start - first, m.end - first, _kind_of(m.label)))
    bars = []
    for rank in range(count_ranks(trace, num_ranks)):
        computed = join(rank, COMPUTE, pieces.get((rank, COMPUTE), []), resolution)
        sent = join(rank, MESSAGES, pieces.get((rank, MESSAGES), []), resolution)
        for row in COPIES:
            sent += join(rank, row, pieces.get((rank, row), []), resolution)
        end = max((bar.end for bar in computed + sent), default=0.0) if apart else last - first
        bars += computed + gaps(rank, COMPUTE, WAITING, computed, end, resolution) + sent
    return bars


def _kind_of(label: str) -> str:
    """The kind of a message; in a pipeline its label is the action that made it, 2F0 or 2B0."""
    action = CELL.fullmatch(label)
    if action:
        return "activations" if action[2] == FORWARD else "gradients"
    return label or "message"


def count_ranks(trace: Trace, num_ranks: int | None = None) -> int:
    """The number of ranks that the events name, but at least `num_ranks`."""
    seen = [m[0] for m in trace.messages] + [m[1] for m in trace.messages]
    return max([num_ranks or 0, *(r + 1 for r in seen), *(s[0] + 1 for s in trace.spans)])


def refuse_empty(trace: Trace) -> None:
    """Raise ValueError for a trace without events."""
    if not trace.messages and not trace.spans:
        raise ValueError("the trace is empty: run on Cluster(n, trace=True), or comm.start_trace()")


def join(rank: int, row: str, pieces: Iterable[tuple], resolution: float = 0.0) -> list[Bar]:
    """Pieces (start, end, kind) in order, clipped where they overlap, joined where they touch."""
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


def side_by_side(traces: Sequence[Trace]) -> Trace:
    """One rank's log of several runs as one trace, run i as rank i, each from time 0."""
    together = Trace()
    for i, trace in enumerate(traces):
        first = min(event[-2] for event in (*trace.messages, *trace.spans))
        together.messages += [(i, i, *m[2:4], *(t - first for t in m[4:])) for m in trace.messages]
        together.spans += [(i, s[1], s[2] - first, s[3] - first) for s in trace.spans]
    return together
