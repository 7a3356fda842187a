"""A trace for the viewers ui.perfetto.dev and chrome://tracing: JSON in the Trace Event Format.

    rank 0  compute   ▐ MatMul forward ▌                    a process for each rank, whose
            sends                       ▐all_reduce▌──╮     threads are what it computes,
    rank 1  receives                    ▐all_reduce▌◀─╯     sends and receives

A message is two rectangles from its start to its end, one at each of its ranks, and an arrow
between them.  The viewers allow rectangles of one thread to nest, but not to overlap.  So messages
that are under way at the same time get further threads ("sends 2").

Trace Event Format: complete events (X), flow events (s, f; bp "e": ends at the rectangle that
encloses it), metadata (M); times in µs.
"""

import json
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path

from ...atomic_files import write_text
from ...comm.trace import Trace
from ..timelines.bars import COPIES, count_ranks, earlier, refuse_empty


def write_perfetto(path: str | Path, trace: Trace) -> Path:
    """Write `trace` as Trace Event JSON; return the path written.

    Time 0 is the first event.  The arguments of a message's rectangle are its bytes, its label,
    the peer's rank and the time of its posting in µs.  Raises ValueError for an empty trace.
    """
    refuse_empty(trace)
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in trace_events(trace))
    return write_text(path, f'{{"displayTimeUnit": "ns", "traceEvents": [\n{lines}\n]}}\n')


def trace_events(trace: Trace) -> list[dict]:
    """The events of the JSON: names first, then rectangles, then arrows."""
    trace, num_ranks = earlier(trace, trace.first()), count_ranks(trace)
    rows: dict[tuple[int, str], list[dict]] = {
        (rank, row): [] for rank in range(num_ranks)
        for row in ("compute", *COPIES, "sends", "receives")}
    arrows = []

    def add(rank: int, row: str, name: str, start: float, end: float, args: dict) -> dict:
        # pid 0 and tid 0 mean an idle machine to the viewers
        event = {"ph": "X", "pid": rank + 1, "name": name, "ts": start * 1e6,
                 "dur": (end - start) * 1e6, "cat": row, "args": args}
        rows[rank, row].append(event)
        return event

    for span in trace.named_spans():
        row = span.name if span.name in COPIES else "compute"
        add(span.rank, row, span.name, span.start, span.end, {})
    for number, message in enumerate(trace.select() + trace.select(label="control")):
        for phase, row, rank, peer in (("s", "sends", message.source, message.dest),
                                       ("f", "receives", message.dest, message.source)):
            end = add(rank, row, message.label or "message", message.start, message.end,
                      {"bytes": message.num_bytes, "label": message.label, "peer": peer,
                       "posted": message.posted * 1e6})
            arrows.append(({"ph": phase, "id": number, "name": "message", "cat": "message",
                            **({"bp": "e"} if phase == "f" else {})}, end))

    names = [e for r in range(num_ranks) for e in _names("process", r + 1, 0, f"rank {r}", r)]
    threads = count(num_ranks + 1)                      # no thread has the number of a process
    for (rank, row), events in rows.items():
        for i, events_of_thread in enumerate(apart(events)):
            thread = next(threads)
            names += _names("thread", rank + 1, thread, f"{row} {i + 1}" if i else row, thread)
            for event in events_of_thread:
                event["tid"] = thread
    ends = [{**arrow, **{key: end[key] for key in ("pid", "tid", "ts")}} for arrow, end in arrows]
    return [*names, *chain.from_iterable(rows.values()), *ends]


def apart(events: Sequence[dict]) -> list[list[dict]]:
    """The events in as few rows as hold them without overlaps."""
    rows: list[list[dict]] = []
    for event in sorted(events, key=lambda e: (e["ts"], e["dur"])):
        for row in rows:
            if row[-1]["ts"] + row[-1]["dur"] <= event["ts"] + 1e-6:    # 1 ps: rounding
                row.append(event)
                break
        else:
            rows.append([event])
    return rows


def _names(what: str, process: int, thread: int, name: str, place: int) -> tuple[dict, dict]:
    """The two events that name a process or thread, and say where it stands."""
    common = {"ph": "M", "pid": process, "tid": thread}
    return ({**common, "name": f"{what}_name", "args": {"name": name}},
            {**common, "name": f"{what}_sort_index", "args": {"sort_index": place}})
